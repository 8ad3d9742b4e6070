"""A question and a measurement that may never come back; whoever waits for them gives up after a while."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from typing import Final

from trainwarden.actions.launchers.restart_check.messages import CheckRequest, Child, Outcome, Suspicions
from trainwarden.clock import Clock

ASK_S: Final = 10.0  # a bus that says nothing for so long must not keep a job down, as a folder of checkpoints must not
START_S: Final = 120.0  # imports of torch take 3 s of a processor, on busy machines many times that
LIMIT_S: Final = 300.0  # measured: 15 s for eight ranks on two busy cores


class Asking:
    """`Suspicions.wanted` on its way, from a thread of its own."""

    def __init__(self, suspicions: Suspicions, nodes: Collection[str], clock: Clock) -> None:
        self._wanted: CheckRequest | None = None
        self._clock, self._until_s = clock, clock.monotonic_s() + ASK_S
        self._thread = threading.Thread(target=self._run, args=(suspicions, nodes), name="suspicions", daemon=True)
        self._thread.start()

    @property
    def over(self) -> bool:
        """Whether there is an answer, or none is waited for any more."""
        return not self._thread.is_alive() or self._clock.monotonic_s() >= self._until_s

    @property
    def wanted(self) -> CheckRequest | None:
        """The answer; None while there is none."""
        return None if self._thread.is_alive() else self._wanted

    def _run(self, suspicions: Suspicions, nodes: Collection[str]) -> None:
        self._wanted = suspicions.wanted(nodes)


class Bounded:
    """One measurement, from its process's start to its outcome.

    Parameters
    ----------
    measure : callable
        Starts the process; it waits until it is told to begin.
    """

    def __init__(self, measure: Callable[[], Child], clock: Clock) -> None:
        self._clock, self._until_s = clock, clock.monotonic_s() + START_S
        self._begun = False
        self._child: Child | None = None
        self._error: str | None = None
        try:
            self._child = measure()
        except OSError as error:  # no memory or process slot
            self._error = f"the validation could not be started ({error.strerror})"

    @property
    def pid(self) -> int | None:
        """Of the process."""
        return None if self._child is None else self._child.pid

    def advance(self) -> Outcome | None:
        """One step further; the end once there is one."""
        child, now_s = self._child, self._clock.monotonic_s()
        if child is None:
            return Outcome(None, self._error)
        if child.ended:
            return child.outcome()
        if now_s >= self._until_s:
            child.kill()
            what, limit_s = ("measured", LIMIT_S) if self._begun else ("ready", START_S)
            return Outcome(None, f"the validation was not {what} within {limit_s:.0f} s")
        if not self._begun and child.ready:
            self._begun, self._until_s = True, now_s + LIMIT_S
            child.begin()
        return None

    def kill(self) -> None:
        """End it. Safe twice."""
        if self._child is not None:
            self._child.kill()
