"""Exact nearest neighbours of many rows among a few thousand references: screened in float32, measured in float64.

One float32 product gives every squared distance roughly, with a bound on how wrong it can be. References are dealt
into groups; within the k-th smallest of the groups' minima there are k references, so what lies farther than that by
more than the bound allows is not among the k nearest. About k candidates a row are left, and only those are measured
in float64. Selecting among all references would cost more than the product does.

A row with missing values is measured over those that are there (partial distance: Dixon, IEEE Trans. Systems, Man, and
Cybernetics 9, 1979), not scaled up: it is no farther from a reference than with any values in their place.
"""

from __future__ import annotations

from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.intp]
Rough = npt.NDArray[np.float32]
Number = TypeVar("Number", float, Floats)

GROUP: Final = 16
"""References in a group; 8 to 32 measured alike on 10,000 x 20, 16 best."""
BLOCK_VALUES: Final = 1 << 20
"""Distances held at once: bounds memory and stays near the cache."""
SCREENED_ROWS: Final = 128
"""Rows screened at once; 64 to 256 measured alike, 128 best at 1,024 rows."""
UNIT_ROUNDOFF: Final = 2.0**-24
"""Of float32 (Higham: Accuracy and Stability of Numerical Algorithms, 2nd ed. 2002, section 2.1)."""
SPARE_CANDIDATES: Final = 160
"""30 to 300 measured alike on independent rows; on duplicates and tight clusters 140 and more twice as fast as 36."""
FAR: Final = 2.0**20
"""Farther from the centre than so many times the farthest reference, float32 tells references apart no more."""
NOWHERE: Final = 1e30
"""Squared distance of what only fills up the last group; where references reach to 1, no other comes near it."""


