"""Has ranks save a checkpoint now, by the signal that their script does so at. No torch here.

A signal that a rank does not handle would end it, and one that its main thread blocks may stay pending for ever. None
is sent unless the kernel says that all ranks here handle it and no main thread blocks it (proc(5), SigCgt and SigBlk).
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

SIGNAL: Final = "TRAINWARDEN_CHECKPOINT_SIGNAL"
_MASKS: Final = re.compile(r"^SigBlk:\s*([0-9a-f]{1,32})$.*?^SigCgt:\s*([0-9a-f]{1,32})$", re.MULTILINE | re.DOTALL)
_MOST_BYTES: Final = 65_536


class Saving:
    """See the module.

    Parameters
    ----------
    name : str
        The signal, as `kill` has it; empty if not configured.
    running : callable
        The pids of this node's ranks.
    """

    def __init__(self, name: str, running: Callable[[], Sequence[int]]) -> None:
        self._number, self._running = number_of(name), running

    def possible(self) -> bool:
        """Whether all ranks here catch the signal now."""
        pids = self._running() if self._number is not None else ()
        return bool(pids) and all(self._catches(pid) for pid in pids)

    def ask(self) -> None:
        """Send it to all ranks, if all catch it."""
        if self._number is not None and self.possible():
            for pid in self._running():
                with suppress(OSError):
                    os.kill(pid, self._number)

    def _catches(self, pid: int) -> bool:
        assert self._number is not None
        try:
            with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
                found = _MASKS.search(file.read(_MOST_BYTES))
        except OSError:
            return False
        blocked, caught = (int(mask, 16) for mask in found.groups()) if found is not None else (0, 0)
        return bool((caught & ~blocked) >> (self._number - 1) & 1)


def number_of(name: str) -> int | None:
    """The number of a signal by its name; None for what is no signal, or none that can be caught.

    Examples
    --------
    >>> number_of("USR1"), number_of("SIGUSR2"), number_of("KILL"), number_of("no")
    (<Signals.SIGUSR1: 10>, <Signals.SIGUSR2: 12>, None, None)
    """
    found = getattr(signal, f"SIG{name.strip().upper().removeprefix('SIG')}", None)
    return found if isinstance(found, signal.Signals) and found not in (signal.SIGKILL, signal.SIGSTOP) else None
