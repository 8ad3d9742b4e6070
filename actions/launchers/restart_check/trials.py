"""The leader's part of measurements between two attempts: asks who is suspected, orders a trial, and concludes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

import msgspec

from actions.launchers.restart_check.bounded import LIMIT_S, START_S, Asking
from actions.launchers.restart_check.trial import Trial, TrialId, TrialSaid
from actions.launchers.restart_check.words import Conclusion, Outcome, Suspicions, Wanted
from trainwarden.clock import Clock

HEARD_S: Final = 10.0  # for the order to come to the first node, and its answer back
NOTHING: Final = Conclusion()


class Free(Protocol):
    """A node that could take part (`actions.launchers.cluster.words.Report`)."""

    @property
    def life(self) -> str: ...
    @property
    def node(self) -> str: ...
    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int: ...
    @property
    def trial(self) -> TrialSaid | None: ...


class Trials:
    """At most one trial after each attempt; pure but for the question who is suspected.

    Attributes
    ----------
    ordered : Trial, optional
        What the nodes are to measure now.
    """

    def __init__(self, suspicions: Suspicions | None, clock: Clock) -> None:
        self._suspicions, self._clock = suspicions, clock
        self._after: TrialId | None = None  # the attempt that it comes after
        self._asking: Asking | None = None
        self._wanted: Wanted | None = None
        self._number, self._until_s = 0, 0.0
        self.ordered: Trial | None = None

    def cut(self) -> None:
        """Let go of what is under way: the job has something else to do."""
        self._asking, self._wanted, self.ordered = None, None, None

    def advance(self, after: TrialId, epoch: int, free: Sequence[Free]) -> Conclusion | None:
        """One step further, where another attempt could begin `after` one on `free` nodes; None: it has to wait."""
        if self._suspicions is None:
            return NOTHING
        if after != self._after:
            self.cut()
            self._after = after
            self._asking = Asking(self._suspicions, [one.node for one in free], self._clock)
        if self._asking is None:
            return NOTHING
        if self.ordered is None:
            return self._order(self._asking, epoch, free)
        outcome = self._outcome(self.ordered, free)
        if outcome is None:
            return None
        wanted = self._wanted
        assert wanted is not None
        self.cut()
        return self._suspicions.conclude(wanted, outcome)

    def _order(self, asking: Asking, epoch: int, free: Sequence[Free]) -> Conclusion | None:
        if not asking.over:
            return None
        wanted = asking.wanted
        if wanted is None:
            self.cut()
            return NOTHING
        # Ranks are numbered anew where a node is missing, so suspects are told by their nodes.
        doubts = tuple(msgspec.structs.replace(doubt, ranks=()) for doubt in wanted.doubts)
        self._wanted = msgspec.structs.replace(wanted, doubts=doubts)
        self._number += 1
        self._until_s = self._clock.monotonic_s() + START_S + LIMIT_S + HEARD_S
        first = free[0]
        self.ordered = Trial(
            id=(epoch, self._number), roster=tuple(one.life for one in free), master=first.host, port=first.port,
            checks=wanted.checks, nodes=wanted.nodes,
        )  # fmt: skip
        return None

    def _outcome(self, trial: Trial, free: Sequence[Free]) -> Outcome | None:
        """What the first node says, as it leads the measurement; None while that is to be waited for."""
        first = next((one for one in free if one.life == trial.roster[0]), None)
        if first is None:
            return Outcome(None, "the node that led the measurement is gone")
        if first.trial is not None and first.trial.id == trial.id:
            return Outcome(first.trial.findings, first.trial.error or None)
        if self._clock.monotonic_s() >= self._until_s:
            return Outcome(None, f"{first.node}, which leads the measurement, has said nothing of its end")
        return None
