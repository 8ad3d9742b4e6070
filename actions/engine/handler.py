"""The engine: turns incidents into actions, and never the same one twice.

An action is on the bus as ``started`` before the launcher is called, and the launcher is called with the action's id,
which it carries out once. So whatever is killed when, the next engine reads its own records, asks the launcher what is
true of those without an end, and goes on. All planning follows from memory and time, not from single messages.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from actions import launchers
from actions.engine.launch_calls import LauncherCalls
from actions.engine.memory import Case, Memory, with_outcome
from actions.engine.planner import Intent, Planner, View
from actions.engine.policy import Policy, PolicyConfig
from trainwarden import plugins
from trainwarden.bus.address import connect
from trainwarden.clock import Clock, SystemClock
from trainwarden.protocols import Bus, Consumer, Launcher, Message
from trainwarden.records import ActionRecord, IncidentRecord, Outcome, Record
from trainwarden.self_metrics import SelfMetrics
from trainwarden.service import Output, ServiceLoop
from trainwarden.settings import EngineSettings, Settings, parse
from trainwarden.topics import ACTIONS, COMMANDS, INCIDENTS, Topic

log = logging.getLogger("trainwarden.engine")

MEMORY_S = 7 * 86_400.0
FORGET_INTERVAL_S = 600.0
RETRY_S = 1.0


class EngineHandler:
    """A `trainwarden.service.Handler` that joins incidents, commands and its own records.

    Parameters
    ----------
    settings : EngineSettings
        Mode, budget, cool-down.
    launcher : Launcher
        Whatever started the job.
    job : str, optional
        Act on this job only (a local launcher runs one); the consumer group is then this job's own.
    policy : PolicyConfig, optional
        Costs and limits.
    """

    topics: Sequence[Topic[Any]] = (INCIDENTS, COMMANDS)

    def __init__(
        self,
        settings: EngineSettings,
        launcher: Launcher,
        clock: Clock,
        metrics: SelfMetrics,
        *,
        job: str | None = None,
        policy: PolicyConfig | None = None,
    ) -> None:
        self.group = "engine" if job is None else f"engine-{job}"
        self._clock, self._metrics, self._job = clock, metrics, job
        self._calls = LauncherCalls(launcher, metrics)
        self._policy = Policy(settings, policy)
        self._planner = Planner(self._policy)
        self._memory = Memory(self._policy.ladder)
        self._bus: Bus | None = None
        self._outbox: list[Output] = []
        self._recorded: set[str] = set()  # `started` known to be kept on the bus
        self._inherited: set[str] = set()  # `started` by an engine before this one, to be reconciled
        self._retry_at_s: dict[str, float] = {}
        self._forget_at_s = 0.0

    # --- trainwarden.service.Handler ---------------------------------------------------------------------------------

    def start(self, bus: Bus, consumer: Consumer) -> None:
        """Rebuild memory from the bus: incidents, commands, and what engines before this one did."""
        self._bus = bus
        since_s = self._clock.now_s() - MEMORY_S
        memory = Memory(self._policy.ladder)
        for topic in (ACTIONS, COMMANDS, INCIDENTS):
            for message in bus.read(topic, from_time_s=since_s):
                self._take(memory, message.record)
        for _, record in self._outbox:
            memory.take(record)
        self._memory = memory
        started = {name for name, action in memory.actions.items() if action.outcome == "started"}
        self._inherited |= started - self._recorded
        for name in started - {a.id for case in memory.cases for a in memory.of_incident(case)}:
            self._end(memory.actions[name], "failed", f"{memory.actions[name].why}; its incident is no longer known")
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
        unfinished = [a for a in self._memory.of_incident(case.incident.id) if a.outcome == "started"]
        for action in unfinished:
            self._continue(action, case, now_s)
        if unfinished:
            return
        view = View(
            now_s=now_s,
            case=case,
            memory=self._memory,
            state=lambda: self._calls.state(case.incident.job, now_s),
            away_s=lambda: self._calls.away_s(case.incident.job, now_s),
        )
        intent = self._planner.next(view)
        if intent is not None:
            self._decide(intent, case, now_s)

    def _decide(self, intent: Intent, case: Case, now_s: float) -> None:
        """Propose, hold, skip or carry out; each is recorded once, not at every tick."""
        incident, mode = case.incident, self._policy.mode
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
        elif hold := self._policy.hold(now_s, self._memory.actions.values(), self._memory.stopped_by(incident.job)):
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
        for key, record in self._outbox:  # what was decided before must stand before it
            self._bus.publish(ACTIONS if isinstance(record, ActionRecord) else INCIDENTS, key, record)
        self._outbox = []
        self._memory.take(action)
        self._count(action)
        self._bus.publish(ACTIONS, action.job, action)
        self._continue(action, case, now_s)

    def _continue(self, action: ActionRecord, case: Case, now_s: float) -> None:
        """Bring a ``started`` action to its end."""
        assert self._bus is not None
        if action.id not in self._recorded:
            self._bus.flush()
            self._recorded.add(action.id)
        if now_s < self._retry_at_s.get(action.id, 0.0):
            return
        if action.id in self._inherited and self._reconciled(action, case, now_s):
            return
        outcome, why = self._calls.carry_out(action)
        if outcome == "done":
            self._end(action, "done", action.why)
        elif outcome == "refused":
            self._end(action, "failed", f"{action.why}; the launcher refused: {why}")
        else:
            self._retry(action, now_s, why)

    def _reconciled(self, action: ActionRecord, case: Case, now_s: float) -> bool:
        """Settle what an earlier engine started by what the launcher says is true; False if it is still to be done."""
        state = self._calls.state(action.job, now_s)
        if state is None:
            self._retry(action, now_s, "the launcher cannot be reached")
            return True
        self._inherited.discard(action.id)
        if action.id in state.operations:
            self._end(action, "done", f"{action.why}; the launcher had done it before the engine was restarted")
            return True
        unwanted = not case.open and not action.plan.get("after_close")
        if unwanted or self._policy.mode == "observe":
            reason = "the incident closed" if unwanted else "the engine was told to observe only"
            self._end(action, "failed", f"{action.why}; {reason} before the launcher heard of it")
            return True
        return False

    def _retry(self, action: ActionRecord, now_s: float, why: str) -> None:
        if now_s - action.at_s > self._policy.config.launcher_deadline_s:
            self._end(action, "failed", f"{action.why}; {why}")
        else:
            self._retry_at_s[action.id] = now_s + RETRY_S

    def _end(self, action: ActionRecord, outcome: Outcome, why: str) -> None:
        self._retry_at_s.pop(action.id, None)
        self._inherited.discard(action.id)
        self._calls.forget_state(action.job)
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
        The run folder, where the local launcher listens unless its settings say otherwise.

    Raises
    ------
    ConfigError
        If the launcher or its settings are wrong.
    BusUnavailable
        If the bus cannot be opened.
    """
    engine = settings.engine
    plugin = plugins.load(launchers.CATALOG, launchers.ENTRY_POINTS, engine.launcher)
    local = engine.launcher == "local"
    raw = {"run_dir": str(run_dir), **engine.launcher_settings} if local else engine.launcher_settings
    launcher: Launcher = plugin(plugins.configure(plugin, raw, f"engine.launcher_settings ({engine.launcher})"))
    metrics = SelfMetrics("engine")
    if engine.metrics_port is not None:
        metrics.serve(engine.metrics_port)
    clock = SystemClock()
    policy = parse(PolicyConfig, engine.policy, "engine.policy")
    job = settings.job if local else None
    handler = EngineHandler(engine, launcher, clock, metrics, job=job, policy=policy)
    bus = connect(settings.bus, settings.kafka)
    try:
        ServiceLoop(bus, handler, clock, metrics).run(stop)
    finally:
        bus.close()
