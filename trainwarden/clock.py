"""Time as an argument, so that whoever needs it can be given another clock than the machine's."""

from __future__ import annotations

import time
from typing import Final, Protocol

JITTER_S: Final = 1.0  # by so much clocks are slewed between two readings: 500 ppm (adjtimex(8)) of half an hour
STEP_LASTS_S: Final = 60.0  # a step for a single record is gone by then, and one that mends a wrong clock is not


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


class SteadyClock:
    """A clock whose wall time does not jump ahead: a step forward counts once it has lasted for a minute.

    By a clock that stands an hour ahead for one reading, all that is limited for an hour would be allowed again.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._base_s = clock.now_s() - clock.monotonic_s()
        self._ahead_since_s: float | None = None

    def now_s(self) -> float:
        at_s = self._clock.monotonic_s()
        base_s = self._clock.now_s() - at_s
        if base_s <= self._base_s + JITTER_S:
            self._base_s, self._ahead_since_s = base_s, None
        elif self._ahead_since_s is None:
            self._ahead_since_s = at_s
        elif at_s - self._ahead_since_s >= STEP_LASTS_S:
            self._base_s, self._ahead_since_s = base_s, None
        return self._base_s + at_s

    def monotonic_s(self) -> float:
        return self._clock.monotonic_s()

    def sleep(self, seconds: float) -> None:
        self._clock.sleep(seconds)


class BootClock(SystemClock):
    """Its monotonic seconds go on while the machine sleeps: for what others believe to be over by then."""

    def monotonic_s(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)
