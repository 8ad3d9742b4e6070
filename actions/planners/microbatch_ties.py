"""Of all splits of micro-batches that end equally soon, the one of least variance of the groups' finishing times."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

WALK_GROUPS = 64  # the search between two candidates looks at pairs of groups
ARRAY_GROUPS = 64  # from here on numpy, where it is installed, is faster than lists

Counts = tuple[int, ...]


def least_variance(times: list[float], total: int, finish_s: float) -> Counts:
    """Of all splits of `total` within `finish_s` the one of least variance of ``m_i * times[i]``.

    The variance is the least over c of sum (m_i t_i - c)^2 / D. For a fixed c the best split is greedy, and its
    mean never falls as c rises; so going c -> mean from below and from above ends at the lowest and the
    highest c that are their own mean, and the least variance lies at or between them.
    """
    most = total - len(times) + 1  # the others need one each
    caps = [_most_within(time_s, finish_s, most) for time_s in times]
    use_arrays = len(times) >= ARRAY_GROUPS and find_spec("numpy") is not None
    splits = _ArraySplits(times, caps, total) if use_arrays else _Splits(times, caps, total)
    low = splits.reassign(0.0, rising=True)
    high = splits.reassign(finish_s, rising=False)
    if low == high:
        return tuple(low)
    best = min((low, high), key=lambda counts: _spread(times, counts))
    if len(times) <= WALK_GROUPS:
        best = _walk(times, caps, low, high, best)
    return tuple(best)


def _most_within(time_s: float, finish_s: float, most: int) -> int:
    """The greatest count from 1 to `most` whose product, as computed, is within `finish_s`."""
    if most * time_s <= finish_s:
        return most
    count = max(1, int(finish_s / time_s))
    while (count + 1) * time_s <= finish_s:
        count += 1
    while count > 1 and count * time_s > finish_s:
        count -= 1
    return count


class _Splits:
    """All splits of `total` within `caps`, and which of them is nearest to a level of finishing times.

    Unit number m of a group costs ``t^2 (2m - 1) - 2 level t``, which rises with m, so all units up to one price are
    bought.
    """

    def __init__(self, times: list[float], caps: list[int], total: int) -> None:
        self.times, self.caps, self.total = times, caps, total

    def reassign(self, level_s: float, *, rising: bool) -> list[int]:
        """Repeat: nearest split for the level, then its mean as the level, until nothing changes."""
        counts: list[int] = []
        for _ in range(200):  # each round moves the mean strictly one way; a handful is usual
            following = self.nearest(level_s, rising=rising)
            if following == counts:
                break
            counts = following
            level_s = math.fsum(map(float.__mul__, self.times, map(float, counts))) / len(counts)
        return counts

    def nearest(self, level_s: float, *, rising: bool) -> list[int]:
        """Counts that minimise sum (m_i t_i - level)^2; at equal prices the faster group first when `rising`."""
        times, caps, sign = self.times, self.caps, 1.0 if rising else -1.0
        counts = self._bought(level_s, self._price(level_s))
        left = self.total - sum(counts)

        def cost(group: int, unit: int, direction: float) -> tuple[float, float, int]:
            time_s = times[group]
            price = time_s * time_s * (2 * unit - 1) - 2.0 * level_s * time_s
            return (direction * price, direction * sign * time_s, group)

        if left > 0:
            heap = [cost(g, counts[g] + 1, 1.0) for g in range(len(counts)) if counts[g] < caps[g]]
            heapq.heapify(heap)
            for _ in range(left):
                group = heapq.heappop(heap)[2]
                counts[group] += 1
                if counts[group] < caps[group]:
                    heapq.heappush(heap, cost(group, counts[group] + 1, 1.0))
        elif left < 0:
            heap = [cost(g, counts[g], -1.0) for g in range(len(counts)) if counts[g] > 1]
            heapq.heapify(heap)
            for _ in range(-left):
                group = heapq.heappop(heap)[2]
                counts[group] -= 1
                if counts[group] > 1:
                    heapq.heappush(heap, cost(group, counts[group], -1.0))
        return counts

    def _bought(self, level_s: float, price: float) -> list[int]:
        return [
            min(cap, max(1, int((price / time_s + 2.0 * level_s) / (2.0 * time_s) + 0.5)))
            for time_s, cap in zip(self.times, self.caps, strict=True)
        ]

    def _bought_units(self, level_s: float, price: float) -> int:
        return sum(self._bought(level_s, price))

    def _price(self, level_s: float) -> float:
        """A price at which about `total` units are bought; it need not be exact, only near."""
        fast, slow = min(self.times), max(self.times)
        low = min(fast * (fast - 2.0 * level_s), -level_s * level_s) - slow * slow
        high = max(
            t * t * (2 * cap + 1) - 2.0 * level_s * t for t, cap in zip(self.times, self.caps, strict=True)
        )  # fmt: skip
        price, near = self._first_price(level_s), len(self.times)  # a heap puts as many units right
        for _ in range(100):
            if not low < price < high:
                price = (low + high) / 2.0
            left = self.total - self._bought_units(level_s, price)
            if abs(left) <= near:
                break
            low, high = (price, high) if left > 0 else (low, price)
            price = (low + high) / 2.0
        return price

    def _first_price(self, level_s: float) -> float:
        """The price if counts were neither whole nor bounded."""
        unpriced = sum(level_s / time_s for time_s in self.times)
        return (self.total - unpriced) / sum(0.5 / (time_s * time_s) for time_s in self.times)


class _ArraySplits(_Splits):
    """The same by numpy, arrays of shape (groups,)."""

    def __init__(self, times: list[float], caps: list[int], total: int) -> None:
        super().__init__(times, caps, total)
        self._np = np = import_module("numpy")
        self._t = np.array(times)
        self._caps = np.array(caps, dtype=np.float64)  # exact below 2^53, and counts stay below 2^40
        self._per_price = 0.5 / (self._t * self._t)
        self._inverse = 1.0 / self._t

    def nearest(self, level_s: float, *, rising: bool) -> list[int]:
        """See `_Splits.nearest`. Usually each group is at most one unit off, which sorting puts right at once."""
        np = self._np
        units = self._units(level_s, self._price(level_s))
        left = self.total - int(units.sum())
        direction = 1.0 if left > 0 else -1.0
        if 0 < abs(left) <= len(units):
            cost = self._cost(units, level_s, direction)
            order = np.lexsort((self._t if rising == (left > 0) else -self._t, cost))[: abs(left)]
            dearest = cost[order[-1]]
            units[order] += direction
            following = self._cost(units, level_s, direction)[order]
            if not (np.isfinite(dearest) and following.min() >= dearest):
                return super().nearest(level_s, rising=rising)
        elif left:
            return super().nearest(level_s, rising=rising)
        counts: list[int] = units.astype(np.int64).tolist()
        return counts

    def _cost(self, units: Any, level_s: float, direction: float) -> Any:
        """What the next unit in `direction` costs (what giving one back saves, negated); infinite at the caps."""
        np = self._np
        cost = direction * (self._t * self._t * (2.0 * units + direction) - 2.0 * level_s * self._t)
        return np.where(units < self._caps if direction > 0 else units > 1.0, cost, np.inf)

    def _units(self, level_s: float, price: float) -> Any:
        np = self._np
        wanted = np.floor(self._per_price * price + (self._inverse * level_s + 0.5))
        return np.minimum(np.maximum(wanted, 1.0), self._caps)

    def _bought_units(self, level_s: float, price: float) -> int:
        return int(self._units(level_s, price).sum())

    def _price(self, level_s: float) -> float:
        """Newton's steps on the relaxed counts, whose number is piecewise linear and rising in the price."""
        np = self._np
        base, price, low, high = self._inverse * level_s, 0.0, -math.inf, math.inf
        for _ in range(60):
            relaxed = base + self._per_price * price
            left = self.total - float(np.minimum(np.maximum(relaxed, 1.0), self._caps).sum())
            if abs(left) <= 1.0:
                return price
            low, high = (price, high) if left > 0 else (low, price)
            slope = float(self._per_price[(relaxed > 1.0) & (relaxed < self._caps)].sum())
            price = price + left / slope if slope > 0.0 else math.nan
            if not low < price < high:
                price = (low + high) / 2.0
            if not math.isfinite(price):
                break
        return super()._price(level_s)


