"""How many micro-batches each data-parallel group takes when the groups are not equally fast.

Exact: the greatest ``m_i * t_i`` is the least possible for integers ``m_i >= 1`` of the given sum.
Handing out one unit at a time to whoever would finish it first is optimal (the products grow with m),
and a lower bound of the answer lets all but fewer than D units be handed out at once, so the work is
O(D log D) whatever the total. Standard library only: the base install has no numpy; where there is one, ties are
broken faster.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from trainwarden.actions.planners.microbatch_ties import least_variance
from trainwarden.errors import DataError

MAX_GROUPS = 1_000_000
MAX_TOTAL = 2**40  # counts stay exact in double precision
ARRAY_GROUPS = 4096  # from here on numpy, where it is installed, saves time
ENOUGH_LEFT = 256
MIN_S, MAX_S = 1e-9, 1e9

Counts = tuple[int, ...]


def solve(micro_batch_s: Sequence[float], total: int) -> Counts:
    """Integers ``m_i >= 1`` of sum `total` that minimise ``max(m_i * micro_batch_s[i])``.

    Among equals, the one of least variance of ``m_i * t_i``: exact up to 64 groups; beyond, the better of two
    stationary points that enclose all others (mostly they coincide, which proves it least).

    Parameters
    ----------
    micro_batch_s : sequence of float, shape (groups,)
        Seconds that one micro-batch takes on each group; finite and above zero.
    total : int
        Micro-batches of the global batch; at least one for each group.

    Returns
    -------
    tuple of int, shape (groups,)

    Raises
    ------
    DataError
        If there is no such split: no group, a time that is not a positive number, too small a total.

    References
    ----------
    Wu et al., "Falcon: Pinpointing and Mitigating Stragglers for Large-Scale Hybrid-Parallel Training"
    (2024), section 5.3, equation 1, solved there as a quadratic programme.

    Examples
    --------
    >>> solve([0.05, 0.05, 0.10, 0.05], 24)
    (7, 7, 3, 7)
    >>> solve([1.0, 1.0], 1)
    Traceback (most recent call last):
    trainwarden.errors.DataError: 1 micro-batches cannot give each of 2 groups at least one
    """
    if len(micro_batch_s) >= ARRAY_GROUPS and find_spec("numpy") is not None:
        return _solve_arrays(micro_batch_s, total)
    times = _checked(micro_batch_s, total)
    counts = _fewest_seconds(times, total)
    finish_s = max(map(float.__mul__, times, map(float, counts)))
    if all((count + 1) * time_s > finish_s for count, time_s in zip(counts, times, strict=True)):
        return tuple(counts)  # nobody could take one more in that time: there is no other split
    return least_variance(times, total, finish_s)


def finish_s(micro_batch_s: Sequence[float], counts: Sequence[int]) -> float:
    """Seconds until the last group is done with its `counts` micro-batches.

    Examples
    --------
    >>> finish_s([0.5, 1.0], [3, 1])
    1.5
    """
    return max(count * time_s for count, time_s in zip(counts, micro_batch_s, strict=True))


def even(groups: int, total: int) -> Counts:
    """`total` split as evenly as it goes, the first groups taking the remainder.

    Examples
    --------
    >>> even(4, 10)
    (3, 3, 2, 2)
    """
    least, rest = divmod(total, groups)
    return tuple(least + (group < rest) for group in range(groups))


def _checked(micro_batch_s: Sequence[float], total: int) -> list[float]:
    _check_counts(len(micro_batch_s), total)
    times = list(map(float, micro_batch_s))
    # The bounds keep products and squares of all allowed counts finite and above zero; NaN is within no bounds.
    _refuse(times, next((group for group, time_s in enumerate(times) if not MIN_S <= time_s <= MAX_S), None))
    return times


def _refuse(times: Sequence[float], group: int | None) -> None:
    if group is not None:
        raise DataError(f"micro-batch time {times[group]!r} of group {group} is not within {MIN_S} to {MAX_S} seconds")


def _check_counts(groups: int, total: int) -> None:
    if not 0 < groups <= MAX_GROUPS:
        raise DataError(f"{groups} groups: a split needs between 1 and {MAX_GROUPS}")
    if isinstance(total, bool) or not isinstance(total, int) or total > MAX_TOTAL:
        raise DataError(f"the total of {total!r} micro-batches is no whole number up to {MAX_TOTAL}")
    if total < groups:
        raise DataError(f"{total} micro-batches cannot give each of {groups} groups at least one")


def _fewest_seconds(times: list[float], total: int) -> list[int]:
    """Counts with the least greatest product; ties in any order."""
    # A hair less than the bound: rounding must not hand out a unit too many.
    bound_s = _lower_bound_s(times, total) * (1.0 - 1e-9)
    counts = [int(bound_s / time_s) or 1 for time_s in times]
    _hand_out(times, counts, range(len(times)), total - sum(counts))
    return counts


def _hand_out(times: Sequence[float], counts: list[int], groups: Iterable[int], left: int) -> None:
    """Give `left` more units, each to whoever of `groups` would finish it first."""
    if left <= 0:
        return
    heap = [((counts[group] + 1) * times[group], group) for group in groups]
    heapq.heapify(heap)
    for _ in range(left):
        group = heap[0][1]
        counts[group] += 1
        heapq.heapreplace(heap, ((counts[group] + 1) * times[group], group))


def _solve_arrays(micro_batch_s: Sequence[float], total: int) -> Counts:
    """`solve` for many groups, by arrays of shape (groups,)."""
    np = import_module("numpy")
    _check_counts(len(micro_batch_s), total)
    t = np.array(micro_batch_s, dtype=np.float64)
    wrong = np.flatnonzero(~((t >= MIN_S) & (t <= MAX_S)))
    _refuse(micro_batch_s, int(wrong[0]) if len(wrong) else None)
    bound_s = _bound_s(t, total) * (1.0 - 1e-9)
    held = np.maximum(np.floor(bound_s / t), 1.0)
    left = total - int(held.sum())
    following = (held + 1.0) * t
    # Of the next `left` units none goes to a group that is not among the `left` groups with the soonest next unit.
    near = np.argpartition(following, left)[:left] if 0 < left < len(t) else np.arange(len(t))
    if 0 < left < len(t) and following[near].max() <= (following + t)[near].min():
        held[near] += 1.0  # one each, as nobody's second comes before another's first
        left = 0
    times, counts = t.tolist(), held.astype(np.int64).tolist()
    _hand_out(times, counts, near.tolist(), left)
    given = np.array(counts, dtype=np.float64)
    finish_s = float((given * t).max())
    if bool(((given + 1.0) * t > finish_s).all()):
        return tuple(counts)
    return least_variance(times, total, finish_s)


def _bound_s(t: Any, total: int) -> float:
    """Seconds within which not all of `total` can be done, but all except a few, by bisection."""
    np = import_module("numpy")
    low, high = 0.0, float(t.max()) * (total / len(t) + 1.0)
    for _ in range(200):  # bits of a double, and the way down from the slowest to the fastest group
        middle = (low + high) / 2.0
        if not low < middle < high:
            break
        left = total - int(np.maximum(np.floor(middle / t), 1.0).sum())
        low, high = (middle, high) if left > 0 else (low, middle)
        if 0 < left <= ENOUGH_LEFT:
            break
    return low


def _lower_bound_s(times: list[float], total: int) -> float:
    """The answer if micro-batches could be cut, with groups too slow for even one taken out of the sum."""
    left, rate = total, sum(1.0 / time_s for time_s in times)
    bound_s = left / rate
    slow = [time_s for time_s in times if time_s > bound_s]
    while slow and left > len(slow):
        rest = [time_s for time_s in times if time_s <= bound_s]
        if not rest:
            break
        shrunk_s = (total - (len(times) - len(rest))) / sum(1.0 / time_s for time_s in rest)
        if shrunk_s >= bound_s:
            break
        bound_s = shrunk_s
        slow = [time_s for time_s in rest if time_s > bound_s]
    return bound_s
