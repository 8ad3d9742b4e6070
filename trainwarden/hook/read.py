"""Readers of the shared file, for the agent and whoever else wants to know what a rank is doing now.

They need no lock and no help from the training process, which may be stuck, stopped or dead: what is torn, cut
short or no hook file at all is left out.
"""

from __future__ import annotations

import os
import stat
import struct
from typing import TYPE_CHECKING, NamedTuple

from .layout import (
    ACCELERATORS,
    ASK_CALLS,
    DEVICE_BEGINS,
    DEVICE_RING,
    DEVICE_WORDS,
    HEADER,
    HEADER_BYTES,
    MAGIC,
    MAX_RANK,
    NO_CODE,
    PAUSE_RING,
    PAUSE_WORDS,
    PAUSES_BEGIN,
    PHASES,
    RING,
    ROLES,
    SOURCES,
    STEP_WORDS,
    TIMINGS,
    VERSION,
    Phase,
    Words,
)

if TYPE_CHECKING:
    from pathlib import Path


class Header(NamedTuple):
    """What one process says of itself; times are wall seconds, None is unknown."""

    pid: int
    rank: int
    world_size: int
    start_s: float
    incarnation: str
    phase: Phase
    phase_since_s: float
    calls: int
    p2p_calls: int
    recorded: int
    step: int
    step_end_s: float | None
    micro_batches: int | None
    source: str
    plan: int
    plan_step: int
    pauses: int
    role: str
    own_s: float
    exit_code: int | None
    errors: int
    attempt: int
    start_monotonic_s: float  # of the process, by the machine's monotonic clock, which no step of the wall clock moves
    first_step: int | None = None  # finished under a number that the script itself gave
    start_ticks: int | None = None  # as /proc/PID/stat has it
    pid_namespace: int | None = None  # the one that `pid` belongs to, by its inode
    accelerator: str = ""  # what it computes on, where that works behind the host's back; empty: nothing of the kind
    timing: str = ""  # "on" if its steps are timed there by events, else why not; see TIMINGS
    timed: int = 0  # newest step, by its serial number, of which it is settled what the device says
    stands: int | None = None  # number of the pause for which it stands still, 0: none; None: it cannot


class Step(NamedTuple):
    """One finished step; `serial` counts the steps of this process from 1.

    `device_s` is from end to end of steps on the device, `device_wait_s` what of it was waiting for gradients of other
    ranks; None is unknown.
    """

    serial: int
    step: int
    end_s: float
    duration_s: float
    compute_s: float
    wait_s: float
    pause_s: float
    micro_batches: int | None
    source: str
    device_s: float | None = None
    device_wait_s: float | None = None


class Pause(NamedTuple):
    """One long pause; `serial` counts those of this process from 1."""

    serial: int
    phase: Phase
    begin_s: float
    duration_s: float
    step: int


# Where the two rings lie in the file: a record's words, the first byte, how many there are.
_Ring = tuple[struct.Struct, int, int]
_STEPS: _Ring = (STEP_WORDS, HEADER_BYTES, RING)
_PAUSES: _Ring = (PAUSE_WORDS, PAUSES_BEGIN, PAUSE_RING)
_DEVICE: _Ring = (DEVICE_WORDS, DEVICE_BEGINS, DEVICE_RING)


def read_header(source: int | str | os.PathLike[str]) -> Header | None:
    """The header of a hook file, by path or open descriptor; None if it is none, torn or cut short."""
    try:
        raw = _pread(source, HEADER_BYTES, 0)
    except OSError:
        return None
    if len(raw) != HEADER_BYTES:
        return None
    words = Words._make(HEADER.unpack(raw)[: len(Words._fields)])
    return _header_of(words) if _sound(words) else None


def headers_in(folder: Path, name: str = "rank-*.hook") -> list[Header]:
    """The headers of the hook files that are called `name` in `folder`, the newest last; none while it cannot be read.

    A pid comes back with each start of a container, and a rank with each round: of several the last is the one meant.
    """
    return [header for _, header in files_in(folder, name)]


def files_in(folder: Path, name: str = "rank-*.hook") -> list[tuple[Path, Header]]:
    """The hook files that are called `name` in `folder`, with their headers, as `headers_in`."""
    try:
        found = [(path, header) for path in folder.glob(name) if (header := read_header(path)) is not None]
    except OSError:  # no descriptor is left, say: whoever needs them looks again
        return []
    return sorted(found, key=lambda one: one[1].start_monotonic_s)


def ask_hook(path: str | os.PathLike[str], owner: int, what: bytes = ASK_CALLS) -> bool:
    """Ask the hook whose file is `path`; False if it does not listen. Never waits."""
    try:
        flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(f"{os.fspath(path).removesuffix('hook')}ask", flags)
    except OSError:  # no pipe, or no reader: a process alone, an older hook, one that is gone
        return False
    try:
        found = os.fstat(descriptor)
        own = stat.S_ISFIFO(found.st_mode) and found.st_uid == owner  # into no other file is anything written
        return own and os.write(descriptor, what) == 1
    except OSError:  # full: it has been asked thousands of times and does not answer
        return False
    finally:
        os.close(descriptor)


