"""What each model's votes weigh, by what the gate has counted of them; where nothing was counted, what they weighed.

Votes are enough where, of those that agree, one at least is to be expected right: a vote that is right with share p
of its alarms weighs p of what is enough, whatever the votes have in common (Boole's inequality: the chance that any is
right is at most the sum of theirs). Log odds (naive Bayes) take votes for independent, and models of the same metrics
are not: docs/detection.md has what that costs. Of p only bounds are known, so a weight is moved as little as they ask.
"""

from __future__ import annotations

from typing import Final

import msgspec

from trainwarden.trainer_offline.fit.bounds import share_bounds

ENOUGH: Final = 2.0  # `EnsembleConfig.metric_votes`, in whose units weights are
CEILING: Final = 0.5  # of what is enough: one model decides nothing, two have to agree (Wu et al. 2023, section V-B)
ALONE: Final = 0.5  # Bayes' rule where a false alarm costs as much as a miss (Duda, Hart, Stork 2001, section 2.2)


class Counted(msgspec.Struct, kw_only=True):
    """One detector on one family of the test jobs: faults found, hours of jobs with false alarms, shares of time."""

    found: int = 0
    false_spells: int = 0
    events: int = 0
    fault_s: float = 0.0
    judged_s: float = 0.0


class Weight(msgspec.Struct, frozen=True, kw_only=True):
    """What a detector's votes about one family weigh, and why."""

    weight: float
    why: str


def weighed(counted: Counted, constant: float, *, alone: bool = False) -> Weight:
    """The weight of one detector on one family.

    Parameters
    ----------
    constant : float
        What it weighs where nothing was counted (`Role.weight`).
    alone : bool
        It is about all models together, and may be enough by itself; others weigh `CEILING` at most.

    Examples
    --------
    >>> weighed(Counted(found=30, false_spells=10, events=40, judged_s=9.0), 0.0).why
    'right in 30 of 40 alarms: 0.624 to 0.844 of them'
    >>> weighed(Counted(found=2, false_spells=18, events=9, judged_s=9.0), 1.0).weight
    0.523
    >>> weighed(Counted(), 0.5)
    Weight(weight=0.5, why='no annotated faults to count by')
    """
    ceiling = ENOUGH * CEILING
    alarms = counted.found + counted.false_spells
    if not counted.events or not alarms:
        why = "no alarm in the test jobs" if counted.events else "no annotated faults to count by"
        return Weight(weight=min(constant, ceiling), why=why)
    low, high = share_bounds(counted.found, alarms)
    why = f"right in {counted.found} of {alarms} alarms: {low:.3g} to {high:.3g} of them"
    by_chance = counted.fault_s / counted.judged_s
    if high <= by_chance:
        return Weight(weight=0.0, why=f"{why}, and {by_chance:.3g} by chance")
    if alone and low >= ALONE:
        return Weight(weight=ENOUGH, why=f"{why}, so it may open alone")
    weight = min(max(constant, ENOUGH * low), ENOUGH * high, ceiling)
    return Weight(weight=round(weight, 3), why=why)
