"""The topics of the bus: each ties a name to the type of its records, with the codec of that type."""

from __future__ import annotations

from math import inf
from typing import Generic, TypeVar

import msgspec

from trainwarden.errors import RecordError
from trainwarden.records import (
    ActionRecord,
    CollectivesRecord,
    CommandRecord,
    DeadLetter,
    EventRecord,
    HeartbeatRecord,
    IncidentRecord,
    IterationRecord,
    LogRecord,
    MetricsRecord,
    Record,
    SamplingRecord,
    SnapshotRecord,
    TaskRecord,
    VerdictRecord,
)

MAX_RECORD_BYTES = 900_000  # below Kafka's default max.message.bytes of 1,048,588 with room for headers

KEPT_BYTES = 64 * 1024  # of what went to dead letters: enough to see what it was; in base64 far below the limit above
KEPT_REASON_CHARS = 1_000

F = TypeVar("F", bound=msgspec.Struct)
R_co = TypeVar("R_co", bound=Record, covariant=True)


class Topic(Generic[R_co]):
    """A topic's name tied to the type of its records, with the codec of that type.

    Parameters
    ----------
    keep_s : float
        Seconds that its records are kept; ``inf`` for ever.
    compact : bool
        Whether of each key only the newest record need be kept.

    Examples
    --------
    >>> event = EventRecord(id="e1", job="j", node="n", time_s=1.0, kind="xid", device="GPU-0")
    >>> EVENTS.decode(EVENTS.encode(event)) == event
    True
    """

    def __init__(
        self, name: str, record_type: type[R_co], *, keep_s: float = 7 * 86_400.0, compact: bool = False
    ) -> None:
        self.name = name
        self.record_type = record_type
        self.keep_s = keep_s
        self.compact = compact
        self._decoder = msgspec.json.Decoder(record_type)

    def encode(self, record: Record) -> bytes:
        """Bytes of `record`.

        Raises
        ------
        RecordError
            If the record is of another topic's type, holds what JSON cannot, or is larger than
            `MAX_RECORD_BYTES`.
        """
        if not isinstance(record, self.record_type):
            raise RecordError(f"topic {self.name} takes {self.record_type.__name__}, not {type(record).__name__}")
        try:
            value = _ENCODER.encode(record)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise RecordError(f"record for {self.name} cannot be encoded: {error}") from error
        if len(value) > MAX_RECORD_BYTES:
            raise RecordError(f"record for {self.name} has {len(value)} bytes, more than {MAX_RECORD_BYTES}")
        return value

    def decode(self, value: bytes) -> R_co:
        """The record that `value` holds.

        Raises
        ------
        RecordError
            If it is not one; the message says what is wrong and where.
        """
        if len(value) > MAX_RECORD_BYTES:
            raise RecordError(f"{len(value)} bytes, more than {MAX_RECORD_BYTES}")
        try:
            return self._decoder.decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise RecordError(str(error)) from error


_ENCODER = msgspec.json.Encoder()

METRICS = Topic("trainwarden.metrics", MetricsRecord)
ITERATIONS = Topic("trainwarden.iterations", IterationRecord)
HEARTBEATS = Topic("trainwarden.heartbeats", HeartbeatRecord, keep_s=86_400.0)
COLLECTIVES = Topic("trainwarden.collectives", CollectivesRecord, keep_s=86_400.0)
LOGS = Topic("trainwarden.logs", LogRecord)
EVENTS = Topic("trainwarden.events", EventRecord)
VERDICTS = Topic("trainwarden.verdicts", VerdictRecord)
INCIDENTS = Topic("trainwarden.incidents", IncidentRecord, keep_s=90 * 86_400.0)
ACTIONS = Topic("trainwarden.actions", ActionRecord, keep_s=90 * 86_400.0)
SAMPLING = Topic("trainwarden.sampling", SamplingRecord, keep_s=3600.0)
COMMANDS = Topic("trainwarden.commands", CommandRecord, keep_s=inf)  # a stop holds until somebody resumes
DEAD_LETTERS = Topic("trainwarden.dead_letters", DeadLetter)
SNAPSHOTS = Topic("trainwarden.snapshots", SnapshotRecord, keep_s=86_400.0, compact=True)
TASKS = Topic("trainwarden.tasks", TaskRecord, keep_s=90 * 86_400.0, compact=True)

TOPICS: dict[str, Topic[Record]] = {
    topic.name: topic
    for topic in (
        METRICS, ITERATIONS, HEARTBEATS, COLLECTIVES, LOGS, EVENTS, VERDICTS, INCIDENTS, ACTIONS, SAMPLING,
        COMMANDS, DEAD_LETTERS, SNAPSHOTS, TASKS,
    )
}  # fmt: skip

_TOPIC_OF_TYPE: dict[type[Record], Topic[Record]] = {topic.record_type: topic for topic in TOPICS.values()}


def topic_of(record: Record) -> Topic[Record]:
    """The topic that takes `record`; every record type has exactly one."""
    return _TOPIC_OF_TYPE[type(record)]


def fields_as(event: EventRecord, kind: type[F]) -> F:
    """An event's fields as the typed struct that the plug-in declares for this kind of event.

    Raises
    ------
    RecordError
        If they do not fit it.

    Examples
    --------
    >>> class Tripped(msgspec.Struct):
    ...     celsius: float
    >>> event = EventRecord(id="e", job="j", node="n", time_s=1.0, kind="my.tripped", fields={"celsius": 95.0})
    >>> fields_as(event, Tripped)
    Tripped(celsius=95.0)
    """
    try:
        return msgspec.convert(event.fields, kind)
    except msgspec.ValidationError as error:
        raise RecordError(f"event {event.id} of kind {event.kind}: {error}") from error
