"""Did the demo go as it should? Numbers from what was recorded, and a plain answer with its reason."""

from __future__ import annotations

import math
import re
import statistics
from dataclasses import dataclass
from typing import Any

from trainwarden import rundir
from trainwarden.cli.run.demo_fault import Fault
from trainwarden.cli.run.demo_plan import DemoPlan
from trainwarden.cli.run.job_run import JobRun
from trainwarden.cli.shared.follow import JobView
from trainwarden.hook import read_header
from trainwarden.records import ActionRecord, EventRecord, IncidentRecord

# What each fault must be called, and what must be done about it in auto mode (None: nothing).
EXPECTED: dict[str, tuple[frozenset[str], frozenset[str] | None]] = {
    "slow-rank": (frozenset({"slow_compute"}), frozenset({"rebalance"})),
    "hang": (frozenset({"hang"}), frozenset({"restart_process", "restart_job"})),
    "crash": (frozenset({"crash"}), frozenset({"restart_process", "restart_job"})),
    "exception": (frozenset({"exception"}), frozenset({"restart_process", "restart_job"})),
    "log-storm": (frozenset({"log_storm"}), None),
}
RESTARTS = frozenset({"restart_process", "restart_job"})  # an end of ranks the rendezvous sees to by itself
_LOSS = re.compile(r"^step \d+ loss (\d+\.\d+) ", re.MULTILINE)
QUEUED = "rank_run_queue_wait_ratio"  # among an incident's metrics where ranks' wait for a processor explains it
LEAST_SLOWDOWN = 1.1  # a drift is told from 10 % on
WARM_UP_STEPS = 5  # process start, allocator and page-cache warm-up; never counted as healthy time


@dataclass(frozen=True, slots=True)
class Seen:
    """What was done, and what was told of it."""

    plan: DemoPlan
    fault: Fault
    view: JobView
    matching: list[IncidentRecord]
    """Incidents that tell of the fault."""
    false_alarms: list[IncidentRecord]
    """The others, but for those that a busy machine explains: that has happened too."""
    actions: list[ActionRecord]
    """What was done about the incidents that tell of the fault."""
    code: int | None
    """The job's exit code; None if it had to be ended."""

    @classmethod
    def of(cls, plan: DemoPlan, fault: Fault, view: JobView, code: int | None) -> Seen:
        """Sort what `view` holds by whether it tells of `fault`."""
        matching: list[IncidentRecord] = []
        others: list[IncidentRecord] = []
        kinds = EXPECTED[plan.fault][0] if plan.fault in EXPECTED else frozenset()
        for incident in sorted(view.incidents.values(), key=lambda item: item.opened_at_s):
            names_rank = bool(incident.suspects) and incident.suspects[0].rank == plan.rank
            after = fault.injected_at_s is not None and incident.opened_at_s >= fault.injected_at_s - 0.5
            if incident.kind in kinds and names_rank and after:
                matching.append(incident)
            elif not _happened(incident, fault, view):
                others.append(incident)
        wanted = {incident.id for incident in matching}
        actions = [action for action in view.actions.values() if action.incident in wanted]
        return cls(plan, fault, view, matching, others, actions, code)

    def restarted_s(self) -> float | None:
        """When all ranks were started again first, by whoever it was; None if they were not."""
        since_s = self.fault.injected_at_s or math.inf
        events = (one for one in self.view.events if one.kind == "restart" and one.fields.get("stage") == "started")
        return min((one.time_s for one in events if one.time_s >= since_s), default=None)

    def transitions(self) -> list[EventRecord]:
        """What became of each step that a rank has died in or joined before."""
        return [one for one in self.view.events if one.kind == "transition"]


def _happened(incident: IncidentRecord, fault: Fault, view: JobView) -> bool:
    """Whether others on this machine made it slow: ranks waited for a processor, or every step was measured slower."""
    if incident.kind in {"slow_job", "slow_compute", "host_contention"} and QUEUED in incident.metrics:
        return True
    of_fault = fault.kind == "slow-rank" and incident.opened_at_s >= (fault.injected_at_s or math.inf)
    if incident.kind != "slow_job" or incident.onset_step is None or of_fault:
        return False
    # It closes only with as many fast steps again.
    last = max((step for (_, _, step), row in view.steps.items() if row["end_s"] <= incident.opened_at_s), default=0)
    before_s = view.iteration_s(WARM_UP_STEPS + 1, incident.onset_step - 1)
    slow_s = view.iteration_s(incident.onset_step, last)
    return before_s is not None and slow_s is not None and slow_s >= LEAST_SLOWDOWN * before_s


