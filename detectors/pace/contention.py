"""Does the host explain that a job is slow? How long its ranks could not run because others had the CPU.

By the rule of `trainwarden.detectors.peers.cpu_wait`.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Final

import numpy as np
import numpy.typing as npt

from trainwarden.detectors.job.window import Window
from trainwarden.detectors.peers.cpu_wait import LEAST_TICKS, LEVEL_S, QUEUED, STOLEN, most_explaining, said
from trainwarden.records import MetricsRecord, Suspect

LOST: Final = (QUEUED, STOLEN)
"""Shares of time in which a rank wanted to run and could not: its queue on this system, and the hypervisor's."""
KEPT: Final = 256  # ticks of each node


@dataclass(frozen=True, slots=True)
class Contention:
    """A host that explains slowness: the share of time its ranks could not run, before and now."""

    node: str
    before: float
    now: float

    def reason(self) -> str:
        """What follows "steps take so long"."""
        return f"the host {self.node or 'itself'} explains it: its ranks {said(self.before, self.now)}"

    @property
    def suspects(self) -> tuple[Suspect, ...]:
        """The node, where its name is known."""
        named = Suspect(score=1.0, reason=f"its ranks {said(self.before, self.now)}", node=self.node)
        return (named,) if self.node else ()


class HostContention:
    """What was lost on each node, and what had been lost before the job became slow.

    Examples
    --------
    >>> host = HostContention()
    >>> for second in range(40):
    ...     host.observe("n", LOST[0], float(second), 0.1 if second < 20 else 0.4)
    >>> host.begin(20.0)
    >>> host.explains(20.0, 1.0, 1.5)
    Contention(node='n', before=0.1, now=0.4)
    >>> busy = HostContention()
    >>> for second in range(40):
    ...     busy.observe("n", LOST[0], float(second), 0.6)
    >>> busy.begin(20.0)
    >>> busy.explains(20.0, 1.0, 1.5) is None
    True
    """

    def __init__(self) -> None:
        self._nodes: dict[str, int] = {}
        self._times_s = np.zeros((0, len(LOST), KEPT))  # when ticks ended [nodes, names, ticks]; NaN: none yet
        self._shares = np.zeros((0, len(LOST), KEPT))
        self._counts = np.zeros((0, len(LOST)), dtype=np.int64)  # ticks so far
        self._before = np.zeros(0)  # what was usual of each node before the job became slow; NaN: not known

    def update(self, window: Window) -> None:
        """Observe what is new."""
        for record in window.metrics:
            for name in LOST:
                if name in record.names and (share := _middle(record, name)) is not None:
                    self.observe(record.node, name, record.time_s, share)

    def observe(self, node: str, name: str, time_s: float, share: float) -> None:
        """Note what was lost on `node` in the tick that ended at `time_s`."""
        row = self._nodes.setdefault(node, len(self._nodes))
        if row == len(self._counts):
            self._widen(max(row + 1, row + row // 2))
        column = LOST.index(name)
        place = self._counts[row, column] % KEPT
        self._times_s[row, column, place], self._shares[row, column, place] = time_s, share
        self._counts[row, column] += 1

    def begin(self, onset_s: float) -> None:
        """The job has been slow since `onset_s`: what was lost until then is what is usual."""
        self._before = self._levels(np.full(len(self._counts), onset_s - LEVEL_S), onset_s)

    def unknown(self, onset_s: float) -> bool:
        """True if too little has been measured since `onset_s` where it was measured before."""
        levels = self._levels(np.full(self._before.size, onset_s), np.inf)
        return bool((~np.isnan(self._before) & np.isnan(levels)).any())

    def explains(self, onset_s: float, before_s: float, now_s: float) -> Contention | None:
        """The host that explains what steps have grown by, from `before_s` to `now_s`."""
        if not self._before.size:
            return None
        last_s = np.fmax.reduce(self._times_s[: self._before.size], axis=(1, 2))
        levels = self._levels(np.fmax(onset_s, last_s - LEVEL_S), np.inf)
        worst = most_explaining(self._before, levels, before_s, now_s)
        if worst is None:
            return None
        return Contention(list(self._nodes)[worst], float(self._before[worst]), float(levels[worst]))

    def _widen(self, room: int) -> None:
        more = room - len(self._counts)
        self._times_s, self._shares = (
            np.pad(one, ((0, more), (0, 0), (0, 0)), constant_values=np.nan) for one in (self._times_s, self._shares)
        )
        self._counts = np.pad(self._counts, ((0, more), (0, 0)))

    def _levels(self, after_s: npt.NDArray[np.float64], until_s: float) -> npt.NDArray[np.float64]:
        """What was lost on each node in ticks that ended after `after_s` ``[nodes]``; NaN: that is hardly known."""
        size = after_s.size
        times_s = self._times_s[:size]
        with np.errstate(invalid="ignore"):
            there = (times_s > after_s[:, None, None]) & (times_s <= until_s)
        sorted_ = np.sort(np.where(there, self._shares[:size], np.nan), axis=2)  # what is not there comes last
        counts = there.sum(axis=2)
        low, high = np.maximum(counts - 1, 0) // 2, counts // 2
        medians = (_at(sorted_, low) + _at(sorted_, np.minimum(high, KEPT - 1))) / 2.0
        known = counts >= LEAST_TICKS
        return np.where(known.any(axis=1), np.where(known, medians, 0.0).sum(axis=1), np.nan)


def _at(array: npt.NDArray[np.float64], places: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    return np.take_along_axis(array, places[:, :, None], axis=2)[:, :, 0]


def _middle(record: MetricsRecord, name: str) -> float | None:
    """The median over a record's devices: one rank alone that cannot run is a slow rank."""
    known = [value for value in record.values[record.names.index(name)] if value is not None]
    return float(median(known)) if known else None
