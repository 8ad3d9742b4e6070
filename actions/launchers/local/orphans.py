"""What ranks leave behind: children that outlive them are given to this process, and end with their rank.

A child that has called `setsid` or has gone to the background is in no group or session of its rank any more, and holds
its devices and ports all the same. So the launcher is its heir (a subreaper): whatever child of ours is no rank once
belonged to one.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Final

import psutil

log = logging.getLogger("trainwarden.supervisor")

PR_SET_CHILD_SUBREAPER: Final = 36  # linux/prctl.h
_ENVIRON_BYTES: Final = 1 << 20


class Orphans:
    """The children of a process that has no children of its own but ranks.

    Parameters
    ----------
    adopt : bool
        Whether this process is such a one. If not, nothing is done here.
    """

    def __init__(self, *, adopt: bool) -> None:
        self._adopts = adopt and ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0

    def sweep(self, alive: Mapping[int, int], beside: Collection[int | None] = ()) -> int:
        """Kill what ranks that are gone have left; how many of those are still there. Never waits.

        Parameters
        ----------
        alive : mapping
            Processes of the ranks by rank: their own orphans, such as a server in the background, are left alone.
        beside : collection of int
            Children that are no ranks, and left alone; None is none.
        """
        left = 0
        for pid in _children() if self._adopts else ():
            if pid in beside or pid in alive.values() or _reaped(pid):
                continue
            rank = _rank_of(pid)
            if rank is None and alive:
                continue  # it has hidden whose it is: it goes with the last of the ranks
            if rank not in alive:
                left += _kill_with_all_below(pid)
        return left


def _children() -> list[int]:
    """Children of this process, of whichever thread of it."""
    found: list[int] = []
    for task in _names("/proc/self/task"):
        with contextlib.suppress(OSError, ValueError):  # the thread has ended
            found += map(int, Path(f"/proc/self/task/{task}/children").read_bytes().split())
    return found


def _names(folder: str) -> Iterator[str]:
    with contextlib.suppress(OSError):
        yield from os.listdir(folder)


def _reaped(pid: int) -> bool:
    """Whether the orphan `pid` had ended; its entry in the table of processes is let go then."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


def _rank_of(pid: int) -> int | None:
    """The rank that `pid` says it descends from, by the environment that it has inherited."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            words = file.read(_ENVIRON_BYTES).split(b"\0")
    except OSError:
        return None
    for word in words:
        if word.startswith(b"RANK=") and word[5:].isdigit():
            return int(word[5:])
    return None


def _kill_with_all_below(pid: int) -> int:
    """SIGKILL for `pid` and its descendants; how many were there."""
    try:
        top = psutil.Process(pid)
        doomed = [top, *top.children(recursive=True)]
    except psutil.Error:
        return 0
    for process in doomed:
        with contextlib.suppress(psutil.Error):  # it may have ended by itself, or may not be ours to kill
            process.kill()
    log.info("what a rank had left was killed", extra={"fields": {"processes": len(doomed)}})
    return len(doomed)