def judge(plan: DemoPlan, fault: Fault, run: JobRun, code: int | None) -> dict[str, Any]:
    """The demo's JSON object by contracts, with `ok`, `why_not` and a `summary` for people."""
    view = run.follower.view
    seen = Seen.of(plan, fault, view, code)
    times = _iteration_times(seen)
    result: dict[str, Any] = {
        "job": run.settings.job,
        "ranks": plan.ranks,
        "seed": plan.seed,
        "bus": run.bus_address,
        "mode": plan.mode,
        "steps": view.steps_done(),
        "loss": _loss(run),
        "fault": fault.as_object(),
        "incidents": [_incident(object_, fault) for object_ in view.incident_objects()],
        "actions": [_action(object_, fault) for object_ in view.action_objects()],
        "iteration_s": times,
        "slowdown_removed_ratio": _removed(times),
        "first_step_after_fault_s": _first_step_after(seen),
        "transitions": [{"message": one.message, **one.fields} for one in seen.transitions()],
        "overhead": _overhead(run),
        "false_alarms": len(seen.false_alarms),
        "exit_code": code,
    }
    why_not = (_why_it_did_not_go_on(seen) if plan.goes_on else None) or _why_not(seen, result)
    return {**result, "ok": why_not is None, "why_not": why_not, "summary": _summary(seen, result, why_not)}


def _since(fault: Fault, at_s: float | None) -> float | None:
    return round(at_s - fault.injected_at_s, 3) if at_s is not None and fault.injected_at_s is not None else None


def _incident(incident: dict[str, Any], fault: Fault) -> dict[str, Any]:
    steps = None
    if incident["opened_step"] is not None and fault.injected_at_step is not None:
        steps = max(0, incident["opened_step"] - fault.injected_at_step)
    after = {"opened_after_s": _since(fault, incident["opened_at_s"]), "opened_after_iterations": steps}
    return {**incident, **after}


def _action(action: dict[str, Any], fault: Fault) -> dict[str, Any]:
    return {**action, "started_after_s": _since(fault, action["at_s"])}


def _iteration_times(seen: Seen) -> dict[str, Any]:
    """Median iteration time before the fault, under it, and after the action took hold."""
    plan, view = seen.plan, seen.view
    steps = view.iterations()
    at_step = seen.fault.injected_at_step
    if at_step is None:
        return {"healthy": _median(s for n, s in steps if n > WARM_UP_STEPS), "slow": None, "after_action": None}
    healthy = _median(s for n, s in steps if WARM_UP_STEPS < n <= at_step)
    done = [a for a in seen.actions if a.outcome == "done" and a.kind != "ignore"]
    if plan.fault != "slow-rank" or not done:
        slow = _median(s for n, s in steps if n > at_step + 1) if plan.fault == "slow-rank" else None
        return {"healthy": healthy, "slow": slow, "after_action": None}
    adopted = [int(str(e.fields["step"])) for e in view.events if e.kind == "microbatch_plan" and "step" in e.fields]
    since = min((step for step in adopted if step > at_step), default=at_step)
    slow = _median(s for n, s in steps if at_step + 1 < n <= since)
    return {"healthy": healthy, "slow": slow, "after_action": _median(s for n, s in steps if n > since + 1)}


def _median(values: Any) -> float | None:
    kept = list(values)
    return round(statistics.median(kept), 4) if kept else None


def _removed(times: dict[str, Any]) -> float | None:
    healthy, slow, after = times["healthy"], times["slow"], times["after_action"]
    if healthy is None or slow is None or after is None or slow <= healthy:
        return None
    return round(float(slow - after) / float(slow - healthy), 4)


def _first_step_after(seen: Seen) -> float | None:
    """Seconds from the fault to the end of the first training step after the restart."""
    if seen.fault.injected_at_s is None:
        return None
    started = seen.fault.injected_at_s if seen.plan.goes_on else seen.restarted_s()
    if started is None:
        return None
    ends = [row["end_s"] for row in seen.view.steps.values() if row["end_s"] > started]
    return _since(seen.fault, min(ends)) if ends else None


def _loss(run: JobRun) -> dict[str, float | None]:
    """First and last loss that rank 0 printed."""
    path = run.run_dir / "logs" / "rank-0.log"
    text = path.read_text(errors="replace") if path.exists() else ""
    losses = [float(found) for found in _LOSS.findall(text)]
    return {"first": losses[0] if losses else None, "last": losses[-1] if losses else None}


