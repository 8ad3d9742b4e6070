"""Format: TensorBoard's event files, read without TensorBoard: TFRecords of Event messages, each with its checksums."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping
from typing import Final

import crc32c
import pandas as pd

from trainwarden.errors import DataError
from trainwarden.formats.interpret import interpreted
from trainwarden.formats.protocol import NEVER, SURE, Found
from trainwarden.formats.source import Source
from trainwarden.formats.table import Table

_NAMED: Final = "events.out.tfevents"
_VERSION: Final = "brain.Event:"  # in the first record of every file
_FRAME_BYTES: Final = 12  # length and its checksum, before the data; its own stands behind
_MASK: Final = 0xA282EAD8  # tensorflow/core/lib/hash/crc32c.h
_MOST_VARINT: Final = 10
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types
_DT_FLOAT, _DT_DOUBLE = 1, 2


class EventFile:
    """Scalars with their steps and wall times; images, texts and histograms are passed over."""

    name = "tensorboard events"

    def sniff(self, name: str, head: str) -> float:
        """By the name that every writer gives, or the version that the first record holds."""
        return SURE if name.startswith(_NAMED) or _VERSION in head[:128] else NEVER

    def read(self, source: Source, columns: Mapping[str, str]) -> Found:
        """See `trainwarden.formats.protocol.Format`."""
        records, why = _records(source.data())
        rows: dict[tuple[int, float], dict[str, float]] = {}
        for record in records:
            wall_s, step, scalars = _event(record)
            if scalars:
                rows.setdefault((step, wall_s), {}).update(scalars)
        if not rows:
            raise DataError(f"{source.name} holds no scalars{': ' + why if why else ''}")
        frame = _by_step(rows)
        found = interpreted(Table(source.name, frame, columns, range(1, len(frame) + 1)))
        if why:
            found.notes.append(why)
        return found


def _by_step(rows: Mapping[tuple[int, float], Mapping[str, float]]) -> pd.DataFrame:
    """A row for each step: scalars of one step are written one after the other, each with a time of its own."""
    merged: dict[int, dict[str, object]] = {}
    for (step, wall_s), scalars in rows.items():
        row = merged.setdefault(step, {"timestamp": wall_s, "step": step})
        row.update({tag: value if math.isfinite(value) else str(value) for tag, value in scalars.items()})
    return pd.DataFrame(list(merged.values())).astype(object)


def _records(data: bytes) -> tuple[list[bytes], str]:
    """Data of the records up to the first that is damaged, and what is wrong with that."""
    found: list[bytes] = []
    place = 0
    while place < len(data):
        if place + _FRAME_BYTES > len(data):
            return found, f"its last record is cut short after {len(found)} whole ones"
        length, of_length = struct.unpack_from("<QI", data, place)
        if _masked(data[place : place + 8]) != of_length:
            return found, f"the checksum of record {len(found) + 1} is wrong: what follows is left out"
        end = place + _FRAME_BYTES + length
        if end + 4 > len(data):
            return found, f"its last record is cut short after {len(found)} whole ones"
        record = data[place + _FRAME_BYTES : end]
        if _masked(record) != struct.unpack_from("<I", data, end)[0]:
            return found, f"the checksum of record {len(found) + 1} is wrong: what follows is left out"
        found.append(record)
        place = end + 4
    return found, ""


def _masked(data: bytes) -> int:
    crc: int = crc32c.crc32c(data)
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF


def _event(data: bytes) -> tuple[float, int, dict[str, float]]:
    """Wall time, step and scalars of an Event (tensorflow/core/util/event.proto)."""
    wall_s, step = 0.0, 0
    scalars: dict[str, float] = {}
    for number, kind, value in _fields(data):
        if number == 1 and kind == _FIXED64 and isinstance(value, bytes):
            wall_s = struct.unpack("<d", value)[0]
        elif number == 2 and isinstance(value, int):
            step = value - (1 << 64) if value >= 1 << 63 else value
        elif number == 5 and kind == _BYTES and isinstance(value, bytes):
            scalars.update(_summary(value))
    return wall_s, step, scalars


def _summary(data: bytes) -> Iterator[tuple[str, float]]:
    """Tag and value of each scalar of a Summary (summary.proto), written as a number or as a tensor of one."""
    for number, kind, value in _fields(data):
        if number != 1 or kind != _BYTES or not isinstance(value, bytes):
            continue
        tag, scalar = "", None
        for inner, inner_kind, content in _fields(value):
            if not isinstance(content, bytes):
                continue
            if inner == 1 and inner_kind == _BYTES:
                tag = content.decode("utf-8", "replace")
            elif inner == 2 and inner_kind == _FIXED32:
                scalar = float(struct.unpack("<f", content)[0])
            elif inner == 8 and inner_kind == _BYTES:
                scalar = _tensor(content)
        if tag and scalar is not None:
            yield tag, scalar


def _tensor(data: bytes) -> float | None:
    """The number of a float or double TensorProto that holds one."""
    dtype, content = 0, b""
    for number, kind, value in _fields(data):
        if number == 1 and isinstance(value, int):
            dtype = value
        elif number in {4, 5, 6} and kind in {_BYTES, _FIXED32, _FIXED64} and isinstance(value, bytes):
            content = value
    form = {(_DT_FLOAT, 4): "<f", (_DT_DOUBLE, 8): "<d"}.get((dtype, len(content)))
    return None if form is None else float(struct.unpack(form, content)[0])


def _fields(data: bytes) -> Iterator[tuple[int, int, int | bytes]]:
    """Number, wire type and value of each field of a protobuf message; ends where it is none."""
    place = 0
    while place < len(data):
        key, place = _varint(data, place)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, place = _varint(data, place)
            yield number, kind, value
            continue
        if kind == _BYTES:
            size, place = _varint(data, place)
        else:
            size = {_FIXED64: 8, _FIXED32: 4}.get(kind, len(data) + 1)
        if place + size > len(data):
            return
        yield number, kind, data[place : place + size]
        place += size


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = 0
    for shift in range(_MOST_VARINT):
        if place >= len(data):
            break
        byte = data[place]
        value |= (byte & 0x7F) << 7 * shift
        place += 1
        if byte < 0x80:
            break
    return value, place
