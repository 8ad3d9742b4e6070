"""How long ranks computed and waited in the last half hour: ranks x time, in arrays."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from itertools import islice
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from trainwarden.records import IterationRecord

BIN_S: Final = 5.0
BINS: Final = 360  # half an hour; 16,384 ranks take 94 MB
MAX_RANKS: Final = 16_384
SHORT_BIN_S: Final = 0.125  # of a whole run, to begin with
OLDEST_S: Final = 30 * 86_400.0  # before it arrived: what is older has no clock
LATENESS: Final = 64  # records of a node by which its clock is held against the bus's
LONGEST_S: Final = 1e6  # what takes longer is no time of a step

Array = npt.NDArray[np.float64]


class Pace:
    """Mean seconds of an iteration by rank and bin of time, on the clock of the bus.

    A node's own stamps say when within a batch a step ended; how far they are from the clock of the bus is the least
    lateness of its newest records. So nodes need not agree on the time to stand side by side.

    Parameters
    ----------
    whole : bool
        Keep a whole run rather than the last half hour: bins double whenever it does not fit into them.

    Examples
    --------
    >>> pace = Pace()
    >>> pace.apply(IterationRecord(job="j", node="n", rank=1, incarnation="a", steps=(7,), end_s=(60.0,),
    ...     duration_s=(0.5,), compute_s=(0.3,), wait_s=(0.2,)), arrived_s=100.0)
    >>> pace.apply_pending()
    >>> pace.ranks, pace.mean("duration", last=1).tolist()
    ([1], [[0.5]])
    """

    def __init__(self, *, whole: bool = False) -> None:
        self._whole = whole
        self._rows: dict[int, int] = {}
        self._sums = np.zeros((3, 0, BINS), dtype=np.float32)
        self._counts = np.zeros((3, 0, BINS), dtype=np.float32)
        self.bin_s = SHORT_BIN_S if whole else BIN_S
        self._oldest_s: float | None = None
        self._newest: int | None = None  # number of the newest bin, counted from the epoch
        self._late_s: dict[str, deque[float]] = {}
        self._new: list[tuple[int, int, float, float]] = []
        self._settled = 0  # ranks that `apply_pending` has seen
        self.highest_step: int | None = None
        self._bases: dict[int, tuple[str, str]] = {}

    @property
    def ranks(self) -> list[int]:
        """Ranks, in the order of the rows."""
        return list(islice(self._rows, self._settled))

    @property
    def until_s(self) -> float | None:
        """End of the newest bin."""
        return None if self._newest is None else (self._newest + 1) * self.bin_s

    @property
    def basis(self) -> tuple[str, str] | None:
        """Where the newest times of most ranks come from, and what they compute on behind the host's back."""
        return Counter(self._bases.values()).most_common(1)[0][0] if self._bases else None

    def apply(self, record: IterationRecord, arrived_s: float) -> None:
        """Note the steps of one record that came on the bus at `arrived_s`; `apply_pending` adds them up.

        Columns that are shorter than others, and times that no step can have, are passed over.
        """
        size = min(len(record.steps), len(record.end_s), len(record.duration_s))
        if not size:
            return
        row = self._rows.get(record.rank)
        if row is None:
            if len(self._rows) == MAX_RANKS:
                return
            row = self._rows[record.rank] = len(self._rows)
        self._bases[row] = record.basis, record.accelerator
        if record.node not in self._late_s and len(self._late_s) == MAX_RANKS:  # no more nodes than ranks
            del self._late_s[next(iter(self._late_s))]
        late_s = self._late_s.setdefault(record.node, deque(maxlen=LATENESS))
        late_s.append(arrived_s - record.end_s[size - 1])
        ahead_s = min(late_s)
        self.highest_step = max(self.highest_step or 0, *record.steps)
        oldest_s = arrived_s - (OLDEST_S if self._whole else BINS * BIN_S)
        for index in range(size):
            ended_s = min(record.end_s[index] + ahead_s, arrived_s)
            if ended_s <= oldest_s:
                continue
            pause_s = _at(record.pause_s, index) or 0.0
            self._note(0, row, ended_s, record.duration_s[index] - pause_s)
            self._note(1, row, ended_s, _at(record.compute_s, index))
            self._note(2, row, ended_s, _at(record.wait_s, index))

    def forget_node(self, name: str) -> None:
        """Let go of how far the clock of the node `name` is from the bus's."""
        self._late_s.pop(name, None)

    def _note(self, quantity: int, row: int, ended_s: float, seconds: float | None) -> None:
        if seconds is not None and 0.0 <= seconds <= LONGEST_S:
            self._new.append((quantity, row, ended_s, seconds))

    def apply_pending(self) -> None:
        """Add up what was taken since the last call."""
        self._settled = len(self._rows)
        self._grow(self._settled)
        if not self._new:
            return
        quantity, row, at_s, seconds = (np.array(column) for column in zip(*self._new, strict=True))
        self._new.clear()
        if self._whole:
            self._make_room(float(at_s.min()), float(at_s.max()))
        bins = (at_s // self.bin_s).astype(np.int64)
        self._advance(int(bins.max()))
        assert self._newest is not None
        kept = bins > self._newest - BINS
        place = (quantity[kept], row[kept], bins[kept] % BINS)
        np.add.at(self._sums, place, seconds[kept])
        np.add.at(self._counts, place, 1.0)

    def mean(self, quantity: str, last: int = BINS) -> Array:
        """Mean seconds of ``duration`` (without pauses), ``compute`` or ``wait`` in the `last` bins.

        Returns
        -------
        array of float64, shape (ranks, last)
            Oldest bin first; NaN where a rank finished no step or did not say.
        """
        return mean_of(*self.sums(quantity, last))

    def sums(self, quantity: str, last: int = BINS) -> tuple[Array, Array]:
        """Seconds of `quantity` in the `last` bins and how many steps they are of; copies, oldest bin first."""
        if self._newest is None:
            return np.zeros((self._settled, last)), np.zeros((self._settled, last))
        index = ("duration", "compute", "wait").index(quantity)
        columns = np.arange(self._newest - last + 1, self._newest + 1) % BINS
        size = self._settled
        sums, counts = self._sums[index, :size][:, columns], self._counts[index, :size][:, columns]
        return sums.astype(np.float64), counts.astype(np.float64)

    def recent(self, quantity: str, bins: int = 6) -> Array:
        """Mean over the last `bins` by rank; NaN where nothing is known."""
        means = self.mean(quantity, bins)
        known = ~np.isnan(means)
        with np.errstate(invalid="ignore", divide="ignore"):
            out: Array = np.where(known.any(axis=1), np.nansum(means, axis=1) / known.sum(axis=1), np.nan)
        return out

    def iteration_s(self, last: int = BINS) -> Array:
        """Median over ranks by bin; NaN where no rank finished a step."""
        means = self.mean("duration", last)
        out = np.full(last, np.nan)
        there = ~np.isnan(means).all(axis=0)
        if there.any():
            out[there] = np.nanmedian(means[:, there], axis=0)
        return out

    def _make_room(self, from_s: float, until_s: float) -> None:
        """Double the bins until a run that has these times too fits into them."""
        newest_s = until_s if self.until_s is None else max(until_s, self.until_s - self.bin_s)
        self._oldest_s = from_s if self._oldest_s is None else min(from_s, self._oldest_s)
        while newest_s // self.bin_s - self._oldest_s // self.bin_s >= BINS:
            if self._newest is not None:
                numbers = np.arange(self._newest - BINS + 1, self._newest + 1)
                for name in ("_sums", "_counts"):
                    old = getattr(self, name)
                    new = np.zeros_like(old)
                    for half in (0, 1):  # of a pair; no two of one half share a place
                        mine = numbers[numbers % 2 == half]
                        new[:, :, mine // 2 % BINS] += old[:, :, mine % BINS]
                    setattr(self, name, new)
                self._newest //= 2
            self.bin_s *= 2.0

    def _grow(self, rows: int) -> None:
        room = self._sums.shape[1]
        if rows > room:
            more: Any = ((0, 0), (0, max(rows, min(2 * room, MAX_RANKS)) - room), (0, 0))
            self._sums, self._counts = np.pad(self._sums, more), np.pad(self._counts, more)

    def _advance(self, newest: int) -> None:
        """Begin the bins up to `newest`."""
        if self._newest is None:
            self._newest = newest
        elif newest > self._newest:
            begun = np.arange(max(self._newest + 1, newest - BINS + 1), newest + 1) % BINS
            self._sums[:, :, begun] = self._counts[:, :, begun] = 0.0
            self._newest = newest


def _at(column: Sequence[float | None], index: int) -> float | None:
    return column[index] if index < len(column) else None


def mean_of(sums: Array, counts: Array) -> Array:
    """`sums` by `counts`; NaN where nothing was counted."""
    with np.errstate(invalid="ignore", divide="ignore"):
        means: Array = np.where(counts > 0.0, sums / counts, np.nan)
    return means
