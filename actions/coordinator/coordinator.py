"""The coordinator: plans anew when a node is lost or back, a job comes or ends, or an incident closes, and acts on it.

It acts by the engine's own parts: ``started`` is on the bus before a launcher hears of an order, orders are carried out
once by their ids, and trust, modes, brakes and budgets are the engine's. What is planned follows from what launchers
say now, so a coordinator that was killed goes on from there.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Protocol, runtime_checkable

import msgspec

from trainwarden.actions.brakes.active_brake import ActiveBrake, BrakeInput
from trainwarden.actions.brakes.history import begun
from trainwarden.actions.coordinator.reallocation import Member, Step, available, member_of, next_steps, plan
from trainwarden.actions.coordinator.throughput import ThroughputMeter
from trainwarden.actions.coordinator.waf import Worth
from trainwarden.actions.engine.action_executor import ActionExecutor
from trainwarden.actions.engine.approval import unapproved
from trainwarden.actions.engine.launcher_client import LauncherClient
from trainwarden.actions.engine.operation_tracker import ActionResult, OperationTracker
from trainwarden.actions.engine.outbox import Outbox
from trainwarden.actions.remedies.engine_state import EngineState
from trainwarden.actions.remedies.policy import Rules
from trainwarden.clock import Clock, SteadyClock
from trainwarden.commands.gate import CommandGate
from trainwarden.commands.trust import Trust, in_order
from trainwarden.launching import COORDINATOR_MARK, Launcher
from trainwarden.protocols import Bus, Consumer, Message
from trainwarden.records import ActionRecord, IncidentRecord, IterationRecord, TaskRecord, TaskStatus
from trainwarden.self_metrics import SelfMetrics
from trainwarden.service_loop import Output
from trainwarden.settings import CoordinatorSettings
from trainwarden.topics import ACTIONS, COMMANDS, INCIDENTS, ITERATIONS, TASKS, Topic

log = logging.getLogger("trainwarden.coordinator")

MEMORY_S: Final = 7 * 86_400.0
SETTLED_S: Final = 1.0  # nodes come and go one by one within a moment: one plan is made for all of them
DISCOVER_S: Final = 1.0
FORGET_INTERVAL_S: Final = 600.0
REPORT_S: Final = 15.0
MOST_TRIES: Final = 3  # of an order that its launcher refused, or could not carry out
OVER: Final = ("ended", "stopping")


@runtime_checkable
class ListsJobs(Protocol):
    """A launcher that can say which jobs it runs."""

    def jobs(self) -> Sequence[TaskRecord]:
        """Each as a task, as its nodes were started."""
        ...


class _Situation(msgspec.Struct, frozen=True):
    """What a plan is made from, but for numbers: a change of it asks for another plan."""

    jobs: frozenset[str] = frozenset()
    nodes: frozenset[str] = frozenset()

    def since(self, before: _Situation) -> list[str]:
        """What has happened."""
        return [
            *(f"lost:{node}" for node in sorted(before.nodes - self.nodes)),
            *(f"back:{node}" for node in sorted(self.nodes - before.nodes)),
            *(f"finished:{job}" for job in sorted(before.jobs - self.jobs)),
            *(f"launched:{job}" for job in sorted(self.jobs - before.jobs)),
        ]


class _Goal(msgspec.Struct, frozen=True):
    """What is being worked towards since `event`."""

    event: str
    assignment: dict[str, int]


class Coordinator:
    """A `trainwarden.service_loop.Handler` for all jobs of one cluster; one such service is to run.

    Parameters
    ----------
    rules : Rules
        The engine's: mode (of ``reconfigure``), brakes, limits.
    launcher : Launcher
        One that runs many jobs.
    """

    topics: Sequence[Topic[Any]] = (TASKS, INCIDENTS, ITERATIONS)
    group = "coordinator"

    def __init__(
        self,
        settings: CoordinatorSettings,
        rules: Rules,
        launcher: Launcher,
        clock: Clock,
        metrics: SelfMetrics,
        *,
        gate: CommandGate | None = None,
    ) -> None:
        clock = SteadyClock(clock)
        self._settings, self._rules, self._clock, self._metrics = settings, rules, clock, metrics
        self._launcher = launcher
        self._calls = LauncherClient(launcher, metrics)
        self._gate = gate or CommandGate(Trust(), None, clock, metrics)
        self._under_way = OperationTracker(self._calls, rules.config, lambda _action: ())
        self._outbox = Outbox(metrics, self._gate.sealed)
        self._acting = ActionExecutor(
            self._calls, self._under_way, clock, metrics,
            outbox=self._outbox, memory=self._empty(), take=self._hear,
        )  # fmt: skip
        self._tasks: dict[str, TaskRecord] = {}
        self._meter, self._worth = ThroughputMeter(), Worth()
        self._situation, self._seen, self._seen_s = _Situation(), _Situation(), 0.0
        self._events: list[str] = []
        self._closed: dict[str, float] = {}  # incidents, and when each was heard to be closed
        self._over: set[str] = set()  # jobs of which a launcher says that they have ended
        self._goal: _Goal | None = None
        self._last_event = ""
        self._news: list[Output] = []
        self._reported: dict[str, TaskRecord] = {}
        self._discover_at_s = self._report_at_s = self._forget_at_s = float("-inf")
        self._since_s = clock.now_s()

    def _empty(self) -> EngineState:
        return EngineState(self._rules.remedies.ladder)

    # --- trainwarden.service_loop.Handler ----------------------------------------------------------------------------

    def start(self, bus: Bus, consumer: Consumer) -> None:
        """Rebuild memory: what was registered, ordered and commanded."""
        now_s = self._clock.now_s()
        self._acting.connect(bus, now_s)
        memory = self._empty()
        for message in bus.read(ACTIONS, from_time_s=now_s - MEMORY_S):
            memory.apply(message.record, message.offset, message.time_s)
        for message in in_order(bus.read(COMMANDS, from_time_s=None)):
            if self._gate.admits(message):
                memory.apply(message.record, message.offset, message.time_s)
        self._outbox.remind(memory)
        for message in bus.read(TASKS, from_time_s=None):
            if isinstance(message.record, TaskRecord):
                self._register(message.record)
        foreign = {one.cause for one in memory.under_way.values() if one.kind != "reconfigure"}
        started = self._acting.take_over(memory, foreign)
        for one in self._settings.tasks:
            self._put(TaskRecord(id=one.job, at_s=now_s, by="settings", **msgspec.structs.asdict(one)))
        log.info("coordinator ready", extra={"fields": {"tasks": len(self._tasks), "unfinished": len(started)}})

    def handle(self, messages: Sequence[Message]) -> Iterable[Output]:
        """Apply registrations, steps and closed incidents."""
        for message in messages:
            match message.record:
                case TaskRecord():
                    self._register(message.record)
                case IterationRecord():
                    if message.record.job in self._tasks:
                        self._meter.apply(message.record, self._clock.now_s())
                case IncidentRecord(wants_action=False, job=job, id=name) if job in self._tasks:
                    if name not in self._closed and message.time_s >= self._since_s:
                        self._closed[name] = message.time_s
                        self._events.append(f"closed:{name}")
                case _:
                    pass
        return ()

    def tick(self, now_s: float) -> Iterable[Output]:
        """Plan where something has changed, and go on with what was planned.

        Raises
        ------
        BusUnavailable
            If ``started`` could not be kept. Nothing was done then; the next tick tries again.
        """
        now_s = min(now_s, self._clock.now_s())
        if self._acting.listen() is not None:
            self._discover(now_s)
            unfinished = [a for a in self._acting.memory.under_way.values() if a.id in self._acting.mine]
            for action in unfinished:
                self._continue(action, now_s)
            if (members := self._members(now_s)) is not None:
                self._notice(members, now_s)
                if not unfinished:
                    self._replan(members, now_s)
                    self._follow(members, now_s)
                self._report(members, now_s)
        if now_s >= self._forget_at_s:
            self._forget_at_s = now_s + FORGET_INTERVAL_S
            self._acting.memory.forget(now_s - MEMORY_S)
            self._acting.forget()
            self._closed = {name: at_s for name, at_s in self._closed.items() if at_s >= now_s - MEMORY_S}
        news, self._news = self._news, []
        return [*news, *self._outbox.empty()]

    def _hear(self, message: Message) -> bool:
        if taken := self._gate.admits(message):
            self._acting.memory.apply(message.record, message.offset, message.time_s)
        return taken

    # --- tasks and nodes ---------------------------------------------------------------------------------------------

    def _register(self, record: TaskRecord) -> None:
        if record.finished and record.by != "settings":  # its launcher names it if it is started again
            self._tasks.pop(record.job, None)
            return
        known = self._tasks.get(record.job)
        if record.status is None and known is not None:
            record = msgspec.structs.replace(record, status=known.status)
        self._tasks[record.job] = record

    def _put(self, record: TaskRecord) -> None:
        """Register a task that is new, or other than it was."""
        known = self._tasks.get(record.job)
        if known is not None:
            if known.by == "settings" != record.by:
                return  # what a person has written counts
            record = msgspec.structs.replace(record, status=known.status, finished=known.finished)
            if msgspec.structs.replace(known, at_s=record.at_s) == record:
                return
        self._register(record)
        self._news.append((record.job, record))

    def _discover(self, now_s: float) -> None:
        """Register what the launcher says that it runs."""
        if now_s < self._discover_at_s or not isinstance(self._launcher, ListsJobs):
            return
        self._discover_at_s = now_s + DISCOVER_S
        for record in self._calls.ask_jobs(self._launcher.jobs):
            self._put(msgspec.structs.replace(record, at_s=now_s))

    def _members(self, now_s: float) -> list[Member] | None:
        """All tasks that run or want to; None while the state of one that did is not known: nothing is concluded."""
        curves = self._meter.curves(list(self._tasks.values()))
        members = []
        self._over.clear()
        for job, task in self._tasks.items():
            state = self._calls.state(job, now_s)
            away_s, _ = self._calls.away(job, now_s)
            if state is None and job in self._seen.jobs and away_s < self._rules.config.launcher_deadline_s:
                return None
            if state is None:
                continue
            over = state.phase in OVER
            if over != task.finished:
                self._tasks[job] = msgspec.structs.replace(task, finished=over)
            if over:
                self._over.add(job)
                self._meter.forget(job)
                continue
            running = state.phase == "running"
            hit = bool({one.node for one in state.nodes if one.state == "lost"}) or state.phase == "restarting"
            one = member_of(task, curves[job], state, faulted=hit)
            ready = running and len(state.ranks_running) > 0
            self._meter.observe(job, sum(bool(node.ranks) for node in state.nodes) if ready else None, now_s)
            members.append(one)
        return members

    def _notice(self, members: Sequence[Member], now_s: float) -> None:
        """Note what has happened once it stands for a moment."""
        found = _Situation(frozenset(one.task.job for one in members), frozenset(available(members)))
        if found != self._seen:
            self._seen, self._seen_s = found, now_s
        if now_s - self._seen_s >= SETTLED_S and self._seen != self._situation:
            self._events += self._seen.since(self._situation)
            self._situation = self._seen

    # --- plans -------------------------------------------------------------------------------------------------------

    def _replan(self, members: Sequence[Member], now_s: float) -> None:
        if not self._events or self._seen != self._situation or now_s < self._cooling_until_s(members):
            return
        events, self._events = self._events, []
        name = events[0] if len(events) == 1 else f"{events[0]}+{len(events) - 1}"
        answer = plan(members, self._settings.running_s, self._settings.transition_s)
        self._goal = _Goal(f"{name}-{now_s:.0f}", answer.assignment)
        self._last_event = ", ".join(events)[:200]
        fields = {"event": self._last_event, "assignment": answer.assignment}
        log.info("planned", extra={"fields": fields})

    def _cooling_until_s(self, members: Sequence[Member]) -> float:
        of_jobs = (action for one in members for action in self._acting.memory.of_job(one.task.job))
        own = [action for action in of_jobs if action.kind == "reconfigure"]
        return self._rules.brakes.cooling_until_s("reconfigure", own)

    def _follow(self, members: Sequence[Member], now_s: float) -> None:
        """The next orders on the way to the goal; once there are none it is reached, as far as it can be."""
        if (goal := self._goal) is None:
            return
        steps = next_steps(members, goal.assignment)
        if not steps and not any(one.leaving for one in members) and self._rules.mode_of("reconfigure") != "observe":
            self._goal = None
        for step in steps:
            self._decide(step, goal, now_s)

    def _decide(self, step: Step, goal: _Goal, now_s: float) -> None:
        """Propose, hold, skip or carry out; each is recorded once."""
        action = self._action(step, goal, now_s)
        mode, memory = self._rules.mode_of("reconfigure"), self._acting.memory
        known = memory.actions.get(action.id)
        if mode == "observe":
            if known is None:
                self._outbox.put(action, memory)
            return
        if (by := memory.denied.get(action.id)) is not None:
            self._acting.skip(action, now_s, f"denied by {by}")
            return
        able = self._calls.capabilities(now_s)
        if able is None or action.id.endswith(f"/{MOST_TRIES + 1}"):
            return
        if (why_not := able.refusal(step.verb)) is not None:
            self._acting.skip(action, now_s, why_not)
        elif (agreed := self._acting.agreed(action, mode, now_s, self._rules.config.replan_s)) is not None:
            brake = self._brake(agreed, now_s)
            if brake is not None:
                self._acting.skip(agreed, now_s, brake)
            elif (started := self._acting.start(agreed, now_s)) is not None:
                self._continue(started, now_s)

    def _brake(self, action: ActionRecord, now_s: float) -> ActiveBrake | None:
        memory, state = self._acting.memory, self._calls.state(action.job, now_s)
        asked = BrakeInput(
            action=action, actions=memory.beside(action.job), said_s=memory.said_s,
            stopped_by=memory.stopped_by(action.job), nodes=() if state is None else state.nodes,
        )  # fmt: skip
        return self._rules.brakes.hold(now_s, asked)

    def _action(self, step: Step, goal: _Goal, now_s: float) -> ActionRecord:
        prefix = f"cluster/{goal.event}/{step.verb}/{step.node}/{step.job}/"
        tries = sum(a.id.startswith(prefix) and begun(a) for a in self._acting.memory.of_job(step.job))
        what = f"takes {step.node} from {step.job}" if step.verb == "evict" else f"gives {step.node} to {step.job}"
        return ActionRecord(
            id=f"{prefix}{tries + 1}", job=step.job, kind="reconfigure", outcome="proposed", at_s=now_s,
            why=f"{COORDINATOR_MARK}{what} after {goal.event.rpartition('-')[0]}",
            plan={"verb": step.verb, "nodes": [step.node], "event": goal.event, "assignment": goal.assignment},
        )  # fmt: skip

    def _continue(self, action: ActionRecord, now_s: float) -> None:
        if action.kind != "reconfigure":
            self._acting.end(action, ActionResult("failed", f"{action.why}; it is no order of the coordinator's"))
            return
        self._acting.go_on(action, now_s, lambda: self._why_not(action))

    def _why_not(self, action: ActionRecord) -> str | None:
        """Why the launcher should not hear of an order that was begun any more."""
        memory, mode = self._acting.memory, self._rules.mode_of("reconfigure")
        if (by := memory.stopped_by(action.job)) is not None:
            return f"all acting was stopped by {by}"
        if mode == "observe":
            return "the coordinator was told to observe only"
        asks = mode == "confirm" and self._gate.asks
        return unapproved(action, memory.approved.get(action.id)) if asks else None

    # --- what is said ------------------------------------------------------------------------------------------------

    def _report(self, members: Sequence[Member], now_s: float) -> None:
        goal: Mapping[str, int] = {} if self._goal is None else self._goal.assignment
        worth, usable = self._worth.observe(members, goal, now_s), set(available(members))
        for name in ("now", "planned", "restart_only"):
            total = sum(values[name] for values in worth.values())
            text = "Weighted throughput of all jobs: now, as planned, and if jobs were only restarted."
            self._metrics.gauge("waf", text, total, plan=name)
        due = now_s >= self._report_at_s
        self._report_at_s = now_s + REPORT_S if due else self._report_at_s
        by_job = {one.task.job: one for one in members}
        for job, task in list(self._tasks.items()):
            status = self._status(by_job[job], goal, worth[job], usable) if job in by_job else TaskStatus(phase="ended")
            record = msgspec.structs.replace(task, at_s=now_s, finished=job not in by_job, status=status)
            if due or _differs(self._reported.get(job), record):
                self._tasks[job] = self._reported[job] = record
                self._news.append((job, record))
            if job in self._over and task.by != "settings":
                del self._tasks[job]
                self._reported.pop(job, None)
        self._worth.forget(self._tasks)

    def _status(
        self, member: Member, goal: Mapping[str, int], worth: Mapping[str, float], usable: set[str]
    ) -> TaskStatus:
        job = member.task.job
        return TaskStatus(
            nodes=member.holds, planned=goal.get(job, len(member.holds)),
            restart_only=self._worth.restart_only.nodes(member, usable),
            throughput=member.curve.throughput, assumed=member.curve.assumed, waf=dict(worth),
            waf_s=dict(self._worth.sums.get(job, {})), mode=self._rules.mode_of("reconfigure"),
            event=self._last_event, phase="running" if member.runs else "waiting",
        )  # fmt: skip


def _differs(before: TaskRecord | None, now: TaskRecord) -> bool:
    """Whether nodes, plan or phase are others than were said last."""
    if before is None or before.status is None or now.status is None:
        return True
    one, other = before.status, now.status
    return (one.nodes, one.planned, one.restart_only, one.phase, one.event, before.finished) != (
        other.nodes, other.planned, other.restart_only, other.phase, other.event, now.finished,
    )  # fmt: skip
