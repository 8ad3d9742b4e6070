"""Which remedy, when: pay for a remedy only once the trouble has cost as much (ski rental)."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec

from trainwarden.records import ActionKind


class Strategy(msgspec.Struct, frozen=True):
    """A remedy and what applying it costs, in seconds of training lost."""

    kind: ActionKind
    overhead_s: float


class Ladder:
    """The remedies of one incident, cheapest first, and what the incident has cost so far.

    Each remedy falls due when the accumulated impact reaches its overhead; a new incident starts a new ladder. If
    each overhead is at least twice the one before, the total paid stays within three times what somebody who
    knew the incident's length would have paid: impact and newest overhead once each, all earlier ones together once.

    References
    ----------
    Wu et al., "Falcon" (2024), section 5.2, algorithm 1. There the impact is the number of slow iterations times
    the present loss of one; here each iteration counts with the loss of its own time, so that a remedy that helped
    in part does not rewrite the past.

    Examples
    --------
    >>> ladder = Ladder([Strategy("restart_job", 60.0), Strategy("rebalance", 1.0)])
    >>> ladder.accumulate(slow_iterations=4, iteration_s=0.6, healthy_s=0.3)
    >>> round(ladder.impact_s, 3), ladder.due(applied=())
    (1.2, Strategy(kind='rebalance', overhead_s=1.0))
    >>> ladder.due(applied={"rebalance"}) is None
    True
    """

    def __init__(self, strategies: Iterable[Strategy]) -> None:
        self.strategies = tuple(sorted(strategies, key=lambda strategy: strategy.overhead_s))
        self.impact_s = 0.0
        self._slow_iterations = 0

    def accumulate(self, slow_iterations: int, iteration_s: float, healthy_s: float) -> None:
        """Count the iterations since the last call; `slow_iterations` is the number since onset, never falling."""
        new = slow_iterations - self._slow_iterations
        if new > 0:
            self._slow_iterations = slow_iterations
            self.impact_s += new * max(0.0, iteration_s - healthy_s)

    def go_on_from(self, before: Ladder) -> None:
        """Count on from what the same incident has cost while it was taken for something else."""
        self.impact_s, self._slow_iterations = before.impact_s, before._slow_iterations

    def due(self, applied: Collection[ActionKind]) -> Strategy | None:
        """The cheapest remedy not in `applied`, if the impact has reached its overhead."""
        for strategy in self.strategies:
            if strategy.kind not in applied:
                return strategy if self.impact_s >= strategy.overhead_s else None
        return None
