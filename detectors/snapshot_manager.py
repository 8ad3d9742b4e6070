"""Takes snapshots of watched jobs and restores them in whichever service continues."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Final, NamedTuple

from trainwarden.clock import Clock
from trainwarden.detectors.job_monitor import JobMonitor
from trainwarden.detectors.replay_tracker import ReplayTracker
from trainwarden.detectors.snapshots import SLOTS, Cadence, Found, SnapshotOffsets, newest, none_of, parts_of
from trainwarden.errors import DetectorError
from trainwarden.protocols import Bus, Message
from trainwarden.self_metrics import SelfMetrics
from trainwarden.service_loop import Output
from trainwarden.topics import SNAPSHOTS

log = logging.getLogger("trainwarden.detection")

Where = tuple[str, int]  # topic and partition
AT_ONCE_BYTES: Final = 4 << 20  # packed within a tenth of a second; what is larger is packed beside the watching
FLOOR_S: Final = 3600.0  # a job that could not be kept for so long holds back no other


class _Begun(NamedTuple):
    """Where a job was first heard of."""

    at_s: float
    partition: int
    positions: dict[str, int]


class SnapshotManager:
    """Snapshots of the jobs of one member.

    Parameters
    ----------
    made : callable
        ``made(job)`` is a watch of that job which remembers nothing yet.
    """

    def __init__(
        self, clock: Clock, metrics: SelfMetrics, reading: ReplayTracker, made: Callable[[str], JobMonitor]
    ) -> None:
        self._clock, self._metrics, self._reading, self._made = clock, metrics, reading, made
        self._cadence = Cadence()
        self._numbers: dict[str, int] = {}
        self._safe: set[str] = set()  # jobs that have a snapshot
        self._since: dict[str, dict[Where, int]] = {}  # of jobs that were given back: the offsets that they begin at
        self._began: dict[str, _Begun] = {}  # of jobs that have no snapshot
        self._packing: tuple[str, Future[tuple[list[Output], float]]] | None = None
        self._packer = ThreadPoolExecutor(1, thread_name_prefix="snapshots")
        metrics.count("snapshots_refused_total", "Snapshots that could not be used.", 0)
        metrics.count("snapshots_failed_total", "Snapshots that could not be taken.", 0)

    def restore_jobs(
        self, bus: Bus, kept: frozenset[int], gained: frozenset[int], committed: Mapping[Where, int]
    ) -> tuple[dict[str, JobMonitor], dict[Where, int]]:
        """The jobs of the partitions `gained` as they were last kept, and the offsets from which to read on.

        There are none for a partition in which no job was kept, or in which one could not be given back. No offset is
        beyond what the group has `committed`, whatever a snapshot says.

        Raises
        ------
        BusUnavailable
            If the bus is away.
        """
        if self._packing is not None:
            self._cadence.forget(self._packing[0])
            self._packing = None
        found = newest(bus, kept | gained, self._clock.now_s() - SNAPSHOTS.keep_s)
        for job, number in found.numbers.items():
            self._numbers[job] = max(number, self._numbers.get(job, 0))
        for job in [job for job, one in found.snapshots.items() if one.place.partition not in gained]:
            del found.snapshots[job]
        watches = self._restored(found, committed)
        refused = {found.snapshots[job].place.partition for job in found.snapshots.keys() - watches.keys()}
        offsets: dict[Where, int] = {}
        for snapshot in found.snapshots.values():
            partition = snapshot.place.partition
            if partition not in refused:
                for said in (snapshot.place.positions, snapshot.place.floors):
                    for where, offset in _believed(said, partition, committed).items():
                        offsets[where] = min(offsets.get(where, offset), offset)
        return watches, offsets

    def _restored(self, found: Found, committed: Mapping[Where, int]) -> dict[str, JobMonitor]:
        out = {}
        for job, snapshot in found.snapshots.items():
            watch = self._made(job)
            try:
                watch.restore(snapshot.kept)
            except Exception as error:  # the marked place for plug-ins whose memory cannot be given back
                self._metrics.count("snapshots_refused_total", "Snapshots that could not be used.")
                broken = not isinstance(error, DetectorError)
                log.warning("snapshot refused", exc_info=broken, extra={"fields": {"job": job, "error": str(error)}})
                continue
            out[job] = watch
            watch.partition = snapshot.place.partition
            self._safe.add(job)
            self._since[job] = _believed(snapshot.place.positions, watch.partition, committed)
        return out

    def has(self, message: Message) -> bool:
        """Whether `message` is in a snapshot that its job was given back from."""
        since = self._since.get(message.key)
        return since is not None and message.offset < since.get((message.topic, message.partition), 0)

    def observe(self, message: Message) -> None:
        """A record of a job has been handled."""
        if message.key not in self._safe and message.key not in self._began:
            positions = self._reading.positions(message.partition) | {message.topic: message.offset}
            self._began[message.key] = _Begun(self._clock.monotonic_s(), message.partition, positions)

    def caught_up(self) -> None:
        """All that was there has been read: from now on every record is new."""
        self._since.clear()

    def poll(self, watches: Mapping[str, JobMonitor]) -> list[Output]:
        """Records to publish now: those of a snapshot that was taken in the round before.

        Until then all that this memory says was told is safe on the bus.
        """
        out: list[Output] = []
        if self._packing is not None:
            if not self._packing[1].done():
                return []
            (job, packed), self._packing = self._packing, None
            out = self._packed(job, packed)
        begun_s = self._clock.monotonic_s()
        due = self._cadence.due(watches, begun_s)
        if due is not None:
            self._cadence.took(due, begun_s)
            self._take_one(due, watches[due])
        return out

    def _take_one(self, job: str, watch: JobMonitor) -> None:
        begun_s = self._clock.monotonic_s()
        try:
            kept, place = watch.snapshot(), self._place(watch)
        except Exception as error:  # noqa: BLE001 - the marked place for plug-ins whose memory cannot be kept
            self._failed(job, error)
            return
        self._cadence.cost(self._clock.monotonic_s() - begun_s)
        number = self._numbers[job] = self._numbers.get(job, 0) + 1
        packed = self._packer.submit(self._timed_parts, job, number, place, kept)
        if len(kept) <= AT_ONCE_BYTES:
            wait([packed])
        self._packing = (job, packed)

    def _timed_parts(self, job: str, number: int, place: SnapshotOffsets, kept: bytes) -> tuple[list[Output], float]:
        begun_s = self._clock.monotonic_s()
        return parts_of(job, number, place, kept), self._clock.monotonic_s() - begun_s

    def _packed(self, job: str, packed: Future[tuple[list[Output], float]]) -> list[Output]:
        try:
            out, cost_s = packed.result()
        except DetectorError as error:
            self._failed(job, error)
            return []
        self._cadence.cost(cost_s)
        self._began.pop(job, None)
        self._safe.add(job)
        self._metrics.count("snapshots_total", "Snapshots taken of jobs.")
        return out

    def _failed(self, job: str, error: Exception) -> None:
        self._metrics.count("snapshots_failed_total", "Snapshots that could not be taken.")
        broken = error if not isinstance(error, DetectorError) else None
        log.warning("no snapshot", exc_info=broken, extra={"fields": {"job": job, "error": str(error)}})

    def _place(self, watch: JobMonitor) -> SnapshotOffsets:
        floors: dict[str, int] = {}
        latest_s = self._clock.monotonic_s() - FLOOR_S
        for begun in self._began.values():
            if begun.partition == watch.partition and begun.at_s >= latest_s:
                floors |= {topic: min(floors.get(topic, offset), offset) for topic, offset in begun.positions.items()}
        return SnapshotOffsets(watch.partition, self._reading.positions(watch.partition), floors)

    def over(self, watch: JobMonitor) -> list[Output]:
        """Nobody hears of a job any more, or it must be begun anew: what to publish."""
        job = watch.state.job
        self.drop(job)
        number = self._numbers.get(job)
        if number is None:
            return []
        self._numbers[job] = number + SLOTS  # whoever begins the job anew counts on
        return none_of(job, number + 1, self._place(watch))

    def drop(self, job: str) -> None:
        """Another member watches the job."""
        self._cadence.forget(job)
        self._safe.discard(job)
        self._since.pop(job, None)
        self._began.pop(job, None)
        if self._packing is not None and self._packing[0] == job:
            self._packing = None


def _believed(said: Mapping[str, int], partition: int, committed: Mapping[Where, int]) -> dict[Where, int]:
    """Offsets that a snapshot says, as far as the group has come."""
    return {
        where: min(max(0, offset), committed[where])
        for topic, offset in said.items()
        if (where := (topic, partition)) in committed
    }
