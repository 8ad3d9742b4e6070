"""The disk spool: records that the bus could not take yet, bounded, oldest dropped first and counted.

::

    SPOOL_DIR/
    ├── 0000000007.seg     frames: length and checksum (4 bytes each, little endian), then topic, key, record
    ├── 0000000008.seg
    └── head.json          the segment and the offset up to which the bus has everything

A segment is only ever appended to by the process that made it, so a torn tail can be at the end of a segment
alone: reading stops there and goes on with the next. `head.json` is written after the bus has confirmed, so a
kill in between sends some records again and loses none.

Records as bytes in a file: length and checksum, then topic, key and record. Reading tells damage from truth.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import msgspec

from trainwarden.errors import RecordError
from trainwarden.records import Record
from trainwarden.state import load_json, save_json
from trainwarden.topics import TOPICS, topic_of

_FRAME = struct.Struct("<II")


def frame(key: str, record: Record) -> bytes:
    """`record` framed.

    Raises
    ------
    RecordError
        If it is too large for any bus.

    Examples
    --------
    >>> from trainwarden.records import EventRecord
    >>> event = EventRecord(id="e", job="j", node="n", time_s=1.0, kind="xid")
    >>> data = frame("j", event)
    >>> payload, end = next_frame(data, 0)
    >>> (end == len(data), pair(payload) == ("j", event))
    (True, True)
    """
    topic = topic_of(record)
    payload = b"\0".join((topic.name.encode(), key.encode(), topic.encode(record)))
    return _FRAME.pack(len(payload), zlib.crc32(payload)) + payload


def next_frame(data: bytes, place: int) -> tuple[bytes | None, int]:
    """Payload at `place` (None if damaged) and where the next frame begins (-1 if `data` ends first)."""
    if place + _FRAME.size > len(data):
        return None, -1
    length, checksum = _FRAME.unpack_from(data, place)
    end = place + _FRAME.size + length
    if end > len(data):
        return None, -1
    payload = data[place + _FRAME.size : end]
    return (payload if zlib.crc32(payload) == checksum else None), end


def length_of(data: bytes, frames: int) -> int:
    """Bytes that the first `frames` frames of `data` take; all of `data` if it ends first."""
    place = 0
    for _ in range(frames):
        if place + _FRAME.size > len(data):
            return len(data)
        place += _FRAME.size + int(_FRAME.unpack_from(data, place)[0])
    return min(place, len(data))


def pair(payload: bytes) -> tuple[str, Record] | None:
    """Key and record of a payload; None if it holds no record of ours."""
    name, _, rest = payload.partition(b"\0")
    key, _, value = rest.partition(b"\0")
    topic = TOPICS.get(name.decode(errors="replace"))
    if topic is None:
        return None
    try:
        return key.decode(), topic.decode(value)
    except (RecordError, UnicodeDecodeError):
        return None


def read_from(path: Path, offset: int) -> bytes:
    """The rest of a segment (at most a few megabytes); nothing if somebody has removed it."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read()
    except FileNotFoundError:
        return b""


def count_frames(path: Path, start: int) -> int:
    """Whole frames from `start` on, by their lengths."""
    size = path.stat().st_size
    records = 0
    with path.open("rb") as file:
        place = start
        while place + _FRAME.size <= size:
            file.seek(place)
            place += _FRAME.size + int(_FRAME.unpack(file.read(_FRAME.size))[0])
            records += place <= size
    return records


_SEGMENTS = 16  # dropping the oldest loses at most this share of the spool at a time
_LARGEST_SEGMENT = 4 * 1024 * 1024  # one is read into memory at a time


class _Segment(msgspec.Struct):
    """One file; `first` is the number of its first record, `records` how many it holds."""

    number: int
    path: Path
    first: int
    records: int = 0
    bytes: int = 0


