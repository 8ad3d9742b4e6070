"""Signals that are none of ours: whoever trains may have a use for them, and none of them ends the warden."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

# What asks us to end, what the kernel keeps for itself or for defects of the process, job control of terminals, and
# what Python ignores because a system call reports it.
_OURS: Final = frozenset(
    {
        signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD, signal.SIGSEGV,
        signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP, signal.SIGSYS, signal.SIGTSTP, signal.SIGTTIN,
        signal.SIGTTOU, signal.SIGPIPE, signal.SIGXFSZ,
    }
)  # fmt: skip


def foreign_signals() -> tuple[int, ...]:
    """Numbers of all signals that are passed on, but for those that this process was started to ignore.

    Examples
    --------
    >>> {signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT} <= set(foreign_signals())
    True
    >>> signal.SIGTERM in foreign_signals()
    False
    """
    numbers = sorted(signal.valid_signals() - _OURS)
    return tuple(int(number) for number in numbers if signal.getsignal(number) is not signal.SIG_IGN)


@contextmanager
def held_back(numbers: tuple[int, ...] | None = None) -> Iterator[None]:
    """Start processes with `numbers` (default: all foreign signals) blocked: they live through their first moments.

    Such a signal waits until the process has a handler and lets it in, or for ever where it never does.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, foreign_signals() if numbers is None else numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ignore_foreign() -> None:
    """Live through such signals from now on: whoever starts us holds them back until then.

    What this process starts does not inherit that, as it would where they were ignored for the kernel.
    """
    numbers = foreign_signals()
    for number in numbers:
        signal.signal(number, lambda _number, _frame: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
