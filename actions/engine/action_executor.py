"""The one way to a launcher, for engines' own actions and people's words alike.

``started`` is on the bus before the launcher hears of an action, and what people and other engines have just said is
heard before each call. Whose action it is, and why it might not be wanted any more, is for the caller to say.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Final

import msgspec

from trainwarden.actions.brakes.active_brake import ActiveBrake
from trainwarden.actions.brakes.history import BY_LAUNCHER, STALE, UNDONE
from trainwarden.actions.engine.approval import answer_of, planned_at
from trainwarden.actions.engine.control_consumer import FACTS, WORDS_AND_DEEDS, ControlConsumer
from trainwarden.actions.engine.launcher_client import LauncherClient
from trainwarden.actions.engine.operation_tracker import ActionResult, OperationTracker
from trainwarden.actions.engine.outbox import Outbox
from trainwarden.actions.remedies.engine_state import EngineState, with_outcome
from trainwarden.actions.remedies.policy import Mode
from trainwarden.clock import Clock
from trainwarden.commands.builders import EVERY_JOB, latch
from trainwarden.protocols import Bus, Message
from trainwarden.records import ActionRecord, CommandRecord
from trainwarden.self_metrics import SelfMetrics
from trainwarden.service_loop import flush, offer

WITHDRAWN: Final = "withdrawn"  # in the plan of a failed action: the brake that came on before the launcher heard of it

REFUSED: Final = "not begun: the bus takes no record of it, which is larger than its topic allows"


class ActionExecutor:
    """Begins actions, brings them to their ends, and records both.

    Parameters
    ----------
    memory : Memory
        What the engine knows until it takes over.
    take : callable
        Takes what was heard into the memory; whether it did.
    """

    def __init__(
        self,
        calls: LauncherClient,
        under_way: OperationTracker,
        clock: Clock,
        metrics: SelfMetrics,
        *,
        outbox: Outbox,
        memory: EngineState,
        take: Callable[[Message], bool],
    ) -> None:
        self.calls, self.under_way, self.outbox = calls, under_way, outbox
        self.memory = memory
        self.mine: set[str] = set()  # started here, or by an engine whose partition this one has taken over
        self._clock, self._metrics, self._take = clock, metrics, take
        self._bus: Bus | None = None
        self._hearing: ControlConsumer | None = None
        self._facts: ControlConsumer | None = None
        self._recorded: set[str] = set()  # `started` known to be kept on the bus
        # Its flush broke off. A later flush elsewhere may have had it refused, so it is published once more.
        self._unconfirmed: set[str] = set()

    def connect(self, bus: Bus, now_s: float) -> None:
        """Begin to hear what people and other engines say on `bus`."""
        self._bus = bus
        if self._hearing is None:
            self._hearing = ControlConsumer(bus, WORDS_AND_DEEDS, now_s)
        if self._facts is None:
            self._facts = ControlConsumer(bus, FACTS, now_s)

    def take_over(self, memory: EngineState, elsewhere: Container[str]) -> list[ActionRecord]:
        """Go on from `memory`: what was started and has no end, but for causes that other engines own now."""
        self.memory = memory
        started = [action for action in memory.under_way.values() if action.cause not in elsewhere]
        self.mine = {action.id for action in started}
        self.under_way.inherit(action.id for action in started if action.id not in self._recorded)
        return started

    def forget(self) -> None:
        """Let go of what the memory has let go of."""
        for names in (self._recorded, self._unconfirmed, self.mine):
            names.intersection_update(self.memory.actions)

    def listen(self) -> set[str] | None:
        """Apply what people and other engines have said; of which jobs. None while this engine cannot hear it."""
        messages = None if self._hearing is None else self._hearing.new()
        self._metrics.gauge("deaf", "1 while commands cannot be heard; nothing is done meanwhile.", messages is None)
        if messages is None:
            return None
        facts = (self._facts.new() if self._facts is not None else None) or ()
        taken = [message.record for message in (*messages, *facts) if self._take(message)]
        return {record.job for record in taken if isinstance(record, ActionRecord | CommandRecord)}

    def unfinished(self, cause: str) -> list[ActionRecord]:
        """What this engine has to bring to its end about `cause`."""
        return [a for a in self.memory.under_way.values() if a.cause == cause and a.id in self.mine]

    def agreed(self, action: ActionRecord, mode: Mode, now_s: float, replan_s: float) -> ActionRecord | None:
        """What may be carried out: all in mode auto, else what a person has approved, as it was shown then.

        None: a person has to say so first, and `action` is shown if that is news.
        """
        if mode == "auto":
            return action
        state = self.calls.state(action.job, now_s)
        if state is None:
            return None  # nobody could say from which state it was planned
        action = planned_at(action, state.generation)
        known, word = self.memory.actions.get(action.id), self.memory.approved.get(action.id)
        verdict = answer_of(known, action, word, replan_s)
        if verdict is None:
            self.outbox.put(action, self.memory)
        return verdict if isinstance(verdict, ActionRecord) else None

    def start(self, action: ActionRecord, now_s: float) -> ActionRecord | None:
        """Record `action` as started, to be gone on with; None if it has to be thought over at the next tick."""
        assert self._bus is not None
        state = self.calls.state(action.job, now_s)
        heard = self.listen()
        if state is None or heard is None or {action.job, EVERY_JOB} & heard or self._behind():
            return None  # without a generation nothing can be asked, and what has just been said may change the plan
        if action.generation is None:
            action = planned_at(action, state.generation)
        action = with_outcome(action, "started", now_s)
        self.outbox.publish(self._bus)  # what was decided before must stand before it
        self.memory.apply(action)
        self.mine.add(action.id)
        self.outbox.count(action)
        if not offer(self._bus, self._metrics, action.job, action):
            self._refused(action)
            return None
        return action

    def go_on(self, action: ActionRecord, now_s: float, why_not: Callable[[], str | ActiveBrake | None]) -> None:
        """Bring a started action one step nearer to its end.

        Parameters
        ----------
        why_not : callable
            Why the launcher should not hear of it any more, if it has not yet, by all that was said until now.
        """
        assert self._bus is not None
        if action.id not in self._recorded:
            if action.id in self._unconfirmed:
                flush(self._bus, self._metrics)  # while the bus is away nothing is published again
                if not offer(self._bus, self._metrics, action.job, action):
                    self._refused(action)
                    return
            self._unconfirmed.add(action.id)
            refused = [record for _, record in flush(self._bus, self._metrics) if isinstance(record, ActionRecord)]
            if any((one.id, one.outcome) == (action.id, "started") for one in refused):
                self._refused(action)
                return
            self._unconfirmed.discard(action.id)
            self._recorded.add(action.id)
        if self.listen() is None:
            return  # somebody may be saying stop
        if self.under_way.not_submitted(action.id) and self._behind():
            return  # a stop, or what another engine has begun, may be there and not be heard yet
        cancel_reason = why_not()
        said = cancel_reason.summary if isinstance(cancel_reason, ActiveBrake) else cancel_reason
        end = self.under_way.go_on(action, now_s, by=action.by or "engine", cancel_reason=said)
        if end is None:
            return
        more = {WITHDRAWN: cancel_reason.name} if end.unheard and isinstance(cancel_reason, ActiveBrake) else {}
        if end.stale:
            more[STALE] = "true"
        if end.undone:
            more[UNDONE] = "true"
        if end.by_launcher:
            more[BY_LAUNCHER] = "true"
        if more:
            action = msgspec.structs.replace(action, plan={**action.plan, **more})
        self.end(action, end)

    def _refused(self, action: ActionRecord) -> None:
        """The launcher never hears of what no record tells of."""
        self.end(msgspec.structs.replace(action, plan={**action.plan, UNDONE: "true"}), ActionResult("failed", REFUSED))

    def _behind(self) -> bool:
        return self._hearing is None or self._hearing.behind()

    def end(self, action: ActionRecord, end: ActionResult) -> None:
        """Record how `action` ended."""
        action = msgspec.structs.replace(action, plan={**action.plan, **end.found})
        self.outbox.end(with_outcome(action, end.outcome, self._clock.now_s(), end.why), self.memory)

    def skip(self, action: ActionRecord, now_s: float, why: str | ActiveBrake) -> None:
        """Record that `action` is not done: for good, or until a brake goes off."""
        if isinstance(why, str):
            self.outbox.skip(action, self.memory, now_s=now_s, why=why, held={})
            return
        if why.latches is not None:
            self.outbox.put(latch(action, why.latches, why.why, now_s), self.memory)
        until = {} if why.until_s is None else {"held_until_s": round(why.until_s, 3)}
        self.outbox.skip(action, self.memory, now_s=now_s, why=why.summary, held={"held": why.name, **until})
