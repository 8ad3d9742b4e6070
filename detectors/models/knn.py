"""Exact nearest neighbours of many rows among a few thousand references, by one matrix product and a grouped selection.

Selecting, not multiplying, is what costs. References are dealt into groups of `GROUP`; the k groups with the smallest
minimum must hold the k nearest (whatever lies below the k-th smallest minimum lies in one of them), so only
``k * GROUP`` candidates per row are ever ordered.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.intp]

GROUP: Final = 16
"""References in a group; 8 to 32 measured alike on 10,000 x 20, 16 best."""
BLOCK_VALUES: Final = 1 << 20
"""Distances held at once (8 MiB): bounds memory and stays near the cache."""


class NeighborSearch:
    """The references, laid out for searching.

    Parameters
    ----------
    references
        ``[n, d]``, finite.

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
        # Centred, so that the expansion |a-b|^2 = |a|^2 - 2ab + |b|^2 loses as few digits as possible.
        self._center = self.references.mean(axis=0)
        centred = self.references - self._center
        padded = np.zeros((width, self._groups * GROUP))
        padded[:, :count] = -2.0 * centred.T
        self._factors = padded
        self._squares = np.full(self._groups * GROUP, np.inf)
        self._squares[:count] = np.einsum("nd,nd->n", centred, centred)

    def nearest(self, rows: Floats, k: int, skip: Indices | None = None) -> tuple[Floats, Indices]:
        """Euclidean distances and indices of the `k` nearest references, each ``[r, k]``, nearest first.

        `skip` names for each row one reference that does not count (itself). Equal distances come lowest index first
        among those selected.
        """
        count = len(self.references)
        if not 1 <= k <= count - (skip is not None):
            raise ValueError(f"k={k} neighbours asked of {count} references")
        distances, indices = np.empty((len(rows), k)), np.empty((len(rows), k), dtype=np.intp)
        step = max(1, min(256, BLOCK_VALUES // self._squares.size))
        for first in range(0, len(rows), step):
            part = slice(first, first + step)
            distances[part], indices[part] = self._block(rows[part], k, None if skip is None else skip[part])
        return distances, indices

    def _block(self, rows: Floats, k: int, skip: Indices | None) -> tuple[Floats, Indices]:
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
        # Group g is every _groups-th column, so that the minimum runs along contiguous memory.
        minima = rough.reshape(len(rough), GROUP, self._groups).min(axis=1)
        groups = np.argpartition(minima, k - 1, axis=1)[:, :k]
        columns = (groups[:, None, :] + (np.arange(GROUP) * self._groups)[None, :, None]).reshape(len(rough), -1)
        best = np.argpartition(np.take_along_axis(rough, columns, axis=1), k - 1, axis=1)[:, :k]
        return np.take_along_axis(columns, best, axis=1)


def sample_rows(rows: Floats, limit: int, seed: int) -> Floats:
    """At most `limit` of `rows`, drawn without replacement by `seed`, in their own order."""
    if len(rows) <= limit:
        return rows
    return rows[np.sort(np.random.default_rng(seed).choice(len(rows), limit, replace=False))]
