"""How a process that is not our child ended: watched by a pidfd, read from the kernel."""

from __future__ import annotations

import fcntl
import os
import signal
import struct

import msgspec

from trainwarden.collectors.ranks import stat_fields

# linux/pidfd.h, kernel 6.13 and newer: struct pidfd_info, first published size 64 bytes; exit_code is its last
# field. PIDFD_GET_INFO = _IOWR(0xFF, 11, struct pidfd_info). PIDFD_INFO_EXIT (6.15) asks for the exit status.
_PIDFD_INFO = struct.Struct("<QQ11Ii")
_PIDFD_GET_INFO = (3 << 30) | (_PIDFD_INFO.size << 16) | (0xFF << 8) | 11
_PIDFD_INFO_EXIT = 1 << 3


class Stat(msgspec.Struct, frozen=True):
    """What /proc/PID/stat says: the kernel's state letter, start in clock ticks after boot, wait status or None."""

    state: str
    start_ticks: int
    status: int | None


class ExitStatus(msgspec.Struct, frozen=True):
    """How a process ended; `code` for an exit, `signal` for a kill, both None if the kernel does not tell."""

    code: int | None = None
    signal: str | None = None


def read_stat(pid: int, proc: str = "/proc") -> Stat | None:
    """The stat line of `pid`; None if there is no such process or it may not be looked at."""
    fields = stat_fields(f"{proc}/{pid}/stat")
    if not fields:
        return None
    state = fields[0].decode()
    told = state == "Z" and len(fields) > 49 and _may_ask(pid, proc)
    return Stat(state, int(fields[19]), int(fields[49]) if told else None)


def _may_ask(pid: int, proc: str) -> bool:
    """Whether the kernel tells us the wait status of `pid`: where it does not, it says 0, which would be an exit."""
    try:
        os.readlink(f"{proc}/{pid}/ns/pid")  # noqa: PTH115 - a kernel's name; asks for the same right
    except PermissionError:
        return False
    except OSError:
        return True
    return True


def exit_status(pidfd: int, pid: int) -> ExitStatus:
    """How the ended process behind `pidfd` ended.

    Once its parent has reaped it, kernels from 6.15 on remember, by `pidfd`; until then it is a zombie and its
    status stands in /proc (field 52). On older kernels a process that was reaped first leaves nothing.
    """
    status = _pidfd_status(pidfd)
    if status is None:
        stat = read_stat(pid)
        # Reaped between the two looks: the third one sees it.
        status = stat.status if stat is not None and stat.status is not None else _pidfd_status(pidfd)
    return ExitStatus() if status is None else decode_status(status)


def _pidfd_status(pidfd: int) -> int | None:
    buffer = bytearray(_PIDFD_INFO.size)
    struct.pack_into("<Q", buffer, 0, _PIDFD_INFO_EXIT)
    try:
        fcntl.ioctl(pidfd, _PIDFD_GET_INFO, buffer)
    except OSError:
        return None
    fields = _PIDFD_INFO.unpack(buffer)
    return int(fields[-1]) if fields[0] & _PIDFD_INFO_EXIT else None


def decode_status(status: int) -> ExitStatus:
    """The wait status in words.

    Examples
    --------
    >>> decode_status(9).signal, decode_status(3 << 8).code
    ('SIGKILL', 3)
    """
    number = status & 0x7F
    if number == 0:
        return ExitStatus(code=(status >> 8) & 0xFF)
    try:
        return ExitStatus(signal=signal.Signals(number).name)
    except ValueError:
        return ExitStatus(signal=f"SIG{number}")