def _header_of(words: Words) -> Header:
    offset = words.offset_ns
    return Header(
        pid=words.pid,
        rank=words.rank,
        world_size=words.world,
        start_s=words.start_ns / 1e9,
        incarnation=f"{words.pid}-{words.start_ns // 1_000_000}",
        phase=PHASES[words.phase & 7],
        phase_since_s=((words.phase >> 3) + offset) / 1e9,
        calls=words.calls,
        p2p_calls=words.p2p,
        recorded=words.recorded,
        step=words.step,
        step_end_s=(words.step_end + offset) / 1e9 if words.step_end else None,
        micro_batches=words.micro or None,
        source=SOURCES[words.source],
        plan=words.plan,
        plan_step=words.plan_step,
        pauses=words.pauses,
        role=ROLES[words.role],
        own_s=words.own_ns / 1e9,
        exit_code=None if words.code == NO_CODE else words.code,
        errors=words.errors,
        attempt=words.attempt,
        start_monotonic_s=(words.start_ns - offset) / 1e9,
        first_step=words.first - 1 if words.first > 0 else None,
        start_ticks=words.start_ticks or None,
        pid_namespace=words.pid_namespace or None,
        accelerator=ACCELERATORS[words.accelerator],
        timing=TIMINGS[words.timing],
        timed=words.timed,
        stands=words.standing - 1 if words.standing > 0 else None,
    )


def _sound(words: Words) -> bool:
    return (
        words.magic == MAGIC
        and words.version == VERSION
        and words.phase & 7 < len(PHASES)
        and 0 < words.pid < 2**31
        and 0 <= words.rank < MAX_RANK
        and 0 <= words.source < len(SOURCES)
        and 0 <= words.role < len(ROLES)
        and 0 <= words.accelerator < len(ACCELERATORS)
        and 0 <= words.timing < len(TIMINGS)
        and min(words.recorded, words.pauses, words.calls, words.world, words.start_ns, words.step) >= 0
        and min(words.start_ticks, words.pid_namespace, words.timed) >= 0
    )


def read_steps(source: int | str | os.PathLike[str], after: int = 0, header: Header | None = None) -> list[Step] | None:
    """Steps whose serial number is above `after`, oldest first; the ring keeps the newest `RING`.

    Overwritten and torn records are left out. None if the file is no hook file. Who has just read its `header` need
    not have it read again.
    """
    header = header or read_header(source)
    if header is None:
        return None
    try:
        rows = _read_ring(source, _STEPS, max(0, after), header.recorded)
        timed = _read_ring(source, _DEVICE, max(0, after), header.timed) if header.timed else []
    except OSError:
        return None
    # Ends on streams that do not follow each other are less than nothing apart.
    device = {row[0]: row for row in timed if row[1] > 0 and row[2] <= row[1]}
    return [
        Step(
            row[0], row[1], row[2] / 1e9, row[3] / 1e9, row[4] / 1e9, row[5] / 1e9, row[6] / 1e9, row[7] or None,
            SOURCES[row[8]], *_on_device(device.get(row[0])),
        )
        for row in rows
        if 0 <= row[8] < len(SOURCES) and min(row[1:8]) >= 0
    ]  # fmt: skip


def _on_device(row: tuple[int, ...] | None) -> tuple[float | None, float | None]:
    """Duration and wait of a record of the device's ring."""
    if row is None:
        return None, None
    return row[1] / 1e9, row[2] / 1e9 if row[2] >= 0 else None


def read_pauses(source: int | str | os.PathLike[str], after: int = 0) -> list[Pause] | None:
    """Long pauses whose serial number is above `after`, oldest first; None if the file is no hook file."""
    header = read_header(source)
    if header is None:
        return None
    try:
        rows = _read_ring(source, _PAUSES, max(0, after), header.pauses)
    except OSError:
        return None
    return [
        Pause(row[0], PHASES[row[1]], row[2] / 1e9, row[3] / 1e9, row[4])
        for row in rows
        if 0 <= row[1] < len(PHASES) and min(row[2:5]) >= 0
    ]


def _read_ring(source: int | str | os.PathLike[str], ring: _Ring, after: int, count: int) -> list[tuple[int, ...]]:
    """Records after number `after` that are whole: both copies of the number are the one expected."""
    words, at, size = ring
    rows: list[tuple[int, ...]] = []
    first = max(after, count - size)
    while first < count:
        slot = first % size
        batch = min(count - first, size - slot)
        raw = _pread(source, batch * words.size, at + slot * words.size)
        for row in words.iter_unpack(raw[: len(raw) // words.size * words.size]):
            first += 1
            if row[0] == row[-1] == first:
                rows.append(row)
        if len(raw) < batch * words.size:
            break
    return rows


def _pread(source: int | str | os.PathLike[str], size: int, at: int) -> bytes:
    if isinstance(source, int):
        return os.pread(source, size, at)
    # Whatever lies there under that name, a pipe too: opening it must not wait.
    descriptor = os.open(source, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        return os.pread(descriptor, size, at)
    finally:
        os.close(descriptor)
