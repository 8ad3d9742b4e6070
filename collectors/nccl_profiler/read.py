"""Readers of the plug-in's file. They need no help from the process, which may be stuck or dead.

What is torn, cut short, of another ABI or no such file at all is left out.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from trainwarden.collectors.nccl_profiler.layout import (
    ABI,
    AT_CALLS,
    AT_COUNTS,
    AT_STEP,
    CALL,
    CALLS,
    CALLS_BEGIN,
    CAPTURED,
    CLOSED,
    COMM,
    COMMS,
    COMMS_BEGIN,
    FILE_BYTES,
    FUNCTIONS,
    HEADER,
    HEADER_BYTES,
    KERNEL_MODES,
    MAGIC,
    UNTRUSTED,
    VOID,
    Counts,
    Identity,
)

_MOST = 2**62


class Header(NamedTuple):
    """What one process's plug-in says of itself; None is unknown.

    `calls` counts the records of the ring, those overwritten included; `interface` is that of NCCL which is used.
    """

    pid: int
    start_ticks: int | None
    pid_namespace: int | None
    interface: int
    nccl_version: int | None
    born_ns: int
    kernels: str
    every: int
    step: int | None
    calls: int
    counts: Counts


class Comm(NamedTuple):
    """A communicator; `(place, generation)` is its identity within the file.

    `started` and `finished` are None where the newest call was not to be stamped, or stamps are not to be trusted.
    """

    place: int
    generation: int
    id: str
    name: str
    nodes: int | None
    ranks: int | None
    rank: int
    trusted: bool
    captured: bool
    closed: bool
    enqueued: int
    started: int | None
    finished: int | None
    moved_ns: int | None


class Call(NamedTuple):
    """A call of a sampled step; `device_ns` is the longest of its channels, None while it runs or if it cannot be."""

    serial: int
    place: int
    generation: int
    function: str
    seq: int
    size_bytes: int
    step: int | None
    enqueued_ns: int
    peer: int | None
    device_ns: int | None
    begun: bool
    done: bool


def read_header(descriptor: int) -> Header | None:
    """The header; None if the file is none of ours, of another ABI, or cut short."""
    try:
        raw = os.pread(descriptor, HEADER_BYTES, 0)
        whole = os.fstat(descriptor).st_size >= FILE_BYTES
    except OSError:
        return None
    if len(raw) != HEADER_BYTES or not whole:
        return None
    words = HEADER.unpack(raw)
    said = Identity._make(words[: len(Identity._fields)])
    sound = said.magic == MAGIC and said.abi == ABI and 0 < said.pid < 2**31 and said.kernel_mode < len(KERNEL_MODES)
    if not sound or max(words[AT_CALLS], words[AT_STEP], said.start_ticks) >= _MOST:
        return None
    return Header(
        pid=said.pid,
        start_ticks=said.start_ticks or None,
        pid_namespace=said.pid_namespace or None,
        interface=said.interface,
        nccl_version=said.nccl_version or None,
        born_ns=said.born_ns,
        kernels=KERNEL_MODES[said.kernel_mode],
        every=said.every,
        step=words[AT_STEP] - 1 if words[AT_STEP] else None,
        calls=words[AT_CALLS],
        counts=Counts._make(words[AT_COUNTS : AT_COUNTS + len(Counts._fields)]),
    )


def read_comms(descriptor: int) -> list[Comm]:
    """The communicators, those that were closed last too; torn ones are left out."""
    try:
        raw = os.pread(descriptor, COMMS * COMM.size, COMMS_BEGIN)
    except OSError:
        return []
    raw = raw[: len(raw) // COMM.size * COMM.size]
    generations = memoryview(raw).cast("Q")[:: COMM.size // 8].tolist()
    found = [_comm(place, raw) for place, generation in enumerate(generations) if generation]
    return [comm for comm in found if comm is not None]


def _comm(place: int, raw: bytes) -> Comm | None:
    words = COMM.unpack_from(raw, place * COMM.size)
    generation, identity, nodes, ranks, rank, flags, enqueued, started, finished, stamped, moved_ns = words[:11]
    if words[-1] != generation or max(generation, nodes, ranks, rank, enqueued, moved_ns) >= _MOST:
        return None
    known = stamped == enqueued > 0 and not flags & (UNTRUSTED | CAPTURED)
    return Comm(
        place=place,
        generation=generation,
        id=f"{identity:016x}",
        name=words[11].split(b"\0", 1)[0].decode(errors="replace"),
        nodes=nodes or None,
        ranks=ranks or None,
        rank=rank,
        trusted=not flags & (UNTRUSTED | CAPTURED),
        captured=bool(flags & CAPTURED),
        closed=bool(flags & CLOSED),
        enqueued=enqueued,
        started=min(started, enqueued) if known else None,
        finished=min(finished, enqueued) if known else None,
        moved_ns=moved_ns or None,
    )


def read_calls(descriptor: int, after: int, header: Header) -> dict[int, Call]:
    """Whole records with numbers above `after` up to those that `header` counts; the ring keeps the newest `CALLS`."""
    found: dict[int, Call] = {}
    number = max(after, header.calls - CALLS)
    while number < header.calls:
        slot = (number + 1) % CALLS
        batch = min(header.calls - number, CALLS - slot)
        try:
            raw = os.pread(descriptor, batch * CALL.size, CALLS_BEGIN + slot * CALL.size)
        except OSError:
            break
        for words in CALL.iter_unpack(raw[: len(raw) // CALL.size * CALL.size]):
            number += 1
            if words[0] == number and (call := _call(words)) is not None:
                found[number] = call
        if len(raw) < batch * CALL.size:
            break
    # A place is counted before it is written again: what has been counted since may be half overwritten.
    newest = read_header(descriptor)
    oldest = (newest.calls if newest is not None else header.calls) - CALLS
    return {serial: call for serial, call in found.items() if serial > oldest}


def _call(words: tuple[int, ...]) -> Call | None:
    serial, what, seq, size_bytes, step, enqueued_ns, device, device_ns = words
    function, channels, flags = what >> 40 & 0xFF, what >> 48 & 0xFF, what >> 56
    if function not in FUNCTIONS or max(seq, size_bytes, step, enqueued_ns, device_ns) >= _MOST:
        return None
    begun, ended, peer = device & 0xFFFF, device >> 16 & 0xFFFF, device >> 32
    done = 0 < begun <= ended and ended >= channels
    return Call(
        serial=serial,
        place=what & 0xFFFF,
        generation=what >> 16 & 0xFFFFFF,
        function=FUNCTIONS[function],
        seq=seq,
        size_bytes=size_bytes,
        step=step - 1 if step else None,
        enqueued_ns=enqueued_ns,
        peer=peer - 1 if peer else None,
        device_ns=device_ns if done and not flags & VOID else None,
        begun=begun > 0,
        done=done,
    )