class Spool:
    """A bounded queue of records in files, oldest first out.

    Parameters
    ----------
    folder : Path
        Made if it does not exist; what an earlier process left there is taken over.
    limit_bytes : int
        Upper bound of all segments together.

    Examples
    --------
    >>> import tempfile
    >>> from trainwarden.records import EventRecord
    >>> spool = Spool(Path(tempfile.mkdtemp()), 65_536)
    >>> event = EventRecord(id="e", job="j", node="n", time_s=1.0, kind="xid")
    >>> spool.append([("j", event)])
    0
    >>> end, batch = spool.peek(10)
    >>> batch == [("j", event)]
    True
    >>> spool.advance(end)
    >>> len(spool)
    0
    """

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self._folder = folder
        self._limit_bytes = limit_bytes
        self._segment_bytes = min(_LARGEST_SEGMENT, limit_bytes // _SEGMENTS)
        self._segments: deque[_Segment] = deque()
        self._write_fd: int | None = None
        self._head = 0  # number of the oldest record still to be delivered
        self._offset = 0  # where that record begins in the first segment
        self._next_number = 0
        self.damaged = 0  # frames that could not be read back
        self.refused = 0  # records that no bus would take (too large)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._take_over()

    def __len__(self) -> int:
        """Records kept."""
        return self._tail - self._head

    @property
    def size_bytes(self) -> int:
        """Bytes of all segments on disk."""
        return sum(segment.bytes for segment in self._segments)

    @property
    def head(self) -> int:
        """Number of the oldest record kept; numbers grow by one per record and never repeat in a process."""
        return self._head

    @property
    def _tail(self) -> int:
        if not self._segments:
            return self._head
        return self._segments[-1].first + self._segments[-1].records

    def append(self, records: Sequence[tuple[str, Record]]) -> int:
        """Keep `records`, pairs of key and record, in order; the number of oldest records dropped to make room.

        Raises
        ------
        OSError
            If the disk refuses; then none of `records` after the last full segment is kept.
        """
        dropped = 0
        pending: list[bytes] = []
        pending_bytes = 0
        for key, record in records:
            try:
                framed = frame(key, record)
            except RecordError:
                self.refused += 1
                continue
            if pending_bytes + len(framed) > self._segment_bytes and pending:
                dropped += self._write(pending)
                pending, pending_bytes = [], 0
            pending.append(framed)
            pending_bytes += len(framed)
        if pending:
            dropped += self._write(pending)
        return dropped

    def peek(self, limit: int, limit_bytes: int = 1_000_000) -> tuple[int, list[tuple[str, Record]]]:
        """The oldest records, at most `limit` and about `limit_bytes`, and the number to `advance` to for them.

        Frames that are no record any more (a torn tail, a flipped bit) are left out and counted in `damaged`.
        """
        while self._segments:
            segment = self._segments[0]
            end = segment.first + segment.records
            data = read_from(segment.path, self._offset)
            number, place = self._head, 0
            batch: list[tuple[str, Record]] = []
            while number < end and len(batch) < limit and (place < limit_bytes or not batch):
                payload, place = next_frame(data, place)
                if place < 0:
                    self.damaged += end - number
                    number = end
                    break
                number += 1
                found = pair(payload) if payload is not None else None
                if found is None:
                    self.damaged += 1
                else:
                    batch.append(found)
            if batch:
                return number, batch
            self.advance(number)
        return self._head, []

    def advance(self, number: int) -> None:
        """Forget every record before `number`; a number that dropping has overtaken changes nothing."""
        if number <= self._head:
            return
        last_removed = self._next_number - 1
        while self._segments and number >= (end := self._segments[0].first + self._segments[0].records):
            self._head, self._offset = end, 0
            last_removed = self._remove_first()
        if self._segments and number > self._head:
            self._offset += length_of(read_from(self._segments[0].path, self._offset), number - self._head)
            self._head = number
        first = self._segments[0].number if self._segments else last_removed + 1
        save_json(self._folder / "head.json", {"segment": first, "offset": self._offset}, durable=False)

    def close(self) -> None:
        """Let go of the file being written. Safe twice."""
        if self._write_fd is not None:
            os.close(self._write_fd)
            self._write_fd = None

    def _write(self, frames: list[bytes]) -> int:
        data = b"".join(frames)
        dropped = 0
        while self._segments and self.size_bytes + len(data) > self._limit_bytes:
            dropped += self._drop_oldest()
        segment = self._segments[-1] if self._segments and self._write_fd is not None else None
        if segment is None or segment.bytes + len(data) > self._segment_bytes:
            segment = self._new_segment()
        assert self._write_fd is not None
        try:
            written = os.write(self._write_fd, data)
        except OSError:
            self.close()  # the tail may be torn: the next write begins a new segment
            raise
        if written < len(data):
            self.close()
            raise OSError(f"spool: {written} of {len(data)} bytes written")
        segment.bytes += len(data)
        segment.records += len(frames)
        return dropped

    def _new_segment(self) -> _Segment:
        self.close()
        number = self._segments[-1].number + 1 if self._segments else self._next_number
        segment = _Segment(number, self._folder / f"{number:010d}.seg", self._tail)
        self._write_fd = os.open(segment.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._segments.append(segment)
        self._next_number = number + 1
        return segment

    def _drop_oldest(self) -> int:
        first = self._segments[0]
        lost = first.first + first.records - self._head
        self._head = first.first + first.records
        self._offset = 0
        self._remove_first()
        return lost

    def _remove_first(self) -> int:
        segment = self._segments.popleft()
        if not self._segments:
            self.close()
        segment.path.unlink(missing_ok=True)
        return segment.number

    def _take_over(self) -> None:
        """Count what is there; whole frames only, and nothing before the saved head."""
        saved = load_json(self._folder / "head.json")
        head = saved if isinstance(saved, dict) else {}
        head_segment, head_offset = int(head.get("segment", 0)), int(head.get("offset", 0))
        self._next_number = head_segment
        first = 0
        for path in sorted(self._folder.glob("*.seg")):
            if not path.stem.isdigit():
                continue
            number = int(path.stem)
            self._next_number = max(self._next_number, number + 1)
            start = head_offset if number == head_segment else 0
            records = 0 if number < head_segment else count_frames(path, start)
            if not records:
                path.unlink(missing_ok=True)
                continue
            if not self._segments:
                self._offset = start
            self._segments.append(_Segment(number, path, first, records, path.stat().st_size))
            first += records
