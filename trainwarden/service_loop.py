"""The generic service loop: poll, handle, publish, flush, then commit.

A handler is pure bookkeeping over messages; this loop alone talks to the bus, catches, counts and waits.
Killed anywhere, the group resumes at the last commit, so every record is handled at least once, and
handlers are idempotent by record identity. A record that breaks the handler is handled again, alone; if it breaks it
again it goes to dead letters, and everything else goes on.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Protocol

import msgspec

from trainwarden.clock import Clock
from trainwarden.errors import BusUnavailable, RecordError, RecordsRefused, WardenError
from trainwarden.protocols import Bus, Consumer, Message
from trainwarden.records import DeadLetter, Record
from trainwarden.self_metrics import SelfMetrics
from trainwarden.topics import KEPT_BYTES, KEPT_REASON_CHARS, TOPICS, Topic, topic_of

_MARK_CHARS = 32  # of a value of a plan that is no more than a mark
_WHY_CHARS = 64

log = logging.getLogger("trainwarden.service_loop")

Output = tuple[str, Record]
"""Key (the job) and record; the topic follows from the record's type."""


class Handler(Protocol):
    """What a service does with messages."""

    topics: Sequence[Topic[Any]]
    group: str

    def start(self, bus: Bus, consumer: Consumer) -> None:
        """Called when the partitions of this member have changed: rebuild memory, rewind if needed."""
        ...

    def handle(self, messages: Sequence[Message]) -> Iterable[Output]:
        """Outputs that follow from `messages`."""
        ...

    def tick(self, now_s: float) -> Iterable[Output]:
        """Outputs that follow from time alone; called after every poll."""
        ...