def _spread(times: Sequence[float], counts: Sequence[int]) -> float:
    """D times the variance of the finishing times."""
    finish = [count * time_s for count, time_s in zip(counts, times, strict=True)]
    mean = math.fsum(finish) / len(finish)
    return math.fsum((value - mean) ** 2 for value in finish)


def _walk(times: list[float], caps: list[int], low: list[int], high: list[int], best: list[int]) -> list[int]:
    """Every split that is best for some level between `low`'s and `high`'s; the least spread of all.

    As the level rises, single units go from a faster to a slower group, one at a time.
    """
    counts, best_spread = list(low), _spread(times, best)
    groups = range(len(times))
    for _ in range(100_000):
        if counts == high:
            break
        moves = (
            (
                (_unit(times, to, counts[to] + 1) - _unit(times, fro, counts[fro])) / (2.0 * (times[to] - times[fro])),
                fro,
                to,
            )
            for fro in groups
            if counts[fro] > 1
            for to in groups
            if times[to] > times[fro] and counts[to] < caps[to]
        )
        move = min(moves, default=None)
        if move is None:
            break
        counts[move[1]] -= 1
        counts[move[2]] += 1
        spread = _spread(times, counts)
        if spread < best_spread:
            best, best_spread = list(counts), spread
    return best


def _unit(times: list[float], group: int, unit: int) -> float:
    return times[group] ** 2 * (2 * unit - 1)
