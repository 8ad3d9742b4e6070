"""Records as bytes in a file: length and checksum, then topic, key and record. Reading tells damage from truth."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

from trainwarden.errors import RecordError
from trainwarden.records import Record
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
