"""The engine: turns incidents into actions, and never the same one twice.

An action is on the bus as ``started`` before the launcher hears of it, and the launcher hears of it under the action's
id, which it carries out once. So whatever is killed when, the next engine reads its own records, asks the launcher how
far those without an end are, and goes on. No tick waits for the launcher to be done: an operation is submitted at one
and asked about at later ones. All planning follows from memory and time, not from single messages.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any

from trainwarden.actions.brakes.active_brake import ActiveBrake, BrakeInput
from trainwarden.actions.brakes.history import NODES_OUT
from trainwarden.actions.brakes.nodes import TAKEN
from trainwarden.actions.engine.action_executor import ActionExecutor
from trainwarden.actions.engine.control_consumer import OVERLAP_S
from trainwarden.actions.engine.cordons import CordonExecutor
from trainwarden.actions.engine.launcher_client import LauncherClient, verb_of
from trainwarden.actions.engine.operation_tracker import ActionResult, OperationTracker
from trainwarden.actions.engine.outbox import Outbox
from trainwarden.actions.engine.preconditions import asked_of, cancel_reason
from trainwarden.actions.remedies.adoption import Adoptions
from trainwarden.actions.remedies.engine_state import EngineState, IncidentState
from trainwarden.actions.remedies.planner import next_intent
from trainwarden.actions.remedies.policy import Rules
from trainwarden.actions.remedies.view import Intent, PlanningContext
from trainwarden.clock import Clock, SteadyClock
from trainwarden.commands.builders import EVERY_JOB
from trainwarden.commands.gate import CommandGate
from trainwarden.commands.trust import Trust, in_order
from trainwarden.errors import WardenError
from trainwarden.launching import NODE_VERBS, Launcher
from trainwarden.protocols import Bus, Consumer, Message
from trainwarden.records import ActionRecord, CommandRecord, IncidentRecord
from trainwarden.self_metrics import SelfMetrics
from trainwarden.service_loop import Output
from trainwarden.topics import ACTIONS, COMMANDS, EVENTS, INCIDENTS, Topic

log = logging.getLogger("trainwarden.engine")

MEMORY_S = 7 * 86_400.0
FORGET_INTERVAL_S = 600.0


class EngineHandler:
    """A `trainwarden.service_loop.Handler` that joins incidents, commands and its own records.

    Parameters
    ----------
    rules : Rules
        Mode, limits, brakes, remedies.
    launcher : Launcher
        Whatever started the job. If it runs one job only, so does the engine, in a consumer group of its own.
    gate : CommandGate, optional
        Whose words count; everybody's, if there is none.
    """

    topics: Sequence[Topic[Any]] = (INCIDENTS, COMMANDS)

    def __init__(
        self, rules: Rules, launcher: Launcher, clock: Clock, metrics: SelfMetrics, *, gate: CommandGate | None = None
    ) -> None:
        clock = SteadyClock(clock)
        self._rules, self._clock, self._metrics, self._job = rules, clock, metrics, launcher.job
        self.group = "engine" if self._job is None else f"engine-{self._job}"
        self._calls = LauncherClient(launcher, metrics)
        self._adoptions = Adoptions()
        self._memory = EngineState(rules.remedies.ladder, self._adoptions)
        self._under_way = OperationTracker(self._calls, rules.config, self._adoptions.missing)
        self._gate = gate or CommandGate(Trust(), None, clock, metrics)
        self._outbox = outbox = Outbox(metrics, self._gate.sealed)
        memory, hear = self._memory, self._hear
        self._acting = ActionExecutor(
            self._calls, self._under_way, clock, metrics, outbox=outbox, memory=memory, take=hear
        )
        self._cordons = CordonExecutor(rules, self._acting, self._job)
        self._unplanned: set[str] = set()  # incidents of which it was said that no plan can be made
        self._forget_at_s = 0.0

    # --- trainwarden.service_loop.Handler ----------------------------------------------------------------------------

    def start(self, bus: Bus, consumer: Consumer) -> None:
        """Rebuild memory from the bus: what was ever commanded, what engines did, and the incidents of our partitions.

        Of a partition that another member owns now nothing stays: of its incidents this engine would hear no more.
        """
        now_s = self._clock.now_s()
        self._acting.connect(bus, now_s)
        memory = EngineState(self._rules.remedies.ladder, self._adoptions)
        for message in bus.read(ACTIONS, from_time_s=now_s - MEMORY_S):
            self._apply(memory, message)
        self._outbox.remind(memory)
        if splits := [action.at_s for action in memory.under_way.values() if action.kind == "rebalance"]:
            for message in bus.read(EVENTS, from_time_s=min(splits) - OVERLAP_S):
                self._apply(memory, message)
        self._cordons.forget()
        elsewhere = self._take_causes(memory, bus, consumer, now_s - MEMORY_S)
        self._memory = memory
        elsewhere |= {one.cause for one in memory.under_way.values() if one.kind == "reconfigure"}  # the coordinator's
        started = self._acting.take_over(memory, elsewhere)
        for action in started:
            if action.cause not in memory.cases and action.cause not in self._cordons:
                self._acting.end(action, ActionResult("failed", f"{action.why}; what it was about is no longer known"))
        log.info("engine ready", extra={"fields": {"incidents": len(memory.cases), "unfinished": len(started)}})

    def _take_causes(self, memory: EngineState, bus: Bus, consumer: Consumer, since_s: float) -> set[str]:
        """Apply all that was commanded, and the incidents of our own partitions; the ids of what others own."""
        owned, elsewhere = consumer.assignment(), set[str]()
        for topic, from_s in ((COMMANDS, None), (INCIDENTS, since_s)):
            for message in in_order(bus.read(topic, from_time_s=from_s)):
                if (topic.name, message.partition) in owned:
                    if self._apply(memory, message):
                        self._cordons.apply(message, since_s)
                    continue
                if isinstance(message.record, CommandRecord):
                    self._apply(memory, message)
                if isinstance(message.record, CommandRecord | IncidentRecord):
                    elsewhere.add(message.record.id)
        return elsewhere

    def handle(self, messages: Sequence[Message]) -> Iterable[Output]:
        """Take incidents and people's words in. What follows from them is decided in `tick`."""
        for message in messages:
            if self._hear(message):
                self._cordons.apply(message, self._clock.now_s() - MEMORY_S)
        return ()

    def tick(self, now_s: float) -> Iterable[Output]:
        """Go on with every incident that asks for something.

        Raises
        ------
        BusUnavailable
            If ``started`` could not be kept. Nothing was done then; the next tick tries again.
        """
        now_s = min(now_s, self._clock.now_s())
        if self._acting.listen() is not None:
            self._cordons.advance(now_s)
            idle = [case for case in list(self._memory.cases.values()) if not self._go_on(case, now_s)]
            for case in idle:
                self._plan(case, now_s)
        if now_s >= self._forget_at_s:
            self._forget_at_s = now_s + FORGET_INTERVAL_S
            self._memory.forget(now_s - MEMORY_S)
            self._acting.forget()
            self._unplanned &= self._memory.cases.keys()
        latched, lasting = (
            len(self._memory.latches.standing()),
            sum(c.wants_action for c in self._memory.cases.values()),
        )
        self._metrics.gauge("latched", "Jobs (all of them as one) whose evictions wait for a person's reset.", latched)
        self._metrics.gauge("open_incidents", "Incidents that last now, or whose job is down by them.", lasting)
        return self._outbox.empty()

    def _apply(self, memory: EngineState, message: Message) -> bool:
        """Whether `memory` has taken it in: it is about a job of ours, and its word counts."""
        ours = self._job is None or getattr(message.record, "job", None) in (self._job, EVERY_JOB)
        if taken := ours and self._gate.admits(message):
            memory.apply(message.record, message.offset, message.time_s)
        return taken

    def _hear(self, message: Message) -> bool:
        return self._apply(self._memory, message)

    # --- one incident ------------------------------------------------------------------------------------------------

    def _go_on(self, case: IncidentState, now_s: float) -> bool:
        """Whether something was under way about it, which is one step nearer to its end now."""
        unfinished = self._acting.unfinished(case.incident.id)
        for action in unfinished:
            self._continue(action, case, now_s)
        return bool(unfinished)

    def _plan(self, case: IncidentState, now_s: float) -> None:
        if self._busy(case.incident, now_s):
            return
        view = PlanningContext(
            now_s=now_s,
            case=case,
            memory=self._memory,
            rules=self._rules,
            state=lambda: self._calls.state(case.incident.job, now_s),
            capabilities=lambda: self._calls.capabilities(now_s),
            away=lambda: self._calls.away(case.incident.job, now_s),
            down_s=lambda: self._calls.down_s(case.incident.job, now_s),
        )
        intent = self._planned(view)
        if intent is not None and not (intent.kind == "rebalance" and self._under_way.adopting_in(case.incident.job)):
            self._decide(intent, case, now_s)

    def _holds_ranks(self, action: ActionRecord, now_s: float) -> bool:
        """Whether `action` is done to its job's ranks, or has just ended and may have started them again.

        The launcher's state does not list it then, and how it ended is asked before anything else is done.
        """
        if action.kind not in NODES_OUT or action.id not in self._acting.mine:
            return verb_of(action) not in NODE_VERBS
        state = self._calls.state(action.job, now_s)
        ended = state is not None and action.id not in state.under_way
        return ended and not self._under_way.answered_at(action.id, now_s)

    def _planned(self, view: PlanningContext) -> Intent | None:
        """The next action. The one place where a defect in planning ends at its incident, and all others go on."""
        try:
            return next_intent(view)
        except WardenError:
            raise
        except Exception as error:
            self._metrics.count("errors_total", "Plans that could not be made.", kind=type(error).__name__)
            if (name := view.case.incident.id) not in self._unplanned:
                self._unplanned.add(name)
                log.exception("no plan can be made", extra={"fields": {"incident": name}})
            return None

    def _busy(self, incident: IncidentRecord, now_s: float) -> bool:
        """Whether something is being done for it or to its job's ranks; not a drain of hours, nor what is adopted."""
        return any(
            (a.cause == incident.id or (a.job == incident.job and self._holds_ranks(a, now_s)))
            and (a.id in self._acting.mine or self._under_way.may_last(a, now_s))
            and not self._under_way.adopting(a.id)
            for a in self._memory.under_way.values()
        )

    def _decide(self, intent: Intent, case: IncidentState, now_s: float) -> None:
        """Propose, hold, skip or carry out; each is recorded once, not at every tick."""
        incident, mode = case.incident, self._rules.mode_of(intent.kind)
        known = self._memory.actions.get(intent.id)
        action = intent.of(incident, now_s)
        if intent.refused is not None:
            held = None if intent.held is None else ActiveBrake(intent.held, intent.refused, intent.until_s)
            self._acting.skip(action, now_s, intent.refused if held is None else held)
        elif mode == "observe":
            if known is None:
                self._outbox.put(action, self._memory)
        elif (by := self._memory.denied.get(intent.id)) is not None:
            self._acting.skip(action, now_s, f"denied by {by}")
        elif intent.kind in NODES_OUT and self._taking_out():
            pass
        elif (agreed := self._acting.agreed(action, mode, now_s, self._rules.config.replan_s)) is not None:
            asked = self._asked(agreed, case, now_s)
            if asked.latch is None and known is not None and known.plan.get("held") == TAKEN:
                dropped = "dropped when the brake on nodes taken out was reset: a person has looked"
                self._acting.skip(agreed, now_s, dropped)
            elif (hold := self._rules.brakes.hold(now_s, asked)) is not None:
                self._acting.skip(agreed, now_s, hold)
            else:
                self._carry_out(agreed, case, now_s)

    def _taking_out(self) -> bool:
        """Whether a node is about to be taken out here; one at a time, as the next might trip a brake on both."""
        own = (action for action in self._memory.under_way.values() if action.id in self._acting.mine)
        return any(action.kind in NODES_OUT and self._under_way.not_submitted(action.id) for action in own)

    def _asked(self, action: ActionRecord, case: IncidentState, now_s: float) -> BrakeInput:
        state = self._calls.state(action.job, now_s)
        return asked_of(action, case, self._memory, self._rules.remedies, state)

    def _carry_out(self, action: ActionRecord, case: IncidentState, now_s: float) -> None:
        """Keep `started` on the bus, and only then call the launcher."""
        started = self._acting.start(action, now_s)
        if started is not None:
            self._continue(started, case, now_s)

    def _continue(self, action: ActionRecord, case: IncidentState, now_s: float) -> None:
        """Bring a ``started`` action one step nearer to its end."""
        self._acting.go_on(action, now_s, lambda: self._why_not(action, case, now_s))

    def _why_not(self, action: ActionRecord, case: IncidentState, now_s: float) -> str | ActiveBrake | None:
        """Why the launcher should not hear of `action`, which was begun, any more."""
        said = cancel_reason(action, case, self._memory, self._rules, self._gate)
        if not self._under_way.not_submitted(action.id):
            return said
        brake = self._rules.brakes.after_start(now_s, self._asked(action, case, now_s))
        return said if brake is None else ActiveBrake(brake.name, said or brake.summary)
