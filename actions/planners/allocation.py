"""Units shared out among tasks so that the sum of what they are worth is the greatest, exactly.

A dynamic programme over all options takes O(m n^2). Most options can be ruled out before: the Lagrangian dual bounds
the best sum from above, a programme over few options from below, and no option whose own loss exceeds the gap between
the two is part of any best answer (reduced-cost fixing); nor is a sum of some tasks that has lost as much already. What
cannot be ruled out is worked through.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

FIRST_OPTIONS = 8  # of each task, for the bound from below; more of them cost time and seldom raise it
MAX_CUTS = 200  # the dual is found after some ten; fewer cuts only make the bound less sharp
ROUNDING = 1e-12


class _Dual(NamedTuple):
    """What a price for units says of the best sum.

    Attributes
    ----------
    units : int array [tasks]
        What each task would take at `price`.
    price, upper : float
        `upper` is ``sum(most) + price n``: no sum is above it.
    unused : int
        How many of the n units nobody takes; negative: so many more are wanted.
    most : float array [tasks]
        ``max_x (worth[i, x] - price x)``.
    """

    units: Ints
    price: float
    upper: float
    unused: int
    most: Floats

    @property
    def settles(self) -> bool:
        """Whether `units` is an answer that reaches the bound."""
        return self.unused == 0 or (self.price == 0.0 and self.unused > 0)


def best(worth: Floats) -> tuple[Ints, float]:
    """Units of each task, ``x_i``, that maximise ``sum worth[i, x_i]`` with ``sum x_i`` at most the greatest column.

    Parameters
    ----------
    worth : float array [tasks, units + 1]
        What a task is worth with so many units; -inf where it cannot have them. Column 0 is finite.

    Returns
    -------
    units : int array [tasks]
        Of equal answers one; an option that is worth no more than one of fewer units is never taken.
    value : float

    References
    ----------
    He et al., "Unicron" (2023), section 5.2, equation 5, solved there by the plain programme.

    Examples
    --------
    >>> units, value = best(np.array([[0.0, 3.0, 4.0], [0.0, 2.0, 5.0]]))
    >>> units.tolist(), value
    ([0, 2], 5.0)
    """
    worth = worth.copy()
    worth[:, 1:][worth[:, 1:] <= np.maximum.accumulate(worth, axis=1)[:, :-1]] = -np.inf
    dual = _dual(worth)
    if dual.settles:
        return dual.units, _sum(worth, dual.units)
    finite = np.isfinite(worth)
    lost = dual.most[:, None] - (worth - dual.price * np.arange(worth.shape[1]))  # of an option against the best one
    first = min(FIRST_OPTIONS, worth.shape[1])
    few = np.zeros(worth.shape, dtype=bool)
    np.put_along_axis(few, np.argpartition(lost, first - 1, axis=1)[:, :first], values=True, axis=1)
    few[:, 0] = True  # so that there is an answer
    few[finite.sum(axis=1).argmax()] = True  # all options of one task cost nothing
    units = _programme(worth, few & finite)
    gap = dual.upper - _sum(worth, units)
    hair = ROUNDING * (abs(dual.upper) + float(np.abs(worth[finite]).max()))
    if gap > hair:
        left = lost <= gap + hair
        left[np.arange(len(units)), units] = True
        units = _programme(worth, left, dual, gap + hair)
    return units, _sum(worth, units)


def _sum(worth: Floats, units: Ints) -> float:
    return float(worth[np.arange(len(units)), units].sum())


def _at(worth: Floats, price: float) -> _Dual:
    size = worth.shape[1] - 1
    net = worth - price * np.arange(size + 1)
    units = net.argmax(axis=1)
    most = net[np.arange(len(units)), units]
    return _Dual(units, price, float(most.sum()) + price * size, size - int(units.sum()), most)


def _dual(worth: Floats) -> _Dual:
    """The price at which the bound is lowest.

    The bound is convex and piecewise linear in the price, with `unused` as its slope: two lines enclose its lowest
    point, and where they meet is looked at next (Kelley's cutting planes).
    """
    low = _at(worth, 0.0)
    if low.unused >= 0:
        return low
    each = (worth[:, 1:] - worth[:, :1]) / np.arange(1, worth.shape[1])
    high = _at(worth, 2.0 * float(each.max()))  # nothing is worth a unit there
    lowest = high
    for _ in range(MAX_CUTS):
        price = (high.upper - low.upper + low.unused * low.price - high.unused * high.price) / (
            low.unused - high.unused
        )
        if not low.price < price < high.price:
            break
        meeting = low.upper + low.unused * (price - low.price)
        lowest = _at(worth, price)
        if lowest.unused == 0 or lowest.upper <= meeting + ROUNDING * abs(lowest.upper):
            break
        low, high = (lowest, high) if lowest.unused < 0 else (low, lowest)
    return lowest


def _programme(worth: Floats, offered: Bools, dual: _Dual | None = None, gap: float = np.inf) -> Ints:
    """The best answer among the options `offered`, by dynamic programming over exact sums of units.

    With `dual`, sums of the first tasks that have lost more than `gap` are left out: no best answer goes on from them.
    """
    order = np.argsort(offered.sum(axis=1), kind="stable")  # the most options last, where they cost least
    options = np.where(offered, worth, -np.inf)[order]
    sums = [options[0]]
    for place in range(1, len(order) - 1):
        if dual is not None:
            top = float(dual.most[order[:place]].sum())
            sums[-1][top + dual.price * np.arange(worth.shape[1]) - sums[-1] > gap] = -np.inf
        sums.append(_joined(sums[-1], options[place]))
    answer = np.zeros(len(worth), dtype=np.int64)
    used = worth.shape[1] - 1
    if len(order) > 1:  # the last task takes its best option within what the others leave
        used = int((sums[-1] + np.maximum.accumulate(options[-1])[::-1]).argmax())
        answer[order[-1]] = options[-1][: worth.shape[1] - used].argmax()
    else:
        used = int(sums[0].argmax())
    for place in range(len(order) - 2, 0, -1):
        units = int((sums[place - 1][used::-1] + options[place][: used + 1]).argmax())
        answer[order[place]] = units
        used -= units
    answer[order[0]] = used
    return answer


def _joined(sums: Floats, options: Floats) -> Floats:
    """The most that one of `sums` and one of `options` are worth together, by units of both; -inf: there is none."""
    few, many = sorted((sums, options), key=lambda one: int(np.isfinite(one).sum()))
    size = len(few)
    total, room = np.full(size, -np.inf), np.empty(size)
    for units in np.flatnonzero(np.isfinite(few)).tolist():
        more = np.add(many[: size - units], few[units], out=room[: size - units])
        np.maximum(total[units:], more, out=total[units:])
    return total
