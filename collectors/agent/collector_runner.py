"""One collector's turn: begin with its source, take what it has, note where it has been read to."""

from __future__ import annotations

import logging
from typing import NamedTuple

import msgspec

from trainwarden.clock import Clock
from trainwarden.collectors.agent.schedule import Task
from trainwarden.protocols import JsonObject, Scope
from trainwarden.records import EventRecord, Record
from trainwarden.self_metrics import SelfMetrics
from trainwarden.topics import topic_of

log = logging.getLogger("trainwarden.agent")

_RECHECK_S = 60.0  # how often a source that was absent is looked for again (a driver loaded late)


class Batch(NamedTuple):
    """What one turn has brought, and the collector's position behind it; None: leave the one kept before."""

    collector: str
    records: list[Record]
    position: JsonObject | None


class CollectorRunner:
    """Calls collectors, each with the position that was kept for it.

    Parameters
    ----------
    scope : Scope
    clock : Clock
    metrics : SelfMetrics
    positions : dict
        Kept positions by collector; each is handed over once.
    """

    def __init__(self, scope: Scope, clock: Clock, metrics: SelfMetrics, positions: dict[str, JsonObject]) -> None:
        self._scope = scope
        self._clock = clock
        self._metrics = metrics
        self._positions = positions

    def run_task(self, task: Task) -> Batch:
        """What the task's collector has now. The one place of the agent where a collector's errors are caught."""
        start_s = self._clock.monotonic_s()
        records: list[Record] = []
        try:
            if not task.started and (absent := self._start(task)) is not None:
                return Batch(task.name, absent, None)
            for record in task.collector.collect(self._clock.now_s()):
                topic_of(record)
                records.append(record)
            interval_s = task.collector.interval_s
            # A copy: by the time it is written down the collector has read on.
            position: JsonObject = msgspec.json.decode(msgspec.json.encode(task.collector.position()))
            task.wake_fds = tuple(task.collector.wake_fds())
        except Exception as error:  # noqa: BLE001 - a plug-in of anybody's may raise anything; the others must go on
            self._metrics.count("collector_errors_total", "Failed collections.", collector=task.name)
            if task.failed(self._clock.monotonic_s()):
                fields = {"collector": task.name, "error": f"{type(error).__name__}: {error}"}
                log.warning("collector fails", extra={"fields": fields})
            return Batch(task.name, records, None)
        end_s = self._clock.monotonic_s()
        if task.succeeded(start_s, end_s, interval_s):
            log.info("collector works again", extra={"fields": {"collector": task.name}})
        self._metrics.count("collect_seconds_total", "Time spent collecting.", end_s - start_s, collector=task.name)
        self._count_junk(task)
        return Batch(task.name, records, position)

    def _count_junk(self, task: Task) -> None:
        """Tell how much of what the collector found was not for it, where it counts that."""
        junk = getattr(task.collector, "junk", None)
        if isinstance(junk, int) and junk >= task.junk:
            help_text = "Files, lines and datagrams that were refused as none that we know."
            self._metrics.count("inputs_refused_total", help_text, junk - task.junk, collector=task.name)
            task.junk = junk

    def _start(self, task: Task) -> list[Record] | None:
        """Begin with a source: None if it is there, else the records that say that it is not."""
        reason = task.collector.supported()
        if reason is None:
            # Taken out first: a position that the collector cannot go on from makes it fail once, not for ever.
            position = self._positions.pop(task.name, None)
            if isinstance(position, dict):
                task.collector.restore(position)
            log.info("collector runs", extra={"fields": {"collector": task.name}})
            task.started = True
            return None
        task.due_s = self._clock.monotonic_s() + _RECHECK_S
        if task.absent_reason == reason:
            return []
        task.absent_reason = reason
        log.info("collector skipped", extra={"fields": {"collector": task.name, "reason": reason}})
        event = EventRecord(
            id=f"collector_unsupported/{self._scope.node}/{task.name}",
            job=self._scope.job,
            node=self._scope.node,
            time_s=self._clock.now_s(),
            kind="collector_unsupported",
            message=reason,
            fields={"collector": task.name},
        )
        return [event]
