"""The past of many series in bounded memory: the newest rows as they were, and now and then the level of each."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
HISTORY: Final = 160  # rows kept for the means before and after: two proposals of 60 rows and what was before them
MARKS: Final = 256  # levels remembered over the whole run, thinned out as it grows
STRIDE: Final = 16  # rows between two of them at first: every level is of 20 rows


class RowHistory:
    """The newest rows of many series, and which rows they are.

    Examples
    --------
    >>> rows = RowHistory()
    >>> rows.resize(2)
    >>> for seq in range(400):
    ...     rows.append(seq, np.array([float(seq), np.nan]))
    >>> seqs, values = rows.of(0)
    >>> len(values), seqs[-1].item(), rows.recent(2)[:, 0].tolist(), len(rows.of(1)[1])
    (160, 399, [398.0, 399.0], 0)
    """

    def __init__(self) -> None:
        self.values: Floats = np.full((2 * HISTORY, 0), np.nan)
        self.seqs = np.full(2 * HISTORY, -1, dtype=np.int64)
        self.end = 0

    def resize(self, more: int) -> None:
        """Add `more` series."""
        self.values = np.hstack([self.values, np.full((2 * HISTORY, more), np.nan)])

    def append(self, seq: int, values: Floats) -> None:
        """Add one row; full arrays are moved to the front, which costs little on average."""
        if self.end == 2 * HISTORY:
            self.values[:HISTORY] = self.values[HISTORY:].copy()
            self.seqs[:HISTORY] = self.seqs[HISTORY:].copy()
            self.end = HISTORY
        self.values[self.end], self.seqs[self.end] = values, seq
        self.end += 1

    def recent(self, rows: int) -> Floats:
        """The newest `rows` rows, or all there are [rows, series]."""
        return self.values[max(0, self.end - rows) : self.end]

    def of(self, series: int) -> tuple[Ints, Floats]:
        """Sequence numbers and known values of one series, oldest first."""
        column = self.values[: self.end, series]
        known = np.isfinite(column)
        known[: max(0, self.end - HISTORY)] = False
        return self.seqs[: self.end][known], column[known]

    def since(self, series: int, seq: int) -> int:
        """How many values of one series are known from row `seq` on."""
        return int(np.count_nonzero(np.isfinite(self.values[: self.end, series]) & (self.seqs[: self.end] >= seq)))

    def replace(self, series: Ints, rows: Floats) -> None:
        """Give `series` another past [rows, series]; what was before it is forgotten."""
        self.values[: self.end, series] = np.nan
        self.values[self.end - len(rows) : self.end, series] = rows


class LevelMarks:
    """The level of every series now and then over the whole run, in bounded memory.

    Examples
    --------
    >>> marks = LevelMarks(stride=1)
    >>> marks.resize(1)
    >>> for seq in range(10):
    ...     marks.due() and marks.add(seq, np.array([seq / 10]))
    >>> marks.at(np.array([5]), np.array([0]), np.array([0.0])).tolist()
    [0.5]
    """

    def __init__(self, stride: int = STRIDE) -> None:
        self._marks: Floats = np.full((MARKS, 0), np.nan)
        self._seqs = np.zeros(MARKS, dtype=np.int64)
        self._count, self._stride, self._fed = 0, stride, 0

    def resize(self, more: int) -> None:
        """Add `more` series."""
        self._marks = np.hstack([self._marks, np.full((MARKS, more), np.nan)])

    def forget(self, which: npt.NDArray[np.bool_]) -> None:
        """Begin afresh with the series `which` [series]."""
        self._marks[:, which] = np.nan

    def due(self) -> bool:
        """Count one step; True if the level should be added now."""
        self._fed += 1
        return self._fed % self._stride == 0

    def add(self, seq: int, level: Floats) -> None:
        """Remember `level` [series] at `seq`; when there is no room left, every other one goes."""
        if self._count == MARKS:
            self._marks[: MARKS // 2] = self._marks[1::2].copy()
            self._seqs[: MARKS // 2] = self._seqs[1::2].copy()
            self._count, self._stride = MARKS // 2, 2 * self._stride
        self._marks[self._count], self._seqs[self._count] = level, seq
        self._count += 1

    def move(self, series: Ints, by: Floats) -> None:
        """Shift all levels of `series` [n] by `by` [n]."""
        self._marks[:, series] += by

    def at(self, seqs: Ints, series: npt.NDArray[np.intp], unknown: Floats) -> Floats:
        """The newest level of each of `series` [n] at or before `seqs` [n], else `unknown` [n]."""
        place = np.searchsorted(self._seqs[: self._count], seqs, side="right") - 1
        level = self._marks[np.maximum(place, 0), series]
        return np.where((place >= 0) & np.isfinite(level), level, unknown)

    def of(self, series: int) -> tuple[Ints, Floats]:
        """Sequence numbers and levels of one series, oldest first."""
        known = np.isfinite(self._marks[: self._count, series])
        return self._seqs[: self._count][known], self._marks[: self._count, series][known]
