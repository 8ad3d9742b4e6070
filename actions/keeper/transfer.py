"""Shards as a stream of bytes: what arrives is checked chunk by chunk and sealed last, whoever sends it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Final

from trainwarden.checkpoint.shard import (
    CHUNK_BYTES,
    LENGTH_BYTES,
    MOST_HEADER_BYTES,
    CheckpointError,
    Header,
    compare,
    parse_header,
)
from trainwarden.checkpoint.slots import Kind, Slot, Slots, seal

ReadInto = Callable[[memoryview], int]
"""Fill the beginning of a buffer and return how much; 0 at the end."""
_PIECE_BYTES: Final = 1024 * 1024


def reading(descriptor: int) -> ReadInto:
    """Read an open file from where it stands."""
    return lambda buffer: os.readv(descriptor, [buffer])


def receive(read: ReadInto, slots: Slots, kind: Kind, check: Callable[[Header], None]) -> tuple[Slot, Header]:
    """Write the shard that `read` yields into a slot of `kind`; `check` refuses one that is not wanted.

    Raises
    ------
    CheckpointError
        If it is damaged, refused, cut off, or does not fit; the slot is unsealed then.
    """
    prefix, header = read_prefix(read)
    check(header)
    slot = place_for(slots, kind, header)
    with slots.writing(slot) as descriptor:
        slots.allocate(descriptor, header.size)
        for at, data in chunks(read, header):
            _write(descriptor, data, at)
        seal(descriptor, prefix)
    return slot, header


def place_for(slots: Slots, kind: Kind, header: Header) -> Slot:
    """The slot of `kind` that a shard goes to: the one that holds its id, else the next to be written."""
    facts = header.facts
    held = {slot: one.facts.id for slot, one in slots.sealed().items() if (slot.kind, slot.rank) == (kind, facts.rank)}
    return next((slot for slot, id_ in held.items() if id_ == facts.id), None) or slots.next_of(kind, facts.rank)


def read_prefix(read: ReadInto) -> tuple[bytes, Header]:
    """Length and header of a shard that comes as a stream."""
    start = _exactly(read, LENGTH_BYTES)
    length = int.from_bytes(start, "little")
    if not 0 < length <= MOST_HEADER_BYTES:
        raise CheckpointError("the header's length is damaged")
    text = bytearray()
    while len(text) < length:  # by pieces: a length is only a promise
        text += _exactly(read, min(_PIECE_BYTES, length - len(text)))
    return bytes(start + text), parse_header(bytes(text))


def send(descriptor: int, header: Header, write: Callable[[memoryview], object]) -> None:
    """Give the whole file to `write`, and compare each chunk's CRC on the way.

    Raises
    ------
    CheckpointError
        If the file is damaged; what was written is then not complete.
    """
    write(memoryview(os.pread(descriptor, header.data_start, 0)))
    at = 0

    def read(buffer: memoryview) -> int:
        nonlocal at
        got = os.preadv(descriptor, [buffer], header.data_start + at)
        at += got
        return got

    for _, data in chunks(read, header):
        write(data)


def chunks(read: ReadInto, header: Header) -> Iterator[tuple[int, memoryview]]:
    """Each chunk's place in the file and its bytes, compared with its CRC; they are valid until the next one."""
    buffer = memoryview(bytearray(min(CHUNK_BYTES, header.data_bytes)))
    for number in range(len(header.chunks)):
        size = min(CHUNK_BYTES, header.data_bytes - number * CHUNK_BYTES)
        _fill(read, buffer[:size])
        compare(header, number, buffer[:size])
        yield header.data_start + number * CHUNK_BYTES, buffer[:size]


def _exactly(read: ReadInto, size: int) -> bytearray:
    data = bytearray(size)
    _fill(read, memoryview(data))
    return data


def _fill(read: ReadInto, buffer: memoryview) -> None:
    got = 0
    while got < len(buffer):
        more = read(buffer[got:])
        if not more:
            raise CheckpointError("the shard is cut off")
        got += more


def _write(descriptor: int, data: memoryview, at: int) -> None:
    while data:
        done = os.pwrite(descriptor, data, at)
        data, at = data[done:], at + done
