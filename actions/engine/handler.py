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

import msgspec

from actions.brakes.history import NODES_OUT
from actions.brakes.hold import Asked, Hold
from actions.brakes.nodes import TAKEN
from actions.engine.approval import answer_of, planned_at
from actions.engine.asked import asked_of, unwanted
from actions.engine.calls import VERBS, LauncherCalls
from actions.engine.hearing import OVERLAP_S, Hearing
from actions.engine.memory import Case, Memory, with_outcome
from actions.engine.outbox import Outbox
from actions.engine.planner import next_intent
from actions.engine.policy import Rules
from actions.engine.under_way import End, UnderWay
from actions.engine.view import Intent, View
from actions.planners.adoption import Adoptions
from trainwarden.clock import Clock
from trainwarden.commands.words import EVERY_JOB, latch
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
    """

    topics: Sequence[Topic[Any]] = (INCIDENTS,)

    def __init__(self, rules: Rules, launcher: Launcher, clock: Clock, metrics: SelfMetrics) -> None:
        self._rules, self._clock, self._metrics, self._job = rules, clock, metrics, launcher.job
        self.group = "engine" if self._job is None else f"engine-{self._job}"
        self._calls = LauncherCalls(launcher, metrics)
        self._adoptions = Adoptions()
        self._memory = Memory(rules.remedies.ladder, self._adoptions)
        self._under_way = UnderWay(self._calls, rules.config, self._adoptions.missing)
        self._bus: Bus | None = None
        self._hearing: Hearing | None = None
        self._outbox = Outbox(metrics)
        self._recorded: set[str] = set()  # `started` known to be kept on the bus
        self._mine: set[str] = set()  # started here, or by an engine whose partition this one has taken over
        self._unplanned: set[str] = set()  # incidents of which it was said that no plan can be made
        self._forget_at_s = 0.0

    # --- trainwarden.service_loop.Handler ----------------------------------------------------------------------------

    def start(self, bus: Bus, consumer: Consumer) -> None:
        """Rebuild memory from the bus: what was ever commanded, what engines did, and the incidents of our partitions.

        Of a partition that another member owns now nothing stays: of its incidents this engine would hear no more.
        """
        self._bus = bus
        now_s = self._clock.now_s()
        if self._hearing is None:
            self._hearing = Hearing(bus, now_s)
        memory = Memory(self._rules.remedies.ladder, self._adoptions)
        for topic, from_s in ((ACTIONS, now_s - MEMORY_S), (COMMANDS, None)):
            for message in bus.read(topic, from_time_s=from_s):
                self._take(memory, message)
        self._outbox.remind(memory)
        if splits := [action.at_s for action in memory.under_way.values() if action.kind == "rebalance"]:
            for message in bus.read(EVENTS, from_time_s=min(splits) - OVERLAP_S):
                self._take(memory, message)
        elsewhere = self._take_incidents(memory, bus, consumer, now_s - MEMORY_S)
        self._memory = memory
        started = [action for action in memory.under_way.values() if action.incident not in elsewhere]
        self._mine = {action.id for action in started}
        self._under_way.inherit(action.id for action in started if action.id not in self._recorded)
        for action in started:
            if action.incident not in memory.cases:
                self._end(action, End("failed", f"{action.why}; its incident is no longer known"))
        log.info("engine ready", extra={"fields": {"incidents": len(memory.cases), "unfinished": len(started)}})

    def _take_incidents(self, memory: Memory, bus: Bus, consumer: Consumer, since_s: float) -> set[str]:
        """Take in the incidents of our own partitions; the names of the others."""
        owned = {place for topic, place in consumer.assignment() if topic == INCIDENTS.name}
        elsewhere: set[str] = set()
        for message in bus.read(INCIDENTS, from_time_s=since_s):
            if message.partition in owned:
                self._take(memory, message)
            elif isinstance(message.record, IncidentRecord):
                elsewhere.add(message.record.id)
        return elsewhere

    def handle(self, messages: Sequence[Message]) -> Iterable[Output]:
        """Take incidents in. What follows from them is decided in `tick`."""
        for message in messages:
            self._take(self._memory, message)
        return ()

    def tick(self, now_s: float) -> Iterable[Output]:
        """Go on with every incident that asks for something.

        Raises
        ------
        BusUnavailable
            If ``started`` could not be kept. Nothing was done then; the next tick tries again.
        """
        for case in list(self._memory.cases.values()) if self._listen() is not None else ():
            self._advance(case, now_s)
        if now_s >= self._forget_at_s:
            self._forget_at_s = now_s + FORGET_INTERVAL_S
            self._memory.forget(now_s - MEMORY_S)
            for names in (self._recorded, self._mine):
                names.intersection_update(self._memory.actions)
            self._unplanned &= self._memory.cases.keys()
        lasting = sum(case.open for case in self._memory.cases.values())
        latched = len(self._memory.latches.standing())
        self._metrics.gauge("latched", "Jobs (all of them as one) whose evictions wait for a person's reset.", latched)
        self._metrics.gauge("open_incidents", "Incidents that last now.", lasting)
        return self._outbox.empty()

    def _take(self, memory: Memory, message: Message) -> None:
        if self._job is None or getattr(message.record, "job", None) in (self._job, EVERY_JOB):
            memory.take(message.record, message.offset, message.time_s)

    def _listen(self) -> set[str] | None:
        """Take in what people and other engines have said; of which jobs. None while this engine cannot hear it."""
        messages = None if self._hearing is None else self._hearing.new()
        self._metrics.gauge("deaf", "1 while commands cannot be heard; nothing is done meanwhile.", messages is None)
        if messages is None:
            return None
        for message in messages:
            self._take(self._memory, message)
        return {message.record.job for message in messages if isinstance(message.record, ActionRecord | CommandRecord)}

    # --- one incident ------------------------------------------------------------------------------------------------

    def _advance(self, case: Case, now_s: float) -> None:
        under_way = self._memory.under_way.values()
        unfinished = [a for a in under_way if a.incident == case.incident.id and a.id in self._mine]
        for action in unfinished:
            self._continue(action, case, now_s)
        if unfinished or self._busy(case.incident, now_s):
            return
        view = View(
            now_s=now_s,
            case=case,
            memory=self._memory,
            rules=self._rules,
            state=lambda: self._calls.state(case.incident.job, now_s),
            capabilities=lambda: self._calls.capabilities(now_s),
            away=lambda: self._calls.away(case.incident.job, now_s),
        )
        intent = self._planned(view)
        if intent is not None and not (intent.kind == "rebalance" and self._under_way.adopting_in(case.incident.job)):
            self._decide(intent, case, now_s)

    def _planned(self, view: View) -> Intent | None:
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
            (a.incident == incident.id or (a.job == incident.job and VERBS.get(a.kind) not in NODE_VERBS))
            and (a.id in self._mine or self._under_way.may_last(a, now_s))
            and not self._under_way.adopting(a.id)
            for a in self._memory.under_way.values()
        )

    def _decide(self, intent: Intent, case: Case, now_s: float) -> None:
        """Propose, hold, skip or carry out; each is recorded once, not at every tick."""
        incident, mode = case.incident, self._rules.mode_of(intent.kind)
        known = self._memory.actions.get(intent.id)
        action = intent.of(incident, now_s)
        if intent.refused is not None:
            held = None if intent.held is None else Hold(intent.held, intent.refused, intent.until_s)
            self._skip(action, now_s, intent.refused if held is None else held)
        elif mode == "observe":
            if known is None:
                self._outbox.put(action, self._memory)
        elif (by := self._memory.denied.get(intent.id)) is not None:
            self._skip(action, now_s, f"denied by {by}")
        elif intent.kind in NODES_OUT and self._taking_out():
            pass
        elif (agreed := action if mode == "auto" else self._agreed(known, action, now_s)) is not None:
            asked = self._asked(agreed, case, now_s)
            if asked.latch is None and known is not None and known.plan.get("held") == TAKEN:
                self._skip(agreed, now_s, "dropped when the brake on nodes taken out was reset: a person has looked")
            elif (hold := self._rules.brakes.hold(now_s, asked)) is not None:
                self._skip(agreed, now_s, hold)
            else:
                self._carry_out(with_outcome(agreed, "started", now_s), case, now_s)

    def _taking_out(self) -> bool:
        """Whether a node is about to be taken out here; one at a time, as the next might trip a brake on both."""
        own = (action for action in self._memory.under_way.values() if action.id in self._mine)
        return any(action.kind in NODES_OUT and self._under_way.unasked(action.id) for action in own)

    def _asked(self, action: ActionRecord, case: Case, now_s: float) -> Asked:
        state = self._calls.state(action.job, now_s)
        return asked_of(action, case, self._memory, self._rules.remedies, state)

    def _agreed(self, known: ActionRecord | None, action: ActionRecord, now_s: float) -> ActionRecord | None:
        """What a person has approved, as it was shown then; else None, and `action` is shown if that is news."""
        state = self._calls.state(action.job, now_s)
        if state is None:
            return None  # nobody could say from which state it was planned
        action = planned_at(action, state.generation)
        verdict = answer_of(known, action, self._memory.approved.get(action.id), self._rules.config.replan_s)
        if verdict is None:
            self._outbox.put(action, self._memory)
        return verdict if isinstance(verdict, ActionRecord) else None

    def _skip(self, action: ActionRecord, now_s: float, why: str | Hold) -> None:
        """Record that `action` is not done: for good, or until a brake goes off."""
        if isinstance(why, str):
            self._outbox.skip(action, self._memory, now_s=now_s, why=why, held={})
            return
        if why.latches is not None:
            self._outbox.put(latch(action, why.latches, why.why, now_s), self._memory)
        until = {} if why.until_s is None else {"held_until_s": round(why.until_s, 3)}
        self._outbox.skip(action, self._memory, now_s=now_s, why=why.said, held={"held": why.name, **until})

    def _carry_out(self, action: ActionRecord, case: Case, now_s: float) -> None:
        """Keep `started` on the bus, and only then call the launcher."""
        assert self._bus is not None
        state = self._calls.state(action.job, now_s)
        heard = self._listen()
        if state is None or heard is None or {action.job, EVERY_JOB} & heard:
            return  # without a generation nothing can be asked, and what has just been said may change the plan
        if action.generation is None:
            action = planned_at(action, state.generation)
        self._outbox.publish(self._bus)  # what was decided before must stand before it
        self._memory.take(action)
        self._mine.add(action.id)
        self._outbox.count(action)
        self._bus.publish(ACTIONS, action.job, action)
        self._continue(action, case, now_s)

    def _continue(self, action: ActionRecord, case: Case, now_s: float) -> None:
        """Bring a ``started`` action one step nearer to its end."""
        assert self._bus is not None
        if action.id not in self._recorded:
            self._bus.flush()
            self._recorded.add(action.id)
        if self._listen() is None or self._hearing is None:
            return  # somebody may be saying stop
        brake = None
        if self._under_way.unasked(action.id):
            if action.kind in NODES_OUT and self._hearing.behind():
                return  # another engine may have begun just before
            brake = self._rules.brakes.after_start(now_s, self._asked(action, case, now_s))
        why_not = unwanted(action, case, self._memory, self._rules) or (None if brake is None else brake.said)
        end = self._under_way.go_on(action, now_s, by=action.by or "engine", unwanted=why_not)
        if end is not None:
            if end.unheard and brake is not None:
                action = msgspec.structs.replace(action, plan={**action.plan, "withdrawn": brake.name})
            self._end(action, end)

    def _end(self, action: ActionRecord, end: End) -> None:
        action = msgspec.structs.replace(action, plan={**action.plan, **end.found})
        self._outbox.end(with_outcome(action, end.outcome, self._clock.now_s(), end.why), self._memory)
