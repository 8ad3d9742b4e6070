"""From the agent to the bus, by way of the disk while the bus is away.

Order holds: what waits in the spool goes before anything newer. A batch that the bus has queued but not
confirmed lies in the spool as well, so that a kill loses nothing; once the bus confirms it, it is struck
off there without being sent again.

Connecting to the bus without waiting for it: a broker that is away can take its time, the collectors cannot.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import msgspec

from trainwarden.clock import Clock
from trainwarden.collectors.agent.spool import Spool
from trainwarden.errors import BusError, BusUnavailable, RecordError, RecordsRefused
from trainwarden.protocols import Bus
from trainwarden.records import Record
from trainwarden.self_metrics import SelfMetrics
from trainwarden.topics import topic_of


class Connector:
    """Makes the bus in the background, in a thread that ends once there is a bus.

    Examples
    --------
    >>> never = threading.Event()
    >>> Connector(lambda: never.wait()).bus(wait_s=0.01)
    Traceback (most recent call last):
    trainwarden.errors.BusUnavailable: still connecting
    >>> never.set()
    """

    def __init__(self, factory: Callable[[], Bus]) -> None:
        self._factory = factory
        self._thread: threading.Thread | None = None
        self._bus: Bus | None = None
        self._error: BaseException | None = None

    def bus(self, wait_s: float) -> Bus:
        """A new bus, if it is there within `wait_s`; else the attempt goes on and the next call asks for its outcome.

        Raises
        ------
        BusUnavailable
            If it takes longer.
        Exception
            Whatever the factory has raised; the next call tries anew.
        """
        if self._thread is None:
            self._bus = self._error = None
            self._thread = threading.Thread(target=self._connect, name="bus-connector", daemon=True)
            self._thread.start()
        self._thread.join(wait_s)
        if self._thread.is_alive():
            raise BusUnavailable("still connecting")
        self._thread = None
        if self._error is not None:
            raise self._error
        assert self._bus is not None
        return self._bus

    def _connect(self) -> None:
        try:
            self._bus = self._factory()
        except Exception as error:  # noqa: BLE001 - carried over to the agent's thread, which raises it
            self._error = error


log = logging.getLogger("trainwarden.agent")

_DRAIN_RECORDS = 500
_DRAIN_SLICE_S = 0.25  # then the collectors get their turn again
_TRY_S = 1.0  # how long a try waits while the bus is away; what it has queued goes on in the background or next time
_STUCK_S = 0.5  # a delivery that takes longer may be overtaken
_MOST_AHEAD = 3_000  # heartbeats that overtake between two flushes: ten minutes' worth
_FIRST_RETRY_S = 0.5
_LONGEST_RETRY_S = 5.0

Pair = tuple[str, Record]
"""Bus key and record."""


class _Failure(msgspec.Struct, frozen=True):
    """The bus did not confirm `pairs`; it has the first `queued` of them and tries those again itself."""

    queued: int
    pairs: list[Pair]


class Delivery:
    """Publishes with one key and keeps on disk what the bus cannot take now.

    Parameters
    ----------
    bus_factory : callable
        Makes the bus; called again later if it raises `BusUnavailable`.
    spool : Spool
        Where records wait.
    clock : Clock
    metrics : SelfMetrics
    key : str
        Bus key of every record: the job.
    flush_timeout_s : float
        Longest time that one call of `send` or `drain` waits for the bus.
    """

    def __init__(
        self,
        bus_factory: Callable[[], Bus],
        spool: Spool,
        clock: Clock,
        metrics: SelfMetrics,
        *,
        key: str,
        flush_timeout_s: float,
    ) -> None:
        self.spool = spool
        self._connector = Connector(bus_factory)
        self._key = key
        self._clock = clock
        self._metrics = metrics
        self._flush_timeout_s = flush_timeout_s
        self._bus: Bus | None = None
        self._queued_until = 0  # spool number up to which the bus has records queued, unconfirmed
        self._away = False
        self._retry_at_s = 0.0
        self._retry_s = _FIRST_RETRY_S
        self._disk_failed = False
        self._busy_since_s = float("inf")
        self._ahead = 0
        self.dropped = 0
        self.flush_s = 0.0
        for why in ("oldest", "disk", "refused"):
            metrics.count("dropped_records_total", "Records given up.", 0, why=why)

    @property
    def away(self) -> bool:
        """Whether the bus did not confirm when it was last asked."""
        return self._away

    @property
    def behind(self) -> bool:
        """Whether there is something to do although nothing new has come."""
        return self._away or len(self.spool) > 0

    def send(self, records: Sequence[Record]) -> None:
        """Bring `records` onto the bus, or onto the disk; when this returns, one of the two has them.

        What neither takes (no record of ours, disk full) is dropped and counted.
        """
        with self._busy():
            self._send(records)

    def _send(self, records: Sequence[Record]) -> None:
        if not self._away and not len(self.spool):
            failure = self._publish([(self._key, record) for record in records], self._flush_timeout_s)
            if failure is None:
                return
            head = self.spool.head
            self._keep(failure.pairs)
            self._queued_until = head + failure.queued if len(self.spool) else 0
        else:
            self._keep([(self._key, record) for record in records])

    def drain(self) -> None:
        """Bring a part of what waits onto the bus, if it is time to try."""
        with self._busy():
            self._drain()

    def _drain(self) -> None:
        if not len(self.spool) and not self._away:
            return
        now_s = self._clock.monotonic_s()
        if self._away and now_s < self._retry_at_s:
            return
        if self._away:
            if self._publish([], min(self._flush_timeout_s, _TRY_S)) is not None:
                return
            self.spool.advance(self._queued_until)
            self._queued_until = 0
        while self._clock.monotonic_s() < now_s + _DRAIN_SLICE_S:
            end, batch = self.spool.peek(_DRAIN_RECORDS)
            if not batch:
                return
            failure = self._publish(batch, self._flush_timeout_s)
            if failure is not None:
                self._queued_until = end if failure.queued == len(batch) else self.spool.head + failure.queued
                return
            self.spool.advance(end)

    def overtake(self, heartbeat: Record) -> bool:
        """Hand `heartbeat` to the bus past what it does not confirm; from any thread. False: it goes with the rest.

        One partition of a bus can be away while the others work, and a late heartbeat is worth nothing. So while
        the bus confirms, order holds; while it does not, heartbeats go ahead, unconfirmed.
        """
        bus, stuck_s = self._bus, self._clock.monotonic_s() - self._busy_since_s
        if bus is None or not (self._away or stuck_s > _STUCK_S) or self._ahead >= _MOST_AHEAD:
            return False
        try:
            bus.publish(topic_of(heartbeat), self._key, heartbeat)
        except (BusError, RecordError):
            return False
        self._ahead += 1
        return True

    def close(self) -> None:
        """Let go of bus and spool. Safe twice."""
        if self._bus is not None:
            self._bus.close()
            self._bus = None
        self.spool.close()

    @contextmanager
    def _busy(self) -> Iterator[None]:
        self._busy_since_s = self._clock.monotonic_s()
        try:
            yield
        finally:
            self._busy_since_s = float("inf")

    def _publish(self, pairs: Sequence[Pair], timeout_s: float) -> _Failure | None:
        """Publish and flush; None if the bus has confirmed."""
        fit: list[Pair] = []
        tried = 0
        start_s = self._clock.monotonic_s()
        try:
            if self._bus is None:
                self._bus = self._connector.bus(min(timeout_s, _TRY_S))
            for pair in pairs:
                if self._queue(self._bus, pair):
                    fit.append(pair)
                tried += 1
            self._flush(self._bus, timeout_s)
        except BusError as error:
            queued = len(fit) if self._failed(error) else 0
            return _Failure(queued=queued, pairs=[*fit, *pairs[tried:]])
        self._ahead = 0
        self.flush_s = self._clock.monotonic_s() - start_s
        if self._away:
            self._away = False
            log.info("bus is back", extra={"fields": {"spooled": len(self.spool)}})
        self._retry_s = _FIRST_RETRY_S
        return None

    def _flush(self, bus: Bus, timeout_s: float) -> None:
        """Flush; what the bus will never take is counted and left, and everything else goes on."""
        while True:
            try:
                bus.flush(timeout_s)
                return
            except RecordsRefused as error:
                self._drop(len(error.records), "refused")
                if error.is_repeated:
                    continue
                named = sorted({f"{topic} {key[:80]}" for topic, key, _ in error.records})[:5]
                fields = {"records": len(error.records), "of": named, "error": str(error)}
                log.warning("records refused", extra={"fields": fields})

    def _queue(self, bus: Bus, pair: Pair) -> bool:
        key, record = pair
        try:
            bus.publish(topic_of(record), key, record)
        except RecordError as error:
            self._drop(1, "refused")
            log.warning("record refused", extra={"fields": {"type": type(record).__name__, "error": str(error)}})
            return False
        return True

    def _failed(self, error: BusError) -> bool:
        """Note that the bus is away; False if what it had queued is gone with it."""
        self._metrics.count("bus_unavailable_total", "Attempts at which the bus did not confirm.")
        if not self._away:
            self._away = True
            log.warning("bus is away", extra={"fields": {"error": str(error)}})
        self._retry_at_s = self._clock.monotonic_s() + self._retry_s
        self._retry_s = min(self._retry_s * 2.0, _LONGEST_RETRY_S)
        if isinstance(error, BusUnavailable) or self._bus is None:
            return True
        # The connection itself is broken, so the next try makes a new one; the spool has what it had queued.
        broken = self._bus
        self._bus = None
        self._queued_until = 0
        try:
            broken.close()
        except BusError as trouble:
            log.debug("broken bus closed", extra={"fields": {"error": str(trouble)}})
        return False

    def _keep(self, pairs: Sequence[Pair]) -> None:
        refused = self.spool.refused
        try:
            dropped = self.spool.append(pairs)
        except OSError as error:
            self._drop(len(pairs), "disk")
            if not self._disk_failed:
                log.error("spool cannot be written", extra={"fields": {"error": str(error)}})
            self._disk_failed = True
            return
        self._disk_failed = False
        self._drop(dropped, "oldest")
        self._drop(self.spool.refused - refused, "refused")

    def _drop(self, records: int, why: str) -> None:
        if records:
            self.dropped += records
            self._metrics.count("dropped_records_total", "Records given up.", records, why=why)
