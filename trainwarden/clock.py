"""Time as an argument: production passes `SystemClock`, tests pass a clock they turn by hand."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What everything that needs the time is given."""

    def now_s(self) -> float:
        """Wall-clock time in seconds since the Unix epoch, UTC."""
        ...

    def monotonic_s(self) -> float:
        """Seconds on a clock that never goes back; only differences mean anything."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait `seconds` (>= 0)."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def now_s(self) -> float:
        return time.time()

    def monotonic_s(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class ManualClock:
    """A clock that stands still until it is told to move; for tests and for replayed recordings.

    Examples
    --------
    >>> clock = ManualClock(100.0)
    >>> clock.sleep(2.5)
    >>> clock.now_s()
    102.5
    """

    def __init__(self, now_s: float = 0.0) -> None:
        self._now_s = now_s

    def now_s(self) -> float:
        return self._now_s

    def monotonic_s(self) -> float:
        return self._now_s

    def sleep(self, seconds: float) -> None:
        self._now_s += seconds

    def set_s(self, now_s: float) -> None:
        """Jump to `now_s`, forwards or backwards."""
        self._now_s = now_s
