"""The engine: turns incidents into actions, and never the same one twice.

An action is on the bus as ``started`` before the launcher hears of it, and the launcher hears of it under the action's
id, which it carries out once. So whatever is killed when, the next engine reads its own records, asks the launcher how
far those without an end are, and goes on. No tick waits for the launcher to be done: an operation is submitted at one
and asked about at later ones. All planning follows from memory and time, not from single messages.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from actions import launchers
from actions.engine.calls import VERBS, LauncherCalls
from actions.engine.memory import Case, Memory, with_outcome
from actions.engine.planner import next_intent
from actions.engine.policy import Rules
from actions.engine.under_way import UnderWay
from actions.engine.view import Intent, View
from trainwarden import plugins
from trainwarden.bus.address import connect
from trainwarden.clock import Clock, SystemClock
from trainwarden.launching import NODE_VERBS, Launcher
from trainwarden.protocols import Bus, Consumer, Message, Scope
from trainwarden.records import ActionRecord, IncidentRecord, Outcome, Record
from trainwarden.self_metrics import SelfMetrics
from trainwarden.service import Output, ServiceLoop
from trainwarden.settings import EngineSettings, Settings
from trainwarden.topics import ACTIONS, COMMANDS, INCIDENTS, Topic

log = logging.getLogger("trainwarden.engine")

MEMORY_S = 7 * 86_400.0
FORGET_INTERVAL_S = 600.0


class EngineHandler:
    """A `trainwarden.service.Handler` that joins incidents, commands and its own records.

    Parameters
    ----------
    rules : Rules
        Mode, limits, brakes, remedies.
    launcher : Launcher
        Whatever started the job. If it runs one job only, so does the engine, in a consumer group of its own.
    """

    topics: Sequence[Topic[Any]] = (INCIDENTS, COMMANDS)

    def __init__(self, rules: Rules, launcher: Launcher, clock: Clock, metrics: SelfMetrics) -> None:
        self._rules, self._clock, self._metrics, self._job = rules, clock, metrics, launcher.job
        self.group = "engine" if self._job is None else f"engine-{self._job}"
        self._calls = LauncherCalls(launcher, metrics)
        self._under_way = UnderWay(self._calls, rules.config)
        self._memory = Memory(rules.remedies.ladder)
        self._bus: Bus | None = None
        self._outbox: list[Output] = []
        self._recorded: set[str] = set()  # `started` known to be kept on the bus
        self._forget_at_s = 0.0

    # --- trainwarden.service.Handler ---------------------------------------------------------------------------------

    def start(self, bus: Bus, consumer: Consumer) -> None:
        """Rebuild memory from the bus: incidents, commands, and what engines before this one did."""
        self._bus = bus
        since_s = self._clock.now_s() - MEMORY_S
        memory = Memory(self._rules.remedies.ladder)
        for topic in (ACTIONS, COMMANDS, INCIDENTS):
            for message in bus.read(topic, from_time_s=since_s):
                self._take(memory, message.record)
        for _, record in self._outbox:
            memory.take(record)
        self._memory = memory
        started = list(memory.under_way.values())
        self._under_way.inherit(action.id for action in started if action.id not in self._recorded)
        for action in started:
            if action.incident not in memory.cases:
                self._end(action, "failed", f"{action.why}; its incident is no longer known")
        log.info("engine ready", extra={"fields": {"incidents": len(memory.cases), "unfinished": len(started)}})

    def handle(self, messages: Sequence[Message]) -> Iterable[Output]:
        """Take messages in. What follows from them is decided in `tick`."""
        for message in messages:
            self._take(self._memory, message.record)
        return ()

    def tick(self, now_s: float) -> Iterable[Output]:
        """Go on with every incident that asks for something.

        Raises
        ------
        BusUnavailable
            If ``started`` could not be kept. Nothing was done then; the next tick tries again.
        """
        for case in list(self._memory.cases.values()):
            self._advance(case, now_s)
        if now_s >= self._forget_at_s:
            self._forget_at_s = now_s + FORGET_INTERVAL_S
            self._memory.forget(now_s - MEMORY_S)
        open_cases = sum(case.open for case in self._memory.cases.values())
        self._metrics.gauge("open_incidents", "Incidents that last now.", open_cases)
        outputs, self._outbox = self._outbox, []
        return outputs

    def _take(self, memory: Memory, record: Record) -> None:
        if self._job is None or getattr(record, "job", None) in (self._job, "*"):
            memory.take(record)

    # --- one incident ------------------------------------------------------------------------------------------------

    def _advance(self, case: Case, now_s: float) -> None:
        unfinished = [a for a in self._memory.under_way.values() if a.incident == case.incident.id]
        for action in unfinished:
            self._continue(action, case, now_s)
        if unfinished or self._busy(case.incident.job):
            return
        view = View(
            now_s=now_s,
            case=case,
            memory=self._memory,
            rules=self._rules,
            state=lambda: self._calls.state(case.incident.job, now_s),
            capabilities=lambda: self._calls.capabilities(now_s),
            away_s=lambda: self._calls.away_s(case.incident.job, now_s),
        )
        intent = next_intent(view)
        if intent is not None:
            self._decide(intent, case, now_s)

    def _busy(self, job: str) -> bool:
        """Whether something is being done to the job's ranks; a node may be drained for hours beside that."""
        return any(a.job == job and VERBS.get(a.kind) not in NODE_VERBS for a in self._memory.under_way.values())

    def _decide(self, intent: Intent, case: Case, now_s: float) -> None:
        """Propose, hold, skip or carry out; each is recorded once, not at every tick."""
        incident, mode = case.incident, self._rules.mode
        known = self._memory.actions.get(intent.id)
        action = ActionRecord(
            id=intent.id,
            incident=incident.id,
            job=incident.job,
            kind=intent.kind,
            outcome="proposed",
            at_s=now_s,
            why=intent.why,
            plan=intent.plan,
        )
        if intent.refused is not None:
            self._skip(known, action, now_s, intent.refused, intent.held)
        elif mode == "observe":
            if known is None:
                self._emit(action)
        elif (by := self._memory.denied.get(intent.id)) is not None:
            self._skip(known, action, now_s, f"denied by {by}", None)
        elif mode == "confirm" and intent.id not in self._memory.approved:
            if known is None:
                self._emit(action)
        elif hold := self._rules.brakes.hold(
            now_s, self._memory.actions.values(), self._memory.stopped_by(incident.job)
        ):
            self._skip(known, action, now_s, hold.why, hold.name)
        else:
            self._carry_out(with_outcome(action, "started", now_s), case, now_s)

    def _skip(self, known: ActionRecord | None, action: ActionRecord, now_s: float, why: str, held: str | None) -> None:
        """Record that `action` is not done; `held` names a brake that may go off again, else this is final."""
        if known is not None and known.outcome == "skipped" and known.plan.get("held") == held:
            return
        plan = {**action.plan, "held": held} if held else action.plan
        self._emit(msgspec.structs.replace(with_outcome(action, "skipped", now_s, why), plan=plan))

    def _carry_out(self, action: ActionRecord, case: Case, now_s: float) -> None:
        """Keep `started` on the bus, and only then call the launcher."""
        assert self._bus is not None
        state = self._calls.state(action.job, now_s)
        if state is None:
            return  # without a generation nothing can be asked of it; the next tick sees again
        action = msgspec.structs.replace(action, generation=state.generation)
        for key, record in self._outbox:  # what was decided before must stand before it
            self._bus.publish(ACTIONS if isinstance(record, ActionRecord) else INCIDENTS, key, record)
        self._outbox = []
        self._memory.take(action)
        self._count(action)
        self._bus.publish(ACTIONS, action.job, action)
        self._continue(action, case, now_s)

    def _continue(self, action: ActionRecord, case: Case, now_s: float) -> None:
        """Bring a ``started`` action one step nearer to its end."""
        assert self._bus is not None
        if action.id not in self._recorded:
            self._bus.flush()
            self._recorded.add(action.id)
        unwanted = None
        if not case.open and not action.plan.get("after_close"):
            unwanted = "the incident closed"
        elif self._rules.mode == "observe":
            unwanted = "the engine was told to observe only"
        by = self._memory.approved.get(action.id, "engine")
        end = self._under_way.go_on(action, now_s, by=by, unwanted=unwanted)
        if end is not None:
            self._end(action, end.outcome, end.why)

    def _end(self, action: ActionRecord, outcome: Outcome, why: str) -> None:
        self._emit(with_outcome(action, outcome, self._clock.now_s(), why))
        if action.kind == "stop_job" and (loop := action.plan.get("restart_loop")):
            self._outbox.append((action.job, _restart_loop_incident(action, int(loop))))

    def _emit(self, action: ActionRecord) -> None:
        self._memory.take(action)
        self._count(action)
        self._outbox.append((action.job, action))

    def _count(self, action: ActionRecord) -> None:
        self._metrics.count(
            "actions_total", "Actions by what became of them.", kind=action.kind, outcome=action.outcome
        )
        fields = {"action": action.id, "kind": action.kind, "outcome": action.outcome, "why": action.why}
        log.info("action", extra={"fields": fields})


