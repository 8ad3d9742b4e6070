"""Ranks as the data-parallel replicas that a number of micro-batches is given to, and how long each takes.

A replica holds the model once, over the ranks of its tensor, context and pipeline parallel groups, and is as slow as
its slowest: ranks of a stage wait for each other in every micro-batch, and a micro-batch passes through one stage after
the other. So ``m`` micro-batches take ``sum_p s_p + (m - 1) max_p s_p`` with ``s_p`` the slowest rank of stage ``p``
(as in `trainwarden.actions.planners.placement`; Narayanan et al., Megatron-LM, 2021, section 2.2: one forward, one
backward).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Final

import msgspec

from trainwarden.actions.planners.microbatches import Counts, solve
from trainwarden.errors import DataError
from trainwarden.parallelism.layout import Layout

CLOSE: Final = 60  # halvings: a double has 53 bits


class Replica(msgspec.Struct, frozen=True):
    """`fill_s + m * micro_batch_s` seconds for ``m`` micro-batches, on these ranks."""

    ranks: tuple[int, ...]
    micro_batch_s: float
    fill_s: float = 0.0

    def after_s(self, micro_batches: int) -> float:
        """Seconds of so many micro-batches."""
        return self.fill_s + micro_batches * self.micro_batch_s


def refusal(layout: Layout | None, ranks: int) -> str | None:
    """Why replicas of a job of so many ranks cannot be given unequal numbers of micro-batches; None if they can.

    Examples
    --------
    >>> refusal(Layout(world_size=4, sizes={"tp": 2}, sources=("settings",)), 4)
    'the layout of the ranks is not known whole: tp 2; context and data and pipeline not known; from settings'
    """
    if layout is None:
        return None
    if layout.uneven:
        return f"unequal micro-batches would be wrong here: {'; '.join(layout.uneven)}"
    if not layout.whole:
        return f"the layout of the ranks is not known whole: {layout.summary()}"
    if layout.world_size != ranks:
        return f"the layout is one of {layout.world_size} ranks, and {ranks} were measured"
    return None


def replicas(layout: Layout | None, micro_batch_s: Sequence[float]) -> tuple[Replica, ...]:
    """The replicas of a job, each as slow as its slowest rank; without a layout each rank is one.

    Parameters
    ----------
    layout : Layout or None
        A whole one of as many ranks.
    micro_batch_s : sequence of float, shape (ranks,)
        Seconds that each rank computes for one micro-batch.

    Examples
    --------
    >>> layout = Layout(world_size=4, sizes={"tp": 1, "cp": 1, "dp": 2, "pp": 2})
    >>> replicas(layout, [0.25, 0.5, 0.25, 0.25])
    (Replica(ranks=(0, 2), micro_batch_s=0.25, fill_s=0.25), Replica(ranks=(1, 3), micro_batch_s=0.5, fill_s=0.25))
    """
    if layout is None:
        return tuple(Replica((rank,), seconds) for rank, seconds in enumerate(micro_batch_s))
    stages, found = layout.stages(), []
    for ranks in layout.replicas():
        slowest: dict[int, float] = {}
        for rank in ranks:
            slowest[stages[rank]] = max(slowest.get(stages[rank], 0.0), micro_batch_s[rank])
        most_s = max(slowest.values())
        found.append(Replica(ranks, most_s, sum(slowest.values()) - most_s))
    return tuple(found)


def split(found: Sequence[Replica], total: int) -> Counts:
    """Micro-batches of each replica, at least one, that end soonest: exact.

    Raises
    ------
    DataError
        If there is no such split.

    Examples
    --------
    >>> split([Replica((0,), 1.0, 3.0), Replica((1,), 2.0, 3.0)], 6)
    (4, 2)
    """
    if not any(one.fill_s for one in found):
        return solve([one.micro_batch_s for one in found], total)
    if total < len(found):
        raise DataError(f"{total} micro-batches cannot give each of {len(found)} groups at least one")
    low_s, high_s = 0.0, max(one.after_s(total) for one in found)
    for _ in range(CLOSE):  # until just before all could be done
        middle_s = (low_s + high_s) / 2.0
        enough = sum(_within(one, middle_s) for one in found) >= total
        low_s, high_s = (low_s, middle_s) if enough else (middle_s, high_s)
    counts = [_within(one, low_s) for one in found]
    soonest = [(one.after_s(count + 1), place) for place, (one, count) in enumerate(zip(found, counts, strict=True))]
    heapq.heapify(soonest)
    for _ in range(total - sum(counts)):
        place = soonest[0][1]
        counts[place] += 1
        heapq.heapreplace(soonest, (found[place].after_s(counts[place] + 1), place))
    return tuple(counts)


def _within(one: Replica, seconds: float) -> int:
    """Micro-batches that a replica can do within `seconds`; one in any case."""
    return max(1, int((seconds - one.fill_s) / one.micro_batch_s))
