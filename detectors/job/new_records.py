"""What has come since the last window: log lines, events and metrics, each shown once, repeats left out."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

from trainwarden.detectors.job.roster import Seen
from trainwarden.detectors.job.window import LogLine
from trainwarden.records import EventRecord, LogRecord, MetricsRecord


class NewRecords:
    """Records that the next window shows.

    Attributes
    ----------
    events, metrics : list
        Records to be shown, in the order in which they came.
    """

    def __init__(self) -> None:
        self.events: list[EventRecord] = []
        self.metrics: list[MetricsRecord] = []
        self._logs: list[LogLine] = []
        self._log_ends: dict[tuple[str, str], int] = {}
        self._seen_events = Seen()
        self._seen_metrics = Seen()

    def is_new(self, record: EventRecord | MetricsRecord) -> bool:
        """Whether `record` comes for the first time."""
        if isinstance(record, EventRecord):
            return self._seen_events.add(record.id)
        # A hundred thousand of these are remembered, and kept with each snapshot.
        words = "\0".join((record.node, repr(record.time_s), *record.names[:1], *record.devices))
        return self._seen_metrics.add(blake2b(words.encode(errors="surrogatepass"), digest_size=16).digest())

    def log(self, record: LogRecord) -> tuple[int, list[float]]:
        """Apply lines; how many of them had come before, and the times of the others."""
        source = (record.node, record.source)
        high = self._log_ends.get(source, -1)
        duplicates, times_s = 0, []
        for index in range(min(len(record.lines), len(record.ends), len(record.times_s))):
            end = record.ends[index]
            if end <= high:
                duplicates += 1
                continue
            high = end
            count = record.counts[index] if index < len(record.counts) else 1
            line, time_s = record.lines[index], record.times_s[index]
            self._logs.append(LogLine(record.node, record.source, record.rank, line, time_s, max(1, count), end))
            times_s.append(time_s)
        self._log_ends[source] = high
        return duplicates, times_s

    def pop_new(self) -> dict[str, Any]:
        """Everything, once: what a window shows of it."""
        shown = {"logs": tuple(self._logs), "events": tuple(self.events), "metrics": tuple(self.metrics)}
        self._logs, self.events, self.metrics = [], [], []
        return shown