def _restart_loop_incident(action: ActionRecord, restarts: int) -> IncidentRecord:
    """The sev1 incident that a person must look at once restarts have not helped."""
    return IncidentRecord(
        id=f"restart-loop/{action.incident}",
        job=action.job,
        kind="restart_loop",
        severity="sev1",
        state="opened",
        revision=0,
        opened_at_s=action.at_s,
        updated_at_s=action.at_s,
        reason=f"{restarts} restarts have not helped, so the job was stopped",
    )


def serve(settings: Settings, run_dir: Path, stop: Callable[[], bool]) -> None:
    """Run the engine until `stop()` is true.

    Parameters
    ----------
    run_dir : Path
        The run folder, which the launcher is told of.

    Raises
    ------
    ConfigError
        If the launcher, its settings, the limits or the table of remedies are wrong.
    BusUnavailable
        If the bus cannot be opened.
    """
    rules = Rules.of(settings.engine)
    launcher = make_launcher(settings.engine, Scope(job=settings.job, node=settings.node, run_dir=str(run_dir)))
    metrics = SelfMetrics("engine")
    if settings.engine.metrics_port is not None:
        metrics.serve(settings.engine.metrics_port)
    clock = SystemClock()
    handler = EngineHandler(rules, launcher, clock, metrics)
    bus = connect(settings.bus, settings.kafka, limit_bytes=settings.runs.bus_bytes)
    try:
        ServiceLoop(bus, handler, clock, metrics).run(stop)
    finally:
        bus.close()


def make_launcher(engine: EngineSettings, scope: Scope) -> Launcher:
    """The launcher that `engine` names, told where it is.

    Raises
    ------
    ConfigError
        If there is none of that name or its settings are wrong.
    """
    plugin = plugins.load(launchers.CATALOG, launchers.ENTRY_POINTS, engine.launcher)
    config = plugins.configure(plugin, engine.launcher_settings, f"engine.launcher_settings ({engine.launcher})")
    launcher: Launcher = plugin(config, scope)
    return launcher
