"""Snapshots of the detection service's state on the bus, from which another member continues.

A snapshot stands for all records of a job below certain offsets. It goes out in parts that a bus takes, the last two of
each job in turn, so that one that was cut off by a death leaves the one before. One without parts says that nothing is
remembered any more.
"""

from __future__ import annotations

import hashlib
import logging
import zlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from msgspec.structs import replace

from trainwarden.detectors.job.packed import MAX_STATE_BYTES
from trainwarden.errors import DetectorError
from trainwarden.protocols import Bus
from trainwarden.records import SnapshotRecord
from trainwarden.service_loop import Output
from trainwarden.topics import SNAPSHOTS

log = logging.getLogger("trainwarden.detection")

EVERY_S: Final = 30.0
SHARE: Final = 0.02  # of the service's time at most; with many or large jobs snapshots are further apart
PART_BYTES: Final = 600_000  # in base64 below `trainwarden.topics.MAX_RECORD_BYTES`
SLOTS: Final = 2  # snapshots of one job that are kept
_FASTEST: Final = 1  # zlib: a third of the time of its default for a tenth more bytes


@dataclass(frozen=True, slots=True)
class SnapshotOffsets:
    """The records that a snapshot stands for, as offsets by topic in one `partition` of each.

    They are those of the job below `positions`. Records of other jobs there, which have no snapshot, begin at `floors`.
    """

    partition: int
    positions: Mapping[str, int]
    floors: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One whole snapshot."""

    job: str
    number: int
    place: SnapshotOffsets
    kept: bytes


def parts_of(job: str, number: int, place: SnapshotOffsets, kept: bytes) -> list[Output]:
    """The records that carry one snapshot.

    Raises
    ------
    DetectorError
        If it is larger than `MAX_STATE_BYTES`.

    Examples
    --------
    >>> place = SnapshotOffsets(0, {"trainwarden.events": 7}, {})
    >>> ((key, record),) = parts_of("j", 3, place, b"memory")
    >>> key, record.parts, whole([record]).kept
    ('j/1/0', 1, b'memory')
    """
    if len(kept) > MAX_STATE_BYTES:
        raise DetectorError(f"the memory of job {job} has {len(kept)} bytes, more than {MAX_STATE_BYTES}")
    packed = zlib.compress(kept, _FASTEST)
    pieces = [packed[start : start + PART_BYTES] for start in range(0, len(packed), PART_BYTES)]
    digest = hashlib.blake2b(packed, digest_size=16).hexdigest()
    blank = _blank(job, number, place)
    return [
        (_key(job, number, part), replace(blank, part=part, parts=len(pieces), digest=digest, value=piece))
        for part, piece in enumerate(pieces)
    ]


def none_of(job: str, number: int, place: SnapshotOffsets) -> list[Output]:
    """The record which says that nothing is remembered of `job` any more."""
    return [(_key(job, one, 0), _blank(job, one, place)) for one in range(number, number + SLOTS)]


def _key(job: str, number: int, part: int) -> str:
    return f"{job}/{number % SLOTS}/{part}"


def _blank(job: str, number: int, place: SnapshotOffsets) -> SnapshotRecord:
    return SnapshotRecord(
        job=job, number=number, part=0, parts=0, partition=place.partition, positions=dict(place.positions),
        floors=dict(place.floors), digest="", value=b"",
    )  # fmt: skip


def whole(parts: Iterable[SnapshotRecord]) -> Snapshot | None:
    """The snapshot that `parts` of one number make; None if it is not whole."""
    by_part = {record.part: record for record in parts}
    first = by_part.get(0)
    if first is None or not first.parts or by_part.keys() < set(range(first.parts)):
        return None
    packed = b"".join(by_part[part].value for part in range(first.parts))
    if hashlib.blake2b(packed, digest_size=16).hexdigest() != first.digest:
        return None
    stream = zlib.decompressobj()
    try:
        kept = stream.decompress(packed, MAX_STATE_BYTES)
    except zlib.error:
        return None
    if not stream.eof:
        return None
    place = SnapshotOffsets(first.partition, first.positions, first.floors)
    return Snapshot(first.job, first.number, place, kept)


@dataclass(slots=True)
class Found:
    """What lies on the bus: the newest whole snapshot of each job, and the highest number that each job has used."""

    snapshots: dict[str, Snapshot] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)


def newest(bus: Bus, partitions: Collection[int], from_time_s: float) -> Found:
    """The snapshots of jobs whose records lie in one of `partitions`.

    Raises
    ------
    BusUnavailable
        If the bus is away.
    """
    found = Found()
    parts: dict[str, dict[int, dict[int, SnapshotRecord]]] = {}
    for message in bus.read(SNAPSHOTS, from_time_s=from_time_s):
        record = message.record
        if not isinstance(record, SnapshotRecord) or record.partition not in partitions:
            continue
        numbers = parts.setdefault(record.job, {})
        numbers.setdefault(record.number, {})[record.part] = record
        for old in sorted(numbers)[:-SLOTS]:
            del numbers[old]
    for job, by_number in parts.items():
        found.numbers[job] = max(by_number)
        for number in sorted(by_number, reverse=True):
            if any(not record.parts for record in by_number[number].values()):
                break  # forgotten
            if (snapshot := whole(by_number[number].values())) is not None:
                found.snapshots[job] = snapshot
                break
    return found


class Cadence:
    """When the next snapshot may be taken: of each job every `EVERY_S`, of all together `SHARE` of the time at most."""

    def __init__(self) -> None:
        self._free_s = 0.0
        self._taken_s: dict[str, float] = {}

    def due(self, jobs: Iterable[str], now_s: float) -> str | None:
        """The job whose snapshot has been due for longest; `now_s` is of a clock that never steps."""
        if now_s < self._free_s:
            return None
        oldest = min(jobs, key=lambda job: self._taken_s.get(job, float("-inf")), default=None)
        if oldest is None or now_s - self._taken_s.get(oldest, float("-inf")) < EVERY_S:
            return None
        return oldest

    def took(self, job: str, now_s: float) -> None:
        """A snapshot of `job` is taken now, or fails to be."""
        self._taken_s[job] = now_s
        self._free_s = now_s

    def cost(self, cost_s: float) -> None:
        """So much time went into it, here or beside."""
        self._free_s += cost_s / SHARE

    def forget(self, job: str) -> None:
        """`job` is watched no more."""
        self._taken_s.pop(job, None)
