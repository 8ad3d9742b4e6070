"""Takes snapshots of the jobs that a detection service watches, and gives their memory back to whoever goes on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from detectors.job_watch import JobWatch
from detectors.reading import Reading
from detectors.snapshots import Cadence, Found, Place, newest, none_of, parts_of
from trainwarden.clock import Clock
from trainwarden.errors import DetectorError
from trainwarden.protocols import Bus, Message
from trainwarden.self_metrics import SelfMetrics
from trainwarden.service_loop import Output
from trainwarden.topics import SNAPSHOTS

log = logging.getLogger("trainwarden.detection")


class Keeper:
    """Snapshots of the jobs of one member.

    Parameters
    ----------
    made : callable
        ``made(job)`` is a watch of that job which remembers nothing yet.
    """

    def __init__(self, clock: Clock, metrics: SelfMetrics, reading: Reading, made: Callable[[str], JobWatch]) -> None:
        self._clock, self._metrics, self._reading, self._made = clock, metrics, reading, made
        self._cadence = Cadence()
        self._numbers: dict[str, int] = {}
        self._safe: set[str] = set()  # jobs that have a snapshot
        self._since: dict[str, dict[str, int]] = {}  # of jobs that were given back: the offsets that they begin at
        self._began: dict[str, tuple[int, dict[str, int]]] = {}  # of jobs that have no snapshot: partition, offsets
        self._ready: list[Output] = []

    def give_back(self, bus: Bus, gained: frozenset[int]) -> tuple[dict[str, JobWatch], dict[tuple[str, int], int]]:
        """The jobs of the partitions `gained` as they were last kept, and the offsets from which to read on.

        There are none for a partition in which no job was kept, or in which one could not be given back.

        Raises
        ------
        BusUnavailable
            If the bus is away.
        """
        self._ready = []
        found = newest(bus, gained, self._clock.now_s() - SNAPSHOTS.keep_s)
        self._numbers |= found.numbers
        watches = self._restored(found)
        refused = {found.snapshots[job].place.partition for job in found.snapshots.keys() - watches.keys()}
        offsets: dict[tuple[str, int], int] = {}
        for snapshot in found.snapshots.values():
            if snapshot.place.partition not in refused:
                for topic, offset in (*snapshot.place.positions.items(), *snapshot.place.floors.items()):
                    where = (topic, snapshot.place.partition)
                    offsets[where] = min(offsets.get(where, offset), offset)
        return watches, offsets

    def _restored(self, found: Found) -> dict[str, JobWatch]:
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
            self._since[job] = dict(snapshot.place.positions)
        return out

    def has(self, message: Message) -> bool:
        """Whether `message` is in a snapshot that its job was given back from."""
        since = self._since.get(message.key)
        return since is not None and message.offset < since.get(message.topic, 0)

    def heard(self, message: Message) -> None:
        """A record of a job has been handled."""
        if message.key not in self._safe and message.key not in self._began:
            positions = self._reading.positions(message.partition) | {message.topic: message.offset}
            self._began[message.key] = (message.partition, positions)

    def caught_up(self) -> None:
        """All that was there has been read: from now on every record is new."""
        self._since.clear()

    def take(self, watches: Mapping[str, JobWatch]) -> list[Output]:
        """Records to publish now: those of a snapshot that was taken in the round before.

        Until then all that this memory says was told is safe on the bus.
        """
        out, self._ready = self._ready, []
        begun_s = self._clock.monotonic_s()
        job = self._cadence.due(watches, begun_s)
        if job is not None:
            try:
                self._ready = self._parts(job, watches[job])
            except Exception as error:  # the marked place for plug-ins whose memory cannot be kept
                self._metrics.count("snapshots_failed_total", "Snapshots that could not be taken.")
                broken = not isinstance(error, DetectorError)
                log.warning("no snapshot", exc_info=broken, extra={"fields": {"job": job, "error": str(error)}})
            self._cadence.took(job, begun_s, self._clock.monotonic_s() - begun_s)
        return out

    def _parts(self, job: str, watch: JobWatch) -> list[Output]:
        kept = watch.kept()
        self._began.pop(job, None)
        self._safe.add(job)
        number = self._numbers[job] = self._numbers.get(job, 0) + 1
        self._metrics.count("snapshots_total", "Snapshots taken of jobs.")
        return parts_of(job, number, self._place(watch), kept)

    def _place(self, watch: JobWatch) -> Place:
        floors: dict[str, int] = {}
        for partition, positions in self._began.values():
            if partition == watch.partition:
                floors |= {topic: min(floors.get(topic, offset), offset) for topic, offset in positions.items()}
        return Place(watch.partition, self._reading.positions(watch.partition), floors)

    def over(self, watch: JobWatch) -> list[Output]:
        """Nobody hears of a job any more, or it must be begun anew: what to publish."""
        job = watch.state.job
        self.drop(job)
        number = self._numbers.pop(job, None)
        return [] if number is None else none_of(job, number + 1, self._place(watch))

    def drop(self, job: str) -> None:
        """Another member watches the job."""
        self._cadence.forget(job)
        self._safe.discard(job)
        self._since.pop(job, None)
        self._began.pop(job, None)
        self._ready = [one for one in self._ready if getattr(one[1], "job", None) != job]