def _overhead(run: JobRun) -> dict[str, float | None]:
    """What watching cost: the hook's own account of its time, and the agent's of its CPU and memory."""
    own_us = [
        header.own_s * 1e6 / header.recorded
        for path in (run.run_dir / rundir.HOOK).glob("rank-*.hook")
        if (header := read_header(path)) is not None and header.recorded > 0
    ]
    metrics = run.follower.view.agent_metrics
    return {
        "hook_us_per_iteration": _median(own_us),
        "agent_cpu_ratio": metrics.get("agent_cpu_ratio"),
        "agent_rss_bytes": metrics.get("agent_resident_memory_bytes"),
    }


def _why_not(seen: Seen, result: dict[str, Any]) -> str | None:
    """One sentence: the first thing that did not go as it should; None if everything did."""
    plan, matching = seen.plan, seen.matching
    if seen.false_alarms:
        return f"{len(seen.false_alarms)} incident(s) that tell of nothing that happened: {seen.false_alarms[0].reason}"
    kinds, wanted = EXPECTED.get(plan.fault, (frozenset(), None))
    wanted = None if plan.goes_on else wanted
    if kinds and not matching:
        return f"the {plan.fault} on rank {plan.rank} was not found"
    if len(matching) > 1:
        return f"one fault opened {len(matching)} incidents"
    if wanted is not None and plan.mode == "auto":
        done = [a for a in seen.actions if a.kind in wanted and a.outcome == "done"]
        if not done and not (wanted & RESTARTS and seen.restarted_s() is not None):
            return f"no {' or '.join(sorted(wanted))} was done"
        removed = result["slowdown_removed_ratio"]
        if plan.fault == "slow-rank" and (removed is None or removed <= 0.0):
            return "the action did not make the job faster"
    if wanted is None or plan.mode == "auto" or plan.fault == "slow-rank":
        if seen.code is None:
            return f"the job was not done within {plan.within_s:.0f} s, so it was ended"
        if seen.code != 0:
            return f"the job ended with exit code {seen.code}"
        if result["steps"] != plan.steps:
            return f"the job ended at step {result['steps']} of {plan.steps}"
    return None


def _why_it_did_not_go_on(seen: Seen) -> str | None:
    rank = str(seen.plan.rank)
    if seen.restarted_s() is not None:
        return "all ranks were started again"
    for name, done in (("gone", "finished the step without"), ("joined", "were joined again by")):
        if not any(one.fields.get(name) == rank for one in seen.transitions()):
            return f"nothing says that the other ranks {done} rank {rank}"
    return None


def _summary(seen: Seen, result: dict[str, Any], why_not: str | None) -> str:
    """One plain paragraph."""
    plan, matching = seen.plan, seen.matching
    if plan.fault == "none":
        told = "; ".join(one["reason"] for one in result["incidents"]) or "nothing was reported"
        story = f"The job ran {result['steps']} steps on {plan.ranks} ranks without a fault, and {told}."
    elif not matching:
        story = f"A {plan.fault} was done to rank {plan.rank}."
    else:
        first = next(i for i in result["incidents"] if i["id"] == matching[0].id)
        story = (
            f"A {plan.fault} was done to rank {plan.rank} at step {result['fault']['injected_at_step']}; "
            f"{first['opened_after_s']} s later it was reported as {first['kind']}: {first['reason'].rstrip('.')}."
        )
        done = [a for a in result["actions"] if a["incident"] == first["id"] and a["outcome"] == "done"]
        if done:
            why = done[0]["why"].removeprefix(first["reason"]).lstrip("; ").rstrip(".")  # which the reason has said
            story += f" Then: {done[0]['kind']}{f' ({why})' if why else ''}."
        if result["slowdown_removed_ratio"] is not None:
            times = result["iteration_s"]
            story += (
                f" Iterations took {times['healthy']} s when healthy, {times['slow']} s under the fault and "
                f"{times['after_action']} s after the action: {result['slowdown_removed_ratio']:.0%} of the loss gone."
            )
        if plan.goes_on:
            story += "".join(f" {one.message[:1].upper()}{one.message[1:]}." for one in seen.transitions())
        if result["first_step_after_fault_s"] is not None:
            story += f" The first new training step ended {result['first_step_after_fault_s']} s after the fault."
    return story if why_not is None else f"{story} NOT as it should be: {why_not}."