class ServiceLoop:
    """Runs one handler until `stop` says so.

    Parameters
    ----------
    poll_timeout_s : float
        Longest wait for messages; also the longest time between two ticks.
    retry_s : float
        Wait after the bus was away.
    """

    def __init__(
        self,
        bus: Bus,
        handler: Handler,
        clock: Clock,
        metrics: SelfMetrics,
        *,
        poll_timeout_s: float = 0.1,
        retry_s: float = 0.5,
    ) -> None:
        self._bus = bus
        self._handler = handler
        self._clock = clock
        self._metrics = metrics
        self._poll_timeout_s = poll_timeout_s
        self._retry_s = retry_s
        self._consumer: Consumer | None = None
        self._assigned: frozenset[tuple[str, int]] | None = None
        self._knows = False  # the handler has a memory, which a member that has left the group has to let go of
        self._unflushed = False
        self._handling = False
        self._away = False
        self._alone = False
        self._failing: str | None = None  # why, as long as each round fails for the same reason
        self._pending: deque[Output] = deque()
        self._undecodable = 0  # of the consumer that is read now
        self._lost: dict[str, int] = {}  # the same
        for topic in handler.topics:
            metrics.count("dead_letters_total", "Records that broke the handler.", 0, topic=topic.name)
            metrics.count("records_lost_total", "Records gone before they could be read.", 0, topic=topic.name)
        metrics.count("undecodable_total", "Bytes that were no record of their topic.", 0)

    def run(self, stop: Callable[[], bool]) -> None:
        """Loop until `stop()` is true, then leave the group."""
        try:
            while not stop():
                self.step()
        finally:
            if self._consumer is not None:
                self._consumer.close()
                self._consumer = None

    def step(self) -> None:
        """One round. The one place of this service where errors are caught."""
        try:
            self._round()
            self._metrics.round_ended(self._clock.now_s(), bus_answers=True)
            if self._failing is not None:
                self._failing = None
                log.info("rounds succeed again", extra={"fields": {"group": self._handler.group}})
            if self._away:
                self._away = False
                log.info("bus is back", extra={"fields": {"group": self._handler.group}})
        except BusUnavailable as error:
            self._rejoin()
            self._metrics.round_ended(self._clock.now_s(), bus_answers=False)
            self._metrics.count("bus_unavailable_total", "Rounds in which the bus was away.")
            if not self._away:
                self._away = True
                fields = {"group": self._handler.group, "error": str(error)}
                log.warning("bus is away", extra={"fields": fields})
            self._clock.sleep(self._retry_s)
        except Exception as error:
            self._alone = not isinstance(error, WardenError)
            self._rejoin()
            self._metrics.count("errors_total", "Rounds that failed.", kind=type(error).__name__)
            if self._failing != (why := f"{type(error).__name__}: {error}"):
                self._failing = why
                fields = {"group": self._handler.group, "error": str(error)}
                log.error("round failed", exc_info=error if self._alone else None, extra={"fields": fields})
            self._clock.sleep(self._retry_s)

    def _rejoin(self) -> None:
        """After a failure between poll and publish, leave the group, so that what was polled comes again."""
        if self._handling and self._consumer is not None:
            self._handling = False
            self._assigned = None
            consumer, self._consumer = self._consumer, None
            with suppress(BusUnavailable):  # a member that cannot say goodbye is expelled when its lease ends
                consumer.close()

    def _round(self) -> None:
        if self._consumer is None:
            self._consumer = self._bus.consumer(self._handler.topics, self._handler.group)
            self._undecodable, self._lost = 0, {}
        self._publish()  # what was decided goes out before anything new is read, and before memory is rebuilt from it
        if self._unflushed:
            self._finish(self._consumer)
        self._take_over(self._consumer)
        messages = self._consumer.poll(self._poll_timeout_s)
        self._count_met(self._consumer)
        self._take_over(self._consumer)
        self._handling = True
        self._pending.extend(self._handled(messages))  # the handler counts it as told, even if its tick breaks
        self._unflushed = bool(messages or self._pending)
        self._pending.extend(self._handler.tick(self._clock.now_s()))
        self._handling = False
        self._unflushed = self._unflushed or bool(self._pending)
        self._publish()
        if self._unflushed:
            self._finish(self._consumer)
        self._metrics.count("messages_total", "Messages handled.", len(messages))
        self._metrics.lag(self._consumer.lag())

    def _count_met(self, consumer: Consumer) -> None:
        """Count what `consumer` has met since it was last asked."""
        new, self._undecodable = consumer.dead_letters - self._undecodable, consumer.dead_letters
        self._metrics.count("undecodable_total", "Bytes that were no record of their topic.", new)
        before, self._lost = self._lost, dict(consumer.lost)
        for topic, lost in self._lost.items():
            more = lost - before.get(topic, 0)
            self._metrics.count("records_lost_total", "Records gone before they could be read.", more, topic=topic)

    def _handled(self, messages: Sequence[Message]) -> list[Output]:
        """What follows from `messages`; after a round that broke, one by one, to find the one that breaks it."""
        if not messages:
            return []
        if not self._alone:
            return list(self._handler.handle(messages))
        outputs: list[Output] = []
        for message in messages:
            try:
                outputs.extend(self._handler.handle([message]))
            except WardenError:
                raise
            except Exception as error:  # the marked place for a record that breaks its handler twice
                self._metrics.count("dead_letters_total", "Records that broke the handler.", topic=message.topic)
                log.exception("record breaks the handler", extra={"fields": {"topic": message.topic}})
                outputs.append((message.topic, dead_letter_of(message, error)))
        self._alone = False
        return outputs

    def _publish(self) -> None:
        """Hand all outputs to the bus, each once; what it cannot take now is kept, what it never will is counted."""
        while self._pending:
            offer_shortened(self._bus, self._metrics, *self._pending[0])
            self._pending.popleft()

    def _take_over(self, consumer: Consumer) -> None:
        """Tell the handler of a new assignment before anything of it is handled.

        A `poll` at which the assignment changed returns nothing. Only once `start` has succeeded does the
        assignment count as taken over; else the next round tries again.
        """
        assigned = consumer.assignment()
        if assigned != self._assigned and (assigned or self._assigned or self._knows):
            self._handler.start(self._bus, consumer)
            self._assigned, self._knows = assigned, bool(assigned)

    def _finish(self, consumer: Consumer) -> None:
        """Flush, then commit; if the bus is away both are tried again before anything new is read."""
        while True:
            while refused := flush(self._bus, self._metrics):
                for key, record in refused:
                    if (shorter := shortened(record)) != record:
                        self._bus.publish(topic_of(record), key, shorter)
            try:
                consumer.commit()  # which flushes dead letters, and these may be refused as well
                break
            except RecordsRefused as error:
                _count_refused(self._metrics, error)
        self._unflushed = False