class NeighborSearch:
    """The references, laid out for searching.

    Parameters
    ----------
    references
        ``[n, d]``, finite.

    References
    ----------
    Higham: Accuracy and Stability of Numerical Algorithms, 2nd ed. 2002, section 3.1: error of an inner product.

    Examples
    --------
    >>> search = NeighborSearch(np.array([[0.0], [1.0], [5.0]]))
    >>> distances, indices = search.nearest(np.array([[1.2]]), 2)
    >>> indices.tolist(), distances.round(1).tolist()
    ([[1, 0]], [[0.2, 1.2]])
    """

    def __init__(self, references: Floats) -> None:
        self.references = np.ascontiguousarray(references, dtype=np.float64)
        count, width = self.references.shape
        self._groups = -(-count // GROUP)
        # Centred, so that the expansion |a-b|^2 = |a|^2 - 2ab + |b|^2 loses as few digits as possible; by the median,
        # so that one reference far out does not move the centre away from all others.
        self._center = np.median(self.references, axis=0)
        centred = self.references - self._center
        self._factors = np.zeros((width, self._groups * GROUP))
        self._factors[:, :count] = -2.0 * centred.T
        self._squares = np.full(self._groups * GROUP, np.inf)
        self._squares[:count] = np.einsum("nd,nd->n", centred, centred)
        self._numbers = np.arange(max(SCREENED_ROWS + 1, _most(self._groups)))
        self._lay_out_screen(centred)

    def _lay_out_screen(self, centred: Floats) -> None:
        """The same in float32, the farthest reference at 1 so that nothing overflows, the squares as one more row."""
        count, width = centred.shape
        farthest = float(np.sqrt(self._squares[:count].max()))
        self._scale = 1.0 / farthest if 1e-150 < farthest < 1e150 else 0.0  # 0: no screening
        scaled = centred * self._scale
        self._screen = np.zeros((width + 1, self._squares.size), dtype=np.float32)
        self._screen[:width, :count] = -2.0 * scaled.T
        self._screen[width] = NOWHERE
        self._screen[width, :count] = np.einsum("nd,nd->n", scaled, scaled)
        # d + 1 products and sums, both factors rounded before, the limit after; some to spare.
        self._error = (width + 8) * UNIT_ROUNDOFF
        self._underflow = (width + 8) * float(np.finfo(np.float32).tiny)
        self._slack = 1.0 + 4.0 * self._error**0.5

    def nearest(self, rows: Floats, k: int, skip: Indices | None = None) -> tuple[Floats, Indices]:
        """Euclidean distances and indices of the `k` nearest references, each ``[r, k]``, nearest first.

        `skip` names for each row one reference that does not count (itself). Equal distances come lowest index first;
        where far more than `k` references are as good as equally near, among those selected. NaN is not measured.
        """
        count = len(self.references)
        if not 1 <= k <= count - (skip is not None):
            raise ValueError(f"k={k} neighbours asked of {count} references")
        missing = np.isnan(rows)
        if missing.any():
            return self._around_gaps(rows, np.asarray(missing.any(axis=1), dtype=np.bool_), k)
        screened = self._scale > 0.0 and k < self._groups // 2
        if screened and len(rows) == 1 and skip is None:
            return self._one(rows, k)
        distances, indices = np.empty((len(rows), k)), np.empty((len(rows), k), dtype=np.intp)
        step = max(1, min(SCREENED_ROWS if screened else 256, BLOCK_VALUES // self._squares.size))
        rough = np.empty((min(step, len(rows)) if screened else 0, self._squares.size), dtype=np.float32)
        for first in range(0, len(rows), step):
            part = slice(first, first + step)
            some, left_out = rows[part], None if skip is None else skip[part]
            if screened:
                found = self._screened(some, k, left_out, rough[: len(some)])
            else:
                found = self._selected(some, k, left_out)
            distances[part], indices[part] = found
        return distances, indices

    def _around_gaps(self, rows: Floats, gaps: npt.NDArray[np.bool_], k: int) -> tuple[Floats, Indices]:
        """`nearest`, where some rows have ``gaps [r]``: over what is there, in float64 and without a proof."""
        distances, indices = np.empty((len(rows), k)), np.empty((len(rows), k), dtype=np.intp)
        if not gaps.all():
            distances[~gaps], indices[~gaps] = self.nearest(rows[~gaps], k)
        factors = self._factors[:, : len(self.references)]
        places, step = np.flatnonzero(gaps), max(1, BLOCK_VALUES // self._squares.size)
        for first in range(0, len(places), step):
            part = places[first : first + step]
            offset = rows[part] - self._center
            rough = np.nan_to_num(offset) @ factors + ~np.isnan(offset) @ (0.25 * factors**2)
            chosen = np.argpartition(rough, k - 1, axis=1)[:, :k]
            difference = np.nan_to_num(self.references[chosen] - rows[part][:, None, :])
            exact = np.sqrt(np.einsum("rkd,rkd->rk", difference, difference))
            order = np.lexsort((chosen, exact), axis=1)
            distances[part] = np.take_along_axis(exact, order, axis=1)
            indices[part] = np.take_along_axis(chosen, order, axis=1)
        return distances, indices

    def _one(self, row: Floats, k: int) -> tuple[Floats, Indices]:
        """`_screened` for one row: fewer calls, which are all that one row costs."""
        scaled = (row[0] - self._center) * self._scale
        square = float(scaled.dot(scaled))
        if not square <= FAR**2:
            return self._selected(row, k, None)
        factors = np.ones(scaled.size + 1, dtype=np.float32)
        factors[:-1] = scaled
        rough = factors @ self._screen
        minima = rough.reshape(GROUP, self._groups).min(axis=0)
        minima.partition(k - 1)
        limit = self._limit(float(minima[k - 1]), square)
        near = (rough <= np.float32(limit)).nonzero()[0]
        if near.size > _most(k):
            return self._selected(row, k, None)
        difference = self.references.take(near, axis=0)
        difference -= row
        exact = np.sqrt(np.einsum("kd,kd->k", difference, difference))
        order = exact.argsort(kind="stable")[:k]
        return exact[order][None], near[order][None]

    def _screened(self, rows: Floats, k: int, skip: Indices | None, rough: Rough) -> tuple[Floats, Indices]:
        """The `k` nearest, proved to be them but for rows that `_selected` takes over; `rough` is room to work in."""
        scaled = (rows - self._center) * self._scale
        squares = np.einsum("rd,rd->r", scaled, scaled)
        unsure = ~(squares <= FAR**2)
        scaled[unsure] = squares[unsure] = 0.0
        factors = np.ones((len(rows), len(self._screen)), dtype=np.float32)
        factors[:, :-1] = scaled
        np.matmul(factors, self._screen, out=rough)
        if skip is not None:
            rough[self._numbers[: len(rows)], skip] = np.inf
        # Group g is every _groups-th column, so that the minimum runs along contiguous memory.
        minima = rough.reshape(len(rows), GROUP, self._groups).min(axis=1)
        minima.partition(k - 1, axis=1)
        limits = self._limit(minima[:, k - 1].astype(np.float64), squares).astype(np.float32)
        near, counts = self._near(rough, limits, _most(k))
        unsure |= counts > _most(k)
        if unsure.all():
            return self._selected(rows, k, skip)
        distances, indices = self._measured(rows, near, counts, k)
        if unsure.any():
            left_out = None if skip is None else skip[unsure]
            distances[unsure], indices[unsure] = self._selected(rows[unsure], k, left_out)
        return distances, indices

    def _limit(self, kth: Number, square: Number) -> Number:
        """Roughly measured, no neighbour of a row is above this.

        All is less the square of the row's length, and scaled. With `kth` the k-th smallest group minimum, what is at
        most `kth` and what is truly nearest is no longer than `reach` (triangle inequality, and `slack` for the
        rounding). For a reference that long the product is wrong by at most ``error * (2 * length + reach) * reach``:
        so wrong may the k that `kth` stands for be, and so wrong a neighbour.
        """
        length = square**0.5
        reach = self._slack * (length + np.maximum(square + kth, 0.0) ** 0.5)
        limit: Number = kth + 2.0 * (self._error * (2.0 * length + reach) * reach + self._underflow)
        return limit

    def _near(self, rough: Rough, limits: Rough, most: int) -> tuple[Indices, Indices]:
        """Where each row of `rough` is within its limit: columns ascending ``[r, widest]``, and how many of them count.

        Of rows with more than `most` not all are there.
        """
        found = np.flatnonzero(rough <= limits[:, None])
        starts = self._numbers[: len(rough) + 1] * rough.shape[1]
        edges = found.searchsorted(starts)
        counts = np.diff(edges)
        places = self._numbers[: counts[counts <= most].max(initial=0)]
        near = found.take(edges[:-1, None] + places, mode="clip") - starts[:-1, None]
        near[places >= counts[:, None]] = 0
        return near, counts

    def _measured(self, rows: Floats, near: Indices, counts: Indices, k: int) -> tuple[Floats, Indices]:
        """The `k` nearest of the candidates `near`, of which the first `counts` of each row count."""
        difference = self.references.take(near.ravel(), axis=0).reshape(*near.shape, -1)
        difference -= rows[:, None, :]
        exact = np.sqrt(np.einsum("rkd,rkd->rk", difference, difference))
        exact[self._numbers[: near.shape[1]] >= counts[:, None]] = np.inf
        order = exact.argsort(axis=1, kind="stable")[:, :k]
        return np.take_along_axis(exact, order, axis=1), np.take_along_axis(near, order, axis=1)

    def _selected(self, rows: Floats, k: int, skip: Indices | None) -> tuple[Floats, Indices]:
        """In float64 and without a proof: few references, rows far out, or many references as good as equally near.

        Whatever lies below the k-th smallest group minimum lies in one of k groups, and only those are ordered.
        """
        rough = (rows - self._center) @ self._factors
        rough += self._squares
        if skip is not None:
            rough[np.arange(len(rows)), skip] = np.inf
        chosen = self._candidates(rough, k)
        # The product form is rough when a row is far away; the chosen few are measured again exactly.
        difference = self.references[np.minimum(chosen, len(self.references) - 1)] - rows[:, None, :]
        exact = np.sqrt(np.einsum("rkd,rkd->rk", difference, difference))
        order = np.lexsort((chosen, exact), axis=1)
        return np.take_along_axis(exact, order, axis=1), np.take_along_axis(chosen, order, axis=1)

    def _candidates(self, rough: Floats, k: int) -> Indices:
        """Indices ``[r, k]`` of the smallest values of `rough`, in no order."""
        if k >= self._groups // 2:
            return np.argpartition(rough, k - 1, axis=1)[:, :k]
        minima = rough.reshape(len(rough), GROUP, self._groups).min(axis=1)
        groups = np.argpartition(minima, k - 1, axis=1)[:, :k]
        columns = (groups[:, None, :] + (np.arange(GROUP) * self._groups)[None, :, None]).reshape(len(rough), -1)
        best = np.argpartition(np.take_along_axis(rough, columns, axis=1), k - 1, axis=1)[:, :k]
        return np.take_along_axis(columns, best, axis=1)


def _most(k: int) -> int:
    """Candidates a row may have; to measure more costs more than to select in float64 (duplicates, tight clusters)."""
    return k + SPARE_CANDIDATES


def sample_rows(rows: Floats, limit: int, seed: int) -> Floats:
    """At most `limit` of `rows`, drawn without replacement by `seed`, in their own order."""
    if len(rows) <= limit:
        return rows
    return rows[np.sort(np.random.default_rng(seed).choice(len(rows), limit, replace=False))]
