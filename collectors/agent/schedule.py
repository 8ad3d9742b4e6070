"""When each collector's turn is: intervals, wake fds, back-off after failures."""

from __future__ import annotations

import math
import os
import select
from collections.abc import Sequence

from trainwarden.clock import Clock
from trainwarden.protocols import Collector

_LONGEST_WAIT_S = 60.0
_SPACING_S = 0.02  # a source that wakes all the time is read at most 50 times a second
_SLACK_S = 0.02  # collectors due this soon are served in the same round, for one flush instead of two
_LONGEST_BACKOFF_S = 60.0


class Task:
    """One collector and when it is due, in monotonic seconds."""

    def __init__(self, name: str, collector: Collector, due_s: float) -> None:
        self.name = name
        self.collector = collector
        self.due_s = due_s
        self.started = False
        self.absent_reason: str | None = None
        self.wake_fds: tuple[int, ...] = ()
        self.awake = False
        self.failures = 0
        self.late_s = 0.0
        self.junk = 0  # of the collector's, so many are told of
        self.stuck = False  # its turn is over the deadline and still on, in a thread that nobody waits for
        self._woken = False  # by a wake fd, at the last turn
        self._last_s = float("-inf")

    def is_due(self, now_s: float) -> bool:
        """True if the interval is over, or a wake fd was readable and the last turn is not just over."""
        return now_s + _SLACK_S >= self.due_s or (self.awake and now_s >= self._last_s + _SPACING_S)

    def listens(self, now_s: float) -> bool:
        """True if its wake fds count now: not while it fails and not right after they have woken it."""
        return not self.failures and not self.awake and (not self._woken or now_s >= self._last_s + _SPACING_S)

    def next_s(self) -> float:
        """When it is due at the latest, or its fds are listened to again."""
        return min(self.due_s, self._last_s + _SPACING_S) if self.awake else self.due_s

    def succeeded(self, start_s: float, end_s: float, interval_s: float) -> bool:
        """Note a turn that worked; True if the one before had failed."""
        recovered = self.failures > 0
        self.late_s = max(self.late_s, start_s - self.due_s)
        self.failures = 0
        self._woken, self.awake = self.awake, False
        self._last_s = end_s
        interval_s = max(interval_s, _SPACING_S)
        # On a grid that all tasks share: collectors whose intervals are multiples of one another meet in one round.
        self.due_s = (math.floor((end_s + _SLACK_S) / interval_s) + 1) * interval_s
        return recovered

    def failed(self, end_s: float) -> bool:
        """Note a turn that failed and back off; True if the one before had worked."""
        self.failures += 1
        self._woken = self.awake = False
        self._last_s = end_s
        interval_s = max(self.collector.interval_s, _SPACING_S)
        self.due_s = end_s + min(interval_s * 2.0 ** min(self.failures, 10), _LONGEST_BACKOFF_S)
        return self.failures == 1


class Wait:
    """Sleeps until somebody's turn comes."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def wait(self, tasks: Sequence[Task], every_s: float | None = None) -> None:
        """Return when a task is due, a wake fd is readable (its task is then marked awake), or `wake` was called.

        With `every_s`, return at the next of its multiples at the latest: a tick of the grid that all tasks share.
        """
        now_s = self._clock.monotonic_s()
        until_s = now_s + _LONGEST_WAIT_S
        if every_s is not None:
            until_s = (math.floor((now_s + _SLACK_S) / every_s) + 1) * every_s
        # The kernel keeps no memory of what poll was given, so an fd number that was closed and used again is no trap.
        poll = select.poll()
        poll.register(self._bell, select.POLLIN)
        owners: dict[int, Task] = {}
        for task in tasks:
            if task.stuck:
                continue
            until_s = min(until_s, task.next_s())
            if task.wake_fds and task.listens(now_s):
                for fd in task.wake_fds:
                    poll.register(fd, select.POLLIN)
                    owners[fd] = task
            elif task.wake_fds and not task.failures:
                until_s = min(until_s, now_s + _SPACING_S)
        for fd, _ in poll.poll(max(0.0, until_s - now_s) * 1000.0):
            if fd == self._bell:
                os.eventfd_read(self._bell)
            else:
                owners[fd].awake = True

    def wake(self) -> None:
        """Let the `wait` that is on, or the next one, return at once; from any thread."""
        if self._bell >= 0:
            os.eventfd_write(self._bell, 1)

    def close(self) -> None:
        """Let go of the bell. Safe twice."""
        if self._bell >= 0:
            os.close(self._bell)
            self._bell = -1