def offer(bus: Bus, metrics: SelfMetrics, key: str, record: Record) -> bool:
    """Publish `record`; False, and it is counted, if its topic does not take it."""
    try:
        bus.publish(topic_of(record), key, record)
    except RecordError as error:
        metrics.count("outputs_refused_total", "Outputs that no topic takes.", kind=type(record).__name__)
        log.error("output refused", extra={"fields": {"key": key, "error": str(error)}})
        return False
    return True


def offer_shortened(bus: Bus, metrics: SelfMetrics, key: str, record: Record) -> None:
    """Publish `record`, ever shorter while its topic does not take it."""
    while not offer(bus, metrics, key, record) and (shorter := shortened(record)) != record:
        record = shorter


def flush(bus: Bus, metrics: SelfMetrics) -> list[Output]:
    """Flush all that was published; what the bus refuses for good is counted and returned, and the rest goes on.

    Raises
    ------
    BusUnavailable
        If something was not acknowledged in time.
    """
    refused: list[Output] = []
    while True:
        try:
            bus.flush()
            return refused
        except RecordsRefused as error:
            _count_refused(metrics, error)
            for name, key, value in error.records:  # a bus may have a prefix before the names of its topics
                topic = next(topic for own, topic in TOPICS.items() if name.endswith(own))
                refused.append((key, topic.decode(value)))


def _count_refused(metrics: SelfMetrics, error: RecordsRefused) -> None:
    what = "Outputs that no topic takes."
    metrics.count("outputs_refused_total", what, len(error.records), kind=type(error).__name__)
    if not error.is_repeated:
        log.error("outputs refused", extra={"fields": {"error": str(error)}})


def shortened(record: Record) -> Record:
    """`record` without what was written beside its word, which matters more; in its shortest form it is as it was.

    Of a plan the short values stay longest, as by them others know whether it was done; before them, `why` is cut.
    """
    plan, why = getattr(record, "plan", None) or {}, getattr(record, "why", None) or ""
    marks = {name: value for name, value in plan.items() if len(str(value)) <= _MARK_CHARS}
    beside: dict[str, Any] = {field: {} for field in ("evidence", "votes") if getattr(record, field, None)}
    if marks != plan:
        beside["plan"] = marks
    if not beside and plan:
        beside = {"why": why[:_WHY_CHARS]} if len(why) > _WHY_CHARS else {"plan": {}}
    return msgspec.structs.replace(record, **beside) if beside else record


def dead_letter_of(message: Message, error: Exception) -> DeadLetter:
    """The dead letter of a record that breaks whoever handles it.

    Examples
    --------
    >>> from trainwarden.records import EventRecord
    >>> event = EventRecord(id="e1", job="j", node="n", time_s=1.0, kind="xid")
    >>> dead_letter_of(Message("trainwarden.events", 2, 7, 1.0, "j", event), KeyError("x")).reason
    "KeyError: 'x'"
    """
    try:
        value = topic_of(message.record).encode(message.record)
    except RecordError:
        value = b""
    reason = f"{type(error).__name__}: {error}"[:KEPT_REASON_CHARS]
    return DeadLetter(
        topic=message.topic, partition=message.partition, offset=message.offset, reason=reason, value=value[:KEPT_BYTES]
    )
