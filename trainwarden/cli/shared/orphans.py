"""Process 1 of a container inherits the orphans of all others, and is the one that has to bury them."""

from __future__ import annotations

import os
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Final

EVERY_S: Final = 1.0
INIT: Final = 1


class OrphansOfAll:
    """Takes ended orphans out of the table of processes, where this process is process 1.

    Parameters
    ----------
    pid : int, optional
        The process id that is taken for this process's.
    """

    def __init__(self, pid: int | None = None) -> None:
        self._inherits = (os.getpid() if pid is None else pid) == INIT
        self._next_s = 0.0

    def bury(self, own: Collection[int]) -> None:
        """Bury whatever has ended and is none of `own`, whose ends others wait for. Never waits."""
        if not self._inherits or time.monotonic() < self._next_s:
            return
        self._next_s = time.monotonic() + EVERY_S
        for pid in children_of_this_process():
            if pid not in own:
                with suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)


def children_of_this_process() -> list[int]:
    """Their process ids, of whichever thread."""
    found: list[int] = []
    for path in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError, ValueError):  # the thread has ended
            found += map(int, path.read_bytes().split())
    return found
