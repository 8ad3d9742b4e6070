"""Stand-ins for tests: a clock turned by hand, a bus in memory that can be away or slow, an obedient collector."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from trainwarden.clock import Clock
from trainwarden.errors import BusUnavailable, RecordError
from trainwarden.protocols import Consumer, JsonObject, Message, Scope
from trainwarden.records import LogRecord, Record
from trainwarden.self_metrics import SelfMetrics
from trainwarden.settings import Config
from trainwarden.topics import Topic

SCOPE = Scope(job="job", node="node0", run_dir="nowhere")


class ManualClock:
    """A clock that stands still until it is told to move.

    Examples
    --------
    >>> clock = ManualClock(100.0)
    >>> clock.sleep(2.5)
    >>> clock.now_s()
    102.5
    """

    def __init__(self, now_s: float = 0.0) -> None:
        self._now_s = now_s
        self.ahead_s = 0.0  # of the wall clock alone

    def now_s(self) -> float:
        return self._now_s + self.ahead_s

    def monotonic_s(self) -> float:
        return self._now_s

    def sleep(self, seconds: float) -> None:
        self._now_s += seconds

    def set_s(self, now_s: float) -> None:
        """Jump to `now_s`, forwards or backwards."""
        self._now_s = now_s


class MemoryBus:
    """Keeps what was flushed in `kept`; what is only published waits in `queued`, as in a real producer.

    Set `away` to make `flush` fail, `refuses` to make `publish` raise `RecordError` for records of that type.
    """

    def __init__(self, clock: ManualClock | None = None) -> None:
        self.kept: list[tuple[str, str, Record]] = []
        self.queued: list[tuple[str, str, Record]] = []
        self.away = False
        self.refuses: type[Record] | None = None
        self.flush_takes_s = 0.0
        self.flush_timeouts_s: list[float] = []
        self.closed = 0
        self._clock = clock

    def publish(self, topic: Topic[Any], key: str, record: Record) -> None:
        if self.refuses is not None and isinstance(record, self.refuses):
            raise RecordError("refused by the test")
        self.queued.append((topic.name, key, record))

    def flush(self, timeout_s: float = 30.0) -> None:
        self.flush_timeouts_s.append(timeout_s)
        if self._clock is not None:
            self._clock.sleep(min(self.flush_takes_s, timeout_s))
        if self.away or self.flush_takes_s > timeout_s:
            raise BusUnavailable("away by the test")
        self.kept.extend(self.queued)
        self.queued.clear()

    def consumer(self, topics: Sequence[Topic[Any]], group: str, *, start: str = "earliest") -> Consumer:
        raise NotImplementedError("this double only keeps")

    def read(self, topic: Topic[Any], *, from_time_s: float | None = None) -> Iterable[Message]:
        for offset, (name, key, record) in enumerate(self.kept):
            if name == topic.name:
                yield Message(name, 0, offset, 0.0, key, record)

    def close(self) -> None:
        self.closed += 1

    def records(self, kind: type[Record]) -> list[Any]:
        """Everything kept of one type, in order."""
        return [record for _, _, record in self.kept if isinstance(record, kind)]


class ScriptedCollector:
    """Yields what the test puts into `pending`; raises `error` if set; counts its calls."""

    class Config(Config, frozen=True, kw_only=True):
        """Nothing to set but the interval."""

        interval_s: float = 1.0

    def __init__(self, config: Config, scope: Scope = SCOPE, clock: Clock | None = None) -> None:
        self.interval_s = config.interval_s
        self.pending: list[Record] = []
        self.error: Exception | None = None
        self.absent: str | None = None
        self.fds: list[int] = []
        self.read = 0
        self.calls = 0
        self.restored: JsonObject | None = None
        self.closed = 0

    def supported(self) -> str | None:
        return self.absent

    def collect(self, now_s: float) -> Iterable[Record]:
        self.calls += 1
        while self.pending:
            self.read += 1
            yield self.pending.pop(0)
        if self.error is not None:
            raise self.error

    def wake_fds(self) -> Sequence[int]:
        return self.fds

    def position(self) -> JsonObject:
        return {"read": self.read}

    def restore(self, position: JsonObject) -> None:
        self.restored = position
        self.read = position["read"]

    def close(self) -> None:
        self.closed += 1


def log_record(number: int, *, source: str = "logs/rank-0.log") -> LogRecord:
    """A batch of one line that names its number."""
    return LogRecord(
        job="job", node="node0", source=source, ends=(number,), lines=(f"line {number}",), times_s=(0.0,), rank=0
    )


def metric_value(metrics: SelfMetrics, name: str, **labels: str) -> float | None:
    """Present value of a service's counter or gauge; None if it was never touched."""
    for family in metrics.registry.collect():
        for sample in family.samples:
            if sample.name.removeprefix("trainwarden_").partition("_")[2] == name and sample.labels == labels:
                return sample.value
    return None
