"""How long nodes, devices and metrics have not been heard and a job has not moved, watched by no node's clock."""

from __future__ import annotations

from collections.abc import Container
from typing import Final

import numpy as np

from trainwarden.detectors.job.clocks import MAX_NODES
from trainwarden.detectors.job.samples import Floats

ABSENT_SAMPLES: Final = 10
"""What has not been measured for so many of its own intervals is absent: a few may be lost on their way."""
ABSENT_S: Final = 30.0
"""But not before: an agent that is started anew has been silent for seconds (the contract gives its commands 10)."""
GONE_S: Final = 600.0  # nor is ten times an interval of more than a minute waited for
SELDOM: Final = 3.0  # but so many intervals, if that is more
FADES: Final = 0.9  # with each sample: an outage is no interval


def interval_after(every_s: Floats, elapsed_s: Floats) -> Floats:
    """Seconds between samples as they come, after one that has come `elapsed_s` after the one before.

    Examples
    --------
    >>> interval_after(np.array([np.nan, 60.0, 60.0]), np.array([1.0, 61.0, 10.0])).tolist()
    [1.0, 61.0, 54.0]
    """
    return np.asarray(np.fmax(elapsed_s, FADES * every_s), dtype=np.float64)


def absent_after(every_s: Floats) -> Floats:
    """After how long without a sample something that is sampled every `every_s` is absent; NaN: nobody knows how often.

    Examples
    --------
    >>> absent_after(np.array([1.0, 10.0, 60.0, 300.0, np.nan])).tolist()
    [30.0, 100.0, 600.0, 900.0, 600.0]
    """
    known_s = np.where(np.isnan(every_s), GONE_S / ABSENT_SAMPLES, every_s)
    return np.asarray(np.fmax(np.clip(ABSENT_SAMPLES * known_s, ABSENT_S, GONE_S), SELDOM * known_s), dtype=np.float64)


class LastSeen:
    """Watched time since each node was last heard, and since anybody last made a step or a collective call.

    Examples
    --------
    >>> silence = LastSeen()
    >>> silence.observe("a"), silence.observe("b"), silence.passed(2.0), silence.observe("b")
    (None, None, None, None)
    >>> silence.of({"a", "b"}), silence.still_s
    ({'a': 2.0, 'b': 0.0}, 2.0)
    """

    def __init__(self) -> None:
        self._nodes: dict[str, float] = {}
        self.still_s = 0.0

    def observe(self, node: str) -> None:
        """A heartbeat of `node` has come."""
        self._nodes[node] = 0.0

    def missed(self, node: str) -> None:
        """Another has found that `node` sends no more heartbeats; the next one says otherwise."""
        if node in self._nodes:
            self._nodes[node] = np.inf

    def moved(self) -> None:
        """A step or a collective call of any rank has come."""
        self.still_s = 0.0

    def passed(self, elapsed_s: float) -> None:
        """`elapsed_s` of watched time have passed."""
        self.still_s += elapsed_s
        for node in self._nodes:
            self._nodes[node] += elapsed_s

    def of(self, nodes: Container[str]) -> dict[str, float]:
        """The silence of those of `nodes` that have ever been heard; of too many others nothing is known any more."""
        wanted = {node: silent_s for node, silent_s in self._nodes.items() if node in nodes}
        if len(self._nodes) > MAX_NODES:
            self._nodes = wanted.copy()
        return wanted
