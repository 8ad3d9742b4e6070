"""What the engine says of its actions: each change once, known to its memory, counted, and on its way to the bus."""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from trainwarden.actions.brakes.history import restart_loop_incident
from trainwarden.actions.remedies.engine_state import EngineState, with_outcome
from trainwarden.protocols import Bus
from trainwarden.records import ActionRecord, CommandRecord, IncidentRecord, Record
from trainwarden.self_metrics import SelfMetrics
from trainwarden.service_loop import Output, offer_shortened

log = logging.getLogger("trainwarden.engine")


class Outbox:
    """Records that are not on the bus yet, in the order in which they were decided.

    Parameters
    ----------
    sealed : callable
        A record as it goes to the bus: a command is signed there, where words have to be.
    """

    def __init__(self, metrics: SelfMetrics, sealed: Callable[[Record], Record]) -> None:
        self._metrics, self._sealed = metrics, sealed
        self._waiting: list[Output] = []

    def empty(self) -> list[Output]:
        """All of it, which is let go of."""
        waiting, self._waiting = self._waiting, []
        return [(key, self._sealed(record)) for key, record in waiting]

    def publish(self, bus: Bus) -> None:
        """Put all of it on the bus; it is not flushed."""
        for key, record in self.empty():
            offer_shortened(bus, self._metrics, key, record)

    def remind(self, memory: EngineState) -> None:
        """Tell a new memory what has not come to the bus yet."""
        for _, record in self._waiting:
            memory.apply(record)

    def put(self, record: ActionRecord | IncidentRecord | CommandRecord, memory: EngineState) -> None:
        """Say it, and know it."""
        memory.apply(record)
        if isinstance(record, ActionRecord):
            self.count(record)
        self._waiting.append((record.job, record))

    def skip(
        self, action: ActionRecord, memory: EngineState, *, now_s: float, why: str, held: dict[str, object]
    ) -> None:
        """Say that `action` is not done, unless that was said: for good, or `held` by a brake that may go off."""
        known = memory.actions.get(action.id)
        if known is not None and known.outcome == "skipped" and known.plan.get("held") == held.get("held"):
            return
        skipped = with_outcome(action, "skipped", now_s, why)
        self.put(msgspec.structs.replace(skipped, plan={**action.plan, **held}), memory)

    def end(self, action: ActionRecord, memory: EngineState) -> None:
        """Say how `action` ended, and that a job which was stopped for restarts in vain needs a person."""
        self.put(action, memory)
        if action.kind == "stop_job" and (loop := action.plan.get("restart_loop")):
            self._waiting.append((action.job, restart_loop_incident(action, int(loop))))

    def count(self, action: ActionRecord) -> None:
        """Count and log a change of an action."""
        self._metrics.count(
            "actions_total", "Actions by what became of them.", kind=action.kind, outcome=action.outcome
        )
        fields = {"action": action.id, "kind": action.kind, "outcome": action.outcome, "why": action.why}
        log.info("action", extra={"fields": fields})
