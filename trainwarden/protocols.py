"""What the parts ask of each other: bus, collector (launchers: `trainwarden.launching`). Core knows no plug-in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from trainwarden.records import Record
from trainwarden.topics import Topic

JsonObject = dict[str, Any]


class Message(msgspec.Struct, frozen=True):
    """One record as it came from the bus, with its place there.

    Attributes
    ----------
    stamped : bool
        `time_s` is the bus's, not its sender's.
    clock_s : float or None
        What the clock said by which it was stamped, where `time_s` is later than that: a bus may keep its times from
        falling. None: the same.
    """

    topic: str
    partition: int
    offset: int
    time_s: float
    key: str
    record: Record
    stamped: bool = True
    clock_s: float | None = None


class Consumer(Protocol):
    """One member of a consumer group, reading some partitions of some topics in order."""

    def poll(self, timeout_s: float, max_records: int = 1000) -> list[Message]:
        """Next messages, at most `max_records`; empty after `timeout_s` seconds without any.

        Order holds within a partition. An undecodable record goes to dead letters and is skipped. A call at
        which the assignment changed returns nothing, so that the change is seen before what follows from it. A topic
        that was made again looks like a loss of all partitions: they come back without a commit for it.

        Raises
        ------
        BusUnavailable
            If the bus is away; call again later.
        """
        ...

    def commit(self) -> None:
        """Make the group resume after everything that `poll` has returned so far."""
        ...

    def committed(self) -> Mapping[tuple[str, int], int]:
        """Next offset to read per assigned (topic, partition), as last committed by the group."""
        ...

    def seek_to_time(self, time_s: float) -> None:
        """Read every assigned partition again from the first record written at or after `time_s`.

        What the group has not handled since its commit is never passed over. Where it has committed nothing the time
        alone decides: whoever has to handle everything seeks to the first record.
        """
        ...

    def seek(self, offsets: Mapping[tuple[str, int], int]) -> None:
        """Read from these offsets on; partitions that are not assigned are passed over."""
        ...

    def assignment(self) -> frozenset[tuple[str, int]]:
        """Partitions that this member reads now; may change at `poll`."""
        ...

    def lag(self) -> int | None:
        """Records written but not yet returned by `poll`, over all assigned partitions; None while there are none.

        A member without partitions knows of no backlog, which does not mean that there is none.
        """
        ...

    @property
    def dead_letters(self) -> int:
        """How many undecodable records this consumer has met."""
        ...

    @property
    def lost(self) -> Mapping[str, int]:
        """By topic, how many records were gone before this consumer could read them: retention, a topic made again."""
        ...

    def close(self) -> None:
        """Leave the group; what was not committed is read again by another member. Safe twice."""
        ...


class Bus(Protocol):
    """A durable log of topics: at-least-once, ordered per key."""

    def publish(self, topic: Topic[Any], key: str, record: Record) -> None:
        """Queue `record`; records of one key keep their order.

        Raises
        ------
        RecordError
            If the record does not fit the topic.
        """
        ...

    def flush(self, timeout_s: float = 30.0) -> None:
        """Return once everything published is kept durably.

        Raises
        ------
        BusUnavailable
            If something was not acknowledged in time. What was not acknowledged stays queued and the
            next `flush` tries it again, so a caller may simply call `flush` later.
        RecordsRefused
            If the bus will never take some records; it names them and has let go of them. Each is named once. All
            others stay queued for the next `flush`.
        """
        ...

    def consumer(self, topics: Sequence[Topic[Any]], group: str, *, start: str = "earliest") -> Consumer:
        """Join `group`; without a committed offset it starts at ``earliest`` or ``latest``."""
        ...

    def read(self, topic: Topic[Any], *, from_time_s: float | None = None) -> Iterable[Message]:
        """Everything kept of one topic up to now, in order per partition, without a group."""
        ...

    def close(self) -> None:
        """Flush what can be flushed and let go. Safe twice."""
        ...


class Scope(msgspec.Struct, frozen=True, kw_only=True):
    """What every collector and launcher is told about where it runs.

    `run_dir` is the folder of this job's run on this node (see `trainwarden.rundir`).
    """

    job: str
    node: str
    run_dir: str


class Collector(Protocol):
    """One source on one node. It owns no thread, no timer and no retry: the agent does.

    A call that takes longer than the agent's deadline keeps its thread, and the collector's next turn waits for it. A
    class attribute ``heartbeats = True`` says that it tells who is alive: then no other collector shares its thread.
    An attribute ``junk``, of what it has refused to read up to now, becomes ``trainwarden_agent_inputs_refused_total``.
    One with ``ask(SamplingRecord)`` is handed detectors' requests, in any thread, while its ``listens`` is true.
    """

    @property
    def interval_s(self) -> float:
        """Seconds between two calls of `collect`; the agent also calls it when a wake fd is readable."""
        ...

    def supported(self) -> str | None:
        """None if the source exists here, else one clear sentence why not."""
        ...

    def collect(self, now_s: float) -> Iterable[Record]:
        """What is new since the last call.

        Raises
        ------
        CollectorError
            If the source could not be read this time.
        """
        ...

    def wake_fds(self) -> Sequence[int]:
        """File descriptors whose readiness is a reason to call `collect` at once; may change between calls."""
        ...

    def position(self) -> JsonObject:
        """Where the source has been read to; JSON, given back to `restore` after a restart."""
        ...

    def restore(self, position: JsonObject) -> None:
        """Go on from `position`, which the agent kept after those records were safe."""
        ...

    def close(self) -> None:
        """Let go of files and handles. Safe twice and without a `collect`."""
        ...
