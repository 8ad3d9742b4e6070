"""Time as an argument, so that whoever needs it can be given another clock than the machine's."""

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


class BootClock(SystemClock):
    """Its monotonic seconds go on while the machine sleeps: for what others believe to be over by then."""

    def monotonic_s(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)
