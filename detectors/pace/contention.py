"""Does the host explain that a job is slow? How long its ranks could not run because others had the CPU.

A step of length T whose ranks wait the share r of the time for a CPU loses r T. If a job's steps have grown by T' - T
and the time that is lost by r' T' - r T, the host explains the quotient of the two.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from detectors.job.window import Window
from trainwarden.records import MetricsRecord

LOST: Final = ("rank_run_queue_wait_ratio", "host_cpu_steal_ratio")
"""Shares of time in which a rank wanted to run and could not: its queue on this system, and the hypervisor's."""
KEPT: Final = 256  # ticks of each node
LEVEL_S: Final = 60.0  # over which a level is taken
LEAST_TICKS: Final = 3  # a share of one second says little
EXPLAINED: Final = 0.4  # of the time that steps have grown by; 0.43 to 1.1 on a machine whose pace wandered
GROWN: Final = 0.01  # the share itself must have: a machine that is as busy as ever explains nothing

Tick = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Contention:
    """A host that explains slowness: the share of time its ranks could not run, before and now."""

    node: str
    before: float
    now: float

    def reason(self) -> str:
        """What follows "steps take so long"."""
        shares = f"{self.now:.0%} of the time, {self.before:.0%} before"
        return f"the host {self.node or 'itself'} explains it: its ranks waited for a CPU {shares}"


class HostContention:
    """What was lost on each node, and what had been lost before the job became slow.

    Examples
    --------
    >>> host = HostContention()
    >>> for second in range(40):
    ...     host.take("n", LOST[0], float(second), 0.1 if second < 20 else 0.4)
    >>> host.begin(20.0)
    >>> host.explains(20.0, 1.0, 1.5)
    Contention(node='n', before=0.1, now=0.4)
    >>> busy = HostContention()
    >>> for second in range(40):
    ...     busy.take("n", LOST[0], float(second), 0.6)
    >>> busy.begin(20.0)
    >>> busy.explains(20.0, 1.0, 1.5) is None
    True
    """

    def __init__(self) -> None:
        self._ticks: dict[str, dict[str, deque[Tick]]] = {}
        self._before: dict[str, float] = {}

    def update(self, window: Window) -> None:
        """Take in what is new."""
        for record in window.metrics:
            for name in LOST:
                if name in record.names and (share := _middle(record, name)) is not None:
                    self.take(record.node, name, record.time_s, share)

    def take(self, node: str, name: str, time_s: float, share: float) -> None:
        """Note what was lost on `node` in the tick that ended at `time_s`."""
        self._ticks.setdefault(node, {}).setdefault(name, deque(maxlen=KEPT)).append((time_s, share))

    def begin(self, onset_s: float) -> None:
        """The job has been slow since `onset_s`: what was lost until then is what is usual."""
        levels = {node: self._level(node, onset_s - LEVEL_S, onset_s) for node in self._ticks}
        self._before = {node: level for node, level in levels.items() if level is not None}

    def unknown(self, onset_s: float) -> bool:
        """True if too little has been measured since `onset_s` where it was measured before."""
        return any(self._level(node, onset_s, np.inf) is None for node in self._before)

    def explains(self, onset_s: float, before_s: float, now_s: float) -> Contention | None:
        """The host that explains what steps have grown by, from `before_s` to `now_s`."""
        found: list[tuple[float, Contention]] = []
        for node, before in self._before.items():
            last_s = max(ticks[-1][0] for ticks in self._ticks[node].values())
            level = self._level(node, max(onset_s, last_s - LEVEL_S), np.inf)
            if level is not None and level >= before + GROWN:
                lost_s = level * now_s - before * before_s
                found.append((lost_s, Contention(node, before, level)))
        lost_s, worst = max(found, key=lambda one: one[0], default=(0.0, None))
        return worst if lost_s >= EXPLAINED * (now_s - before_s) else None

    def plain(self) -> dict[str, Any]:
        """The whole state."""
        ticks = {node: {name: list(kept) for name, kept in named.items()} for node, named in self._ticks.items()}
        return {"ticks": ticks, "before": self._before}

    def load(self, plain: dict[str, Any]) -> None:
        """Go on from `plain`."""
        self._before = dict(plain["before"])
        self._ticks = {
            node: {name: deque((tuple(tick) for tick in kept), maxlen=KEPT) for name, kept in named.items()}
            for node, named in plain["ticks"].items()
        }

    def _level(self, node: str, after_s: float, until_s: float) -> float | None:
        """What was lost on `node` in ticks that ended after `after_s`; None if that is hardly known."""
        levels = []
        for kept in self._ticks[node].values():
            shares = [share for time_s, share in kept if after_s < time_s <= until_s]
            if len(shares) >= LEAST_TICKS:
                levels.append(float(np.median(shares)))
        return sum(levels) if levels else None


def _middle(record: MetricsRecord, name: str) -> float | None:
    """The median over a record's devices: one rank alone that cannot run is a slow rank."""
    known = [value for value in record.values[record.names.index(name)] if value is not None]
    return float(np.median(known)) if known else None
