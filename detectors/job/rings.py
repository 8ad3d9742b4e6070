"""Ring arrays of one job: steps by ranks. One column per rank, no rank objects.

Columns are given out in the order in which ranks are first seen and never move. Absent is NaN here, inside
arrays only; records never carry it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from trainwarden.detectors.job.packed import pack, unpack

Ints = npt.NDArray[np.int64]
COLUMNS: Final = ("duration_s", "compute_s", "wait_s", "pause_s", "micro_batches")
_KIND: Final = "step_ring"
_BY_ROW: Final = ("_steps", "_epochs", "_ends_s", "_quiet", "_repaced")


class StepRing:
    """The newest closed steps of a job, oldest first, as arrays [rows, ranks] without wrapping.

    Rows are appended at the end of arrays twice as long as needed and moved to the front when the end is
    reached, so that a window is a contiguous view and an append costs O(ranks) on average.

    Parameters
    ----------
    rows : int
        How many rows are kept at least.

    Examples
    --------
    >>> ring = StepRing(rows=2)
    >>> ring.resize(1)
    >>> for step in range(5):
    ...     _ = ring.append(step, 0, float(step), False, np.full((5, 1), float(step), dtype=np.float32))
    >>> ring.steps.tolist(), ring.first_seq, ring.values[0, :, 0].tolist()
    ([3, 4], 3, [3.0, 4.0])
    """

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._start = self._end = self.first_seq = 0
        self._values = np.full((len(COLUMNS), 2 * rows, 0), np.nan, dtype=np.float32)
        self._steps = np.zeros(2 * rows, dtype=np.int64)
        self._epochs = np.zeros(2 * rows, dtype=np.int64)
        self._ends_s = np.zeros(2 * rows, dtype=np.float64)
        self._quiet = np.zeros(2 * rows, dtype=np.bool_)
        self._repaced = np.zeros(2 * rows, dtype=np.bool_)

    def resize(self, ranks: int) -> None:
        """Make room for `ranks` columns; new ones are unknown in old rows."""
        have = self._values.shape[2]
        if ranks > have:
            wide = np.full((len(COLUMNS), 2 * self._rows, max(ranks, have + have // 2)), np.nan, dtype=np.float32)
            wide[:, :, :have] = self._values
            self._values = wide

    def append(
        self, step: int, epoch: int, end_s: float, quiet: bool, values: npt.NDArray[np.float32], *,
        repaced: bool = False,
    ) -> int:  # fmt: skip
        """Add one row, `values` [5, ranks]; its sequence number."""
        if self._end == 2 * self._rows:
            keep = slice(self._end - self._rows, self._end)
            for array in (getattr(self, name) for name in _BY_ROW):
                array[: self._rows] = array[keep].copy()
            self._values[:, : self._rows] = self._values[:, keep].copy()
            self._start, self._end = 0, self._rows
        row = self._end
        self._values[:, row] = np.nan
        self._values[:, row, : values.shape[1]] = values
        self._steps[row], self._epochs[row], self._ends_s[row], self._quiet[row] = step, epoch, end_s, quiet
        self._repaced[row] = repaced
        self._end += 1
        if self._end - self._start > self._rows:
            self._start += 1
            self.first_seq += 1
        return self.first_seq + self._end - self._start - 1

    def fill(self, epoch: int, step: int, column: int, cell: Sequence[float]) -> bool:
        """Fill a late `cell` into a row that is already closed; False if it is gone or not empty there."""
        rows = np.flatnonzero((self.steps == step) & (self.epochs == epoch))
        if rows.size == 0:
            return False
        row = self._start + int(rows[-1])
        if not np.isnan(self._values[0, row, column]):
            return False
        self._values[:, row, column] = cell
        return True

    def state(self) -> bytes:
        """For `restore`: the rows that are kept."""
        return pack(
            _KIND, {"first_seq": self.first_seq},
            {"values": self.values} | {name: getattr(self, name)[self._view] for name in _BY_ROW},
        )  # fmt: skip

    def restore(self, state: bytes) -> None:
        """Go on from what `state` gave."""
        plain, arrays = unpack(_KIND, state)
        fresh = StepRing(self._rows)
        fresh.resize(arrays["values"].shape[2])
        fresh.first_seq, fresh._end = int(plain["first_seq"]), arrays["values"].shape[1]
        fresh._values[:, : fresh._end] = arrays["values"]
        for name in _BY_ROW:
            getattr(fresh, name)[: fresh._end] = arrays[name]
        vars(self).update(vars(fresh))

    @property
    def _view(self) -> slice:
        return slice(self._start, self._end)

    @property
    def steps(self) -> npt.NDArray[np.int64]:
        """Step numbers [rows]."""
        return self._steps[self._view]

    @property
    def epochs(self) -> npt.NDArray[np.int64]:
        """How often the job had gone back to an earlier step when the row was made [rows]."""
        return self._epochs[self._view]

    @property
    def ends_s(self) -> npt.NDArray[np.float64]:
        """When the last rank ended the step [rows]."""
        return self._ends_s[self._view]

    @property
    def quiet(self) -> npt.NDArray[np.bool_]:
        """Rows in which slowness is planned: warm-up, after a restart, a new micro-batch plan [rows]."""
        return self._quiet[self._view]

    @property
    def repaced(self) -> npt.NDArray[np.bool_]:
        """Rows after which another pace is planned: a new micro-batch plan, a program started anew [rows]."""
        return self._repaced[self._view]

    @property
    def values(self) -> npt.NDArray[np.float32]:
        """`COLUMNS` by rows by ranks."""
        return self._values[:, self._view]
