"""What ranks leave behind: children that outlive them are given to this process, and end before the next attempt.

A child that has called `setsid` or has gone to the background is in no group or session of its rank any more, and holds
its devices and ports all the same. So this process is its heir (a subreaper): a child that is none of ours once
belonged to a rank.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import threading
import time
from collections.abc import Callable, Collection
from typing import Final

import psutil

from trainwarden.cli.shared.orphans import INIT, OrphansOfAll, children_of_this_process

log = logging.getLogger("trainwarden.cli")

PR_SET_CHILD_SUBREAPER: Final = 36  # linux/prctl.h
PATIENCE_S: Final = 5.0  # a process that the kernel cannot end, as in D state, must not keep a job down


class Leftovers:
    """Ends what ranks have left; made before torchrun is started.

    Parameters
    ----------
    own : callable
        Process ids of children that are no ranks' leftovers, torchrun among them; children of today are none either.
    """

    def __init__(self, own: Callable[[], Collection[int]]) -> None:
        self._adopts = ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
        self._own, self._before = own, frozenset(children_of_this_process())
        self._orphans = OrphansOfAll(INIT) if self._adopts else OrphansOfAll()
        self._wanted, self._since_s = threading.Event(), 0.0

    def gone(self) -> bool:
        """Whether an attempt, all of whose ranks have ended, has left nothing; in any thread. `tend` ends the rest."""
        now_s = time.monotonic()
        if not self._strangers():
            self._wanted.clear()
            return True
        if not self._wanted.is_set():
            self._since_s = now_s
            self._wanted.set()
        if now_s - self._since_s < PATIENCE_S:
            return False
        log.warning("what ranks have left does not end", extra={"fields": {"pids": str(self._strangers())[:200]}})
        self._wanted.clear()
        return True

    def tend(self) -> None:
        """End what is to end, and bury what has ended; in the thread that starts this process's own children."""
        if self._wanted.is_set():
            self.sweep()
        else:
            self._orphans.bury(self._before | set(self._own()))

    def sweep(self) -> int:
        """Kill what ranks have left, which are all gone; how many are still there. Never waits."""
        left = self._strangers()
        for pid in left:
            _kill_with_all_below(pid)
        return len(left)

    def end(self) -> None:
        """The job is over, and so is all that its ranks have started."""
        until_s = time.monotonic() + PATIENCE_S
        while self.sweep() and time.monotonic() < until_s:
            time.sleep(0.01)

    def _strangers(self) -> list[int]:
        """Children that ranks have left and that have not ended; the others are buried."""
        if not self._adopts:
            return []
        own = self._before | set(self._own())
        return [pid for pid in children_of_this_process() if pid not in own and not _buried(pid)]


def _buried(pid: int) -> bool:
    """Whether the orphan `pid` had ended; its entry in the table of processes is let go then."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


def _kill_with_all_below(pid: int) -> None:
    try:
        top = psutil.Process(pid)
        doomed = [top, *top.children(recursive=True)]
    except psutil.Error:
        return
    for process in doomed:
        with contextlib.suppress(psutil.Error):  # it may have ended by itself, or may not be ours to kill
            process.kill()
    log.info("what a rank had left was killed", extra={"fields": {"processes": len(doomed)}})
