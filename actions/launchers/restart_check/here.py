"""Suspects measured between two attempts of a job whose ranks are all on this machine."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from trainwarden.actions.launchers.restart_check.bounded import Asking, Bounded
from trainwarden.actions.launchers.restart_check.messages import CheckRequest, Child, Suspicions
from trainwarden.clock import Clock

log = logging.getLogger("trainwarden.rendezvous")


class Runner(Protocol):
    """The ranks of the job; `beside` is the process that measures."""

    beside: int | None

    def say(self, sentence: str) -> None: ...


class CheckHere:
    """At most one check for each restart; nothing here waits.

    Parameters
    ----------
    measure : callable
        Starts the measurement that is wanted.
    suspicions : Suspicions, optional
        None: nothing is ever measured.
    """

    def __init__(
        self,
        node: str,
        runner: Runner,
        clock: Clock,
        measure: Callable[[CheckRequest], Child],
        suspicions: Suspicions | None,
    ) -> None:
        self._node, self._runner, self._clock, self._measure = node, runner, clock, measure
        self._suspicions = suspicions
        self._restart = ""
        self._asking: Asking | None = None
        self._wanted: CheckRequest | None = None
        self._measurement: Bounded | None = None

    def begin(self, restart: str) -> None:
        """Ask who is suspected, while the ranks that the restart of that id is about still end."""
        self.cancel()
        if self._suspicions is not None:
            self._restart, self._asking = restart, Asking(self._suspicions, (self._node,), self._clock)

    def advance(self, restart: str) -> str | None:
        """One step further, with the ranks gone: what is waited for; None once the ranks may start."""
        if restart != self._restart or self._asking is None:
            return None
        if self._wanted is None:
            if not self._asking.over:
                return "looks for suspects"
            self._wanted = self._asking.wanted
            if self._wanted is None:
                self.cancel()
                return None
        if self._measurement is None:
            wanted = self._wanted
            self._measurement = Bounded(lambda: self._measure(wanted), self._clock)
            self._runner.beside = self._measurement.pid
        outcome = self._measurement.advance()
        if outcome is None:
            return "measures the suspects"
        assert self._suspicions is not None
        found = self._suspicions.conclude(self._wanted, outcome)
        stays = "; there is no other node, so the ranks start here again" if found.confirmed else ""
        said = f"measured before the restart: {found.said}{stays}"
        log.info("suspects measured", extra={"fields": {"restart": restart, "what": said}})
        self._runner.say(said)
        self.cancel()
        return None

    def cancel(self) -> None:
        """End what is under way. Safe twice."""
        if self._measurement is not None:
            self._measurement.kill()
            self._runner.beside = None
        self._restart, self._asking, self._wanted, self._measurement = "", None, None, None
