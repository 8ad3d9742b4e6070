"""How each value of the table is come by: a job or a reading, and what it says."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.gpu_check import readings
from tests.gpu_check.jobs import Job, Outcome, plain, watched
from tests.gpu_check.table import RANKS
from tests.places import ROOT
from trainwarden import hook

Value = float | None | str  # a text says why there is none
Values = dict[str, Value]
FAULTY: Final = 1
SLOW_AT, HANG_AT = 60, 30
PAIRS: Final = 3
PLUGIN: Final = ROOT / "collectors" / "nccl_profiler" / "libnccl-profiler-trainwarden.so"
NOT_BUILT: Final = "NCCL's profiler plug-in is not built here"
SAMPLED: Final[Mapping[str, str]] = {"TRAINWARDEN_NCCL_EVERY": "8"}  # the jobs are short


@dataclass
class Lab:
    """Where jobs run and what they leave."""

    folder: Path
    backend: str

    def job(self, name: str, ranks: int, *arguments: str) -> Outcome:
        """Run the training script under the warden."""
        return watched(Job(name, ranks, ("--backend", self.backend, *arguments), SAMPLED), self.folder)


def slow_rank(lab: Lab, ranks: int) -> Values:
    """One rank computes twice as long from a step on."""
    name = f"slow_rank_{ranks}"
    said = ("--fault", "slow", "--at", str(SLOW_AT), "--rank", str(FAULTY))
    out = lab.job(name, ranks, "--mode", "ddp", "--steps", "180", "--work-ms", "40", *said)
    values: Values = {name: _named(out, "slow_compute")}
    opened = [one["opened_step"] for one in _of(out, "slow_compute") if one.get("opened_step") is not None]
    values[f"{name}_after"] = float(opened[0] - SLOW_AT) if opened else "nothing was told"
    if ranks == RANKS[0]:
        values |= _split(out)
    return values


def _split(out: Outcome) -> Values:
    """What events of the device say of waits: whoever is not slow waits for what the slow one needs more."""
    slow, other = (out.steps.get(rank, []) for rank in (FAULTY, 0))
    late = slice(SLOW_AT + 10, -3)
    waits = [step.device_wait_s for step in other[late] if step.device_wait_s is not None]
    own, mine = _own_s(slow[late]), _own_s(other[late])
    if not (waits and own and mine):
        return {"wait_split_error": "no wait was timed on the device"}
    apart_s = statistics.median(own) - statistics.median(mine)
    return {"wait_split_error": abs(statistics.median(waits) - apart_s) / max(apart_s, 1e-6)}


def _own_s(steps: list[hook.Step]) -> list[float]:
    both = [(step.device_s, step.device_wait_s) for step in steps]
    return [took - wait for took, wait in both if took is not None and wait is not None]


def stopped_rank(lab: Lab, ranks: int) -> Values:
    """One rank is stopped by a signal, and goes on a while later."""
    name = f"stopped_rank_{ranks}"
    said = ("--fault", "stop", "--at", str(HANG_AT), "--rank", str(FAULTY))
    out = lab.job(name, ranks, "--mode", "ddp", "--steps", "45", "--work-ms", "500", *said)
    values: Values = {name: _named(out, "hang"), f"{name}_after": "nothing was told"}
    told = _of(out, "hang")
    if told and out.step_s and out.fault_at_s:
        values[f"{name}_after"] = (told[0]["opened_at_s"] - out.fault_at_s) / out.step_s
    return values


def skipped(lab: Lab, ranks: int) -> Values:
    """One rank leaves out a collective call; all stand still, and are ended."""
    said = ("--fault", "skip", "--at", str(HANG_AT), "--rank", str(FAULTY), "--hold-s", "25")
    out = lab.job(f"skipped_{ranks}", ranks, "--mode", "by-hand", "--steps", "60", "--work-ms", "100", *said)
    return {f"skipped_{ranks}": _named(out, "hang", "collective_mismatch")}


def healthy(mode: str) -> Callable[[Lab, int], Values]:
    """Nothing is wrong, and nothing is told."""

    def check(lab: Lab, ranks: int) -> Values:
        name = f"healthy_{mode}_{ranks}"
        out = lab.job(name, ranks, "--mode", mode, "--steps", "120", "--work-ms", "30")
        whole = not out.exit_code and len(out.truth) == ranks and all(one.get("done") for one in out.truth.values())
        failed = f"the job ended with {out.exit_code}: {out.log[-300:]}"
        values: Values = {name: float(len(out.incidents)) if whole else failed}
        if mode == "ddp" and ranks == RANKS[0]:
            values |= _timed(out)
        if mode == "graph" and ranks == RANKS[0]:
            values |= _loss(lab, out)
        return values

    return check


def _timed(out: Outcome) -> Values:
    timed = {rank: [step.device_s for step in steps[25:] if step.device_s] for rank, steps in out.steps.items()}
    values: Values = {"timed_ranks": float(sum(len(took) > 50 for took in timed.values()))}
    errors = [
        abs(statistics.mean(took) / out.truth[rank]["wall_step_s"] - 1.0)
        for rank, took in timed.items()
        if took and "wall_step_s" in out.truth.get(rank, {})
    ]
    values["step_time_error"] = max(errors) if errors else "no step was timed on the device"
    own = [header.own_s / header.recorded * 1e6 for header in out.headers.values()]
    values["hook_step_us"] = statistics.median(own) if own else "no hook file was left"
    values["collectives_recorded"] = float(out.calls) if PLUGIN.exists() else NOT_BUILT
    return values


def _loss(lab: Lab, graph: Outcome) -> Values:
    other = lab.job("graph_peer", RANKS[0], "--mode", "by-hand", "--steps", "120", "--work-ms", "5")
    mine, theirs = (out.truth.get(0, {}).get("loss") for out in (graph, other))
    if mine is None or theirs is None:
        return {"graph_loss_error": "a job did not tell its loss"}
    return {"graph_loss_error": abs(mine - theirs) / max(abs(theirs), 1e-9)}


def slow_link(lab: Lab) -> Values:
    """Two like groups, of which NCCL gives one a single channel."""
    said = ("--mode", "groups", "--steps", "250", "--work-ms", "20", "--fault", "link", "--at", "0")
    out = lab.job("slow_link_4", 4, *said)
    told = [one for one in out.incidents if one["kind"] in ("slow_link", "congestion")]
    ranks = {suspect.get("rank") for one in told[:1] for suspect in one["suspects"]}
    return {"slow_link_4": float(bool(ranks) and ranks <= {2, 3})}


def overhead(lab: Lab) -> Values:
    """By turns with and without the hook, and with the plug-in too."""
    kinds: dict[str, tuple[bool, Mapping[str, str]]] = {"plain": (False, {}), "hook": (True, {})}
    if PLUGIN.exists():
        kinds["plugin"] = (True, {"TRAINWARDEN_NCCL_PROFILER": str(PLUGIN)})
    took: dict[str, list[float]] = {kind: [] for kind in kinds}
    arguments = ("--backend", lab.backend, "--mode", "ddp", "--steps", "150", "--work-ms", "10")
    for turn in range(PAIRS):
        for kind, (with_hook, environ) in kinds.items():
            job = Job(f"overhead-{kind}-{turn}", 2, arguments, environ)
            seconds = plain(job, lab.folder, with_hook=with_hook)
            if seconds is not None:
                took[kind].append(seconds)
    if not took["plain"]:
        return dict.fromkeys(("hook_overhead", "plugin_overhead"), "the jobs did not end well")
    middle = {kind: statistics.median(seconds) for kind, seconds in took.items() if seconds}
    values: Values = {"plugin_overhead": "the jobs did not end well" if PLUGIN.exists() else NOT_BUILT}
    for kind in ("hook", "plugin"):
        if kind in middle:
            values[f"{kind}_overhead"] = middle[kind] / middle["plain"] - 1.0
    return values


def costs(lab: Lab) -> Values:
    """What events cost from Python."""
    command = [sys.executable, "-m", "tests.gpu_check.costs"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
    if done.returncode:
        return {name: done.stderr[-300:] for name in ("event_record_us", "event_query_us", "event_elapsed_us")}
    found: Values = json.loads(done.stdout)
    return found


def nvml(lab: Lab) -> Values:
    """Our GPU collector beside nvidia-smi."""
    return {f"nvml_{name}": value for name, value in readings.differences(lab.folder).items()}


def _of(out: Outcome, *kinds: str) -> list[dict[str, Any]]:
    return sorted((one for one in out.incidents if one["kind"] in kinds), key=lambda one: one["opened_at_s"])


def _named(out: Outcome, *kinds: str) -> float:
    """1 if the first suspect of every incident of `kinds` is who was at fault, and there is one."""
    first = [one["suspects"][0].get("rank") if one["suspects"] else None for one in _of(out, *kinds)]
    return float(bool(first) and all(rank == FAULTY for rank in first))
