"""How long a byte took on every link of late: against its likes, against its own past, and against its noise."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from trainwarden.detectors.calls.counts import Counts
from trainwarden.detectors.calls.links import Links
from trainwarden.detectors.job.common_mode import noise, quiet_median
from trainwarden.detectors.peers.roles import Codes, median_of_peers

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
ROWS: Final = 64  # sampled steps remembered
SPANS: Final = (3, 4, 6, 8, 12, 16, 24, 32, 48)
LEARN: Final = 8  # steps that a link's own past needs
HELD_BACK: Final = 12  # newest steps that are not yet part of it, where there are so many
RECENT: Final = 8  # newest steps that tell whether it learns at all
EVERY: Final = 4  # steps between two looks at the past
KNOWN: Final = 0.75
OFTEN: Final = 0.7  # of a span's steps must have been slower than the link's past
LEAST_STEPS: Final = 3  # in which it was so by itself: one long transfer is no slow link
LIKES: Final = 2  # other links that one needs to be compared with
MAX_LINKS: Final = 131_072  # in all; more come and go too fast to be followed
_NONE: Final = (1 << 17) - 1
SCARCE: Final = 24  # steps below which the noise is not left to the median: it needs more
_MEDIAN: Final = 1.57  # variance of a median of so many, against that of their mean
_ARRAYS: Final = ("keys", "values", "beside", "past", "learnt", "spread", "held")


class LinkMemory:
    """Log seconds per byte of every link (a communicator or a pair, a function, a size of call), by sampled steps.

    Attributes
    ----------
    keys : int [links]
        Sorted.
    values, beside : float [ROWS, links]
        As measured, and above the median of the other links of its kind; newest last, NaN = unknown.
    past, learnt, spread : float [links]
        Its own usual value, of how many steps that is, and its noise from step to step.
    held : bool [links]
        Whether it is slow now, so that its past learns nothing.
    """

    def __init__(self) -> None:
        self.count = 0
        self.keys: Ints = np.zeros(0, dtype=np.int64)
        self.values: npt.NDArray[np.float32] = np.full((ROWS, 0), np.nan, dtype=np.float32)
        self.beside: npt.NDArray[np.float32] = np.full((ROWS, 0), np.nan, dtype=np.float32)
        self.past: Floats = np.zeros(0)
        self.learnt: Floats = np.zeros(0)
        self.spread: Floats = np.zeros(0)
        self.held: Flags = np.zeros(0, dtype=np.bool_)

    @property
    def comm(self) -> Ints:
        """The communicator of each link."""
        return self.keys >> 44

    @property
    def pairs(self) -> tuple[Ints, Ints]:
        """Columns of each link's two ranks, -1 of a whole communicator."""
        source, target = (self.keys >> 17) & _NONE, self.keys & _NONE
        return np.where(source == _NONE, -1, source), np.where(target == _NONE, -1, target)

    @property
    def function(self) -> Ints:
        """Function of each link."""
        return (self.keys >> 40) & 15

    @property
    def bucket(self) -> Ints:
        """log2 of the bytes of each link's calls."""
        return (self.keys >> 34) & 63

    def push(self, links: Links, counts: Counts, nodes: Ints) -> None:
        """Add one sampled step; `nodes` is a number for the node of each column."""
        keys = _keys(links)
        self._enter(keys)
        at = np.searchsorted(self.keys, keys)
        there = at < self.keys.size
        there[there] = self.keys[at[there]] == keys[there]
        for array in (self.values, self.beside):
            array[:-1] = array[1:].copy()
            array[-1] = np.nan
        self.values[-1, at[there]] = links.slowness[there]
        _, code = np.unique(self.kinds(counts, nodes), return_inverse=True)
        code = code.reshape(-1).astype(np.intp)
        newest = self.values[-1].astype(np.float64)
        if newest.size:
            others = np.bincount(code, weights=np.isfinite(newest))[code] - np.isfinite(newest)
            middle = median_of_peers(newest, code)[0]
            self.beside[-1] = np.where(others >= LIKES, newest - middle, np.nan)
        self.count += 1
        if self.count % EVERY == 0 or self.count <= 2 * LEARN:
            self._learn(code)

    def kinds(self, counts: Counts, nodes: Ints) -> Ints:
        """What a link can be compared with: the same function and size of call and group, over as many nodes."""
        source, target = self.pairs
        paired = source >= 0
        comm = np.minimum(self.comm, max(0, counts.sizes.size - 1))
        size = counts.sizes[comm] if counts.sizes.size else np.zeros(comm.size, dtype=np.int64)
        span = counts.nodes[comm] if counts.sizes.size else np.zeros(comm.size, dtype=np.int64)
        if nodes.size:
            apart = nodes[np.minimum(source, nodes.size - 1)] != nodes[np.minimum(target, nodes.size - 1)]
            span = np.where(paired, 1 + apart, span)
        size = np.where(paired, 2, size)
        return ((self.function * 64 + self.bucket) * 65_537 + size) * 65_537 + span

    def slower(self, lane: str, least: float, sure: float) -> tuple[Ints, Floats]:
        """Over how many newest steps each link is slower for certain, 0 if it is not, and by how much [links].

        Parameters
        ----------
        lane : str
            ``past``: than its own past; ``likes``: than the other links of its kind.
        least : float
            Log ratio that the mean must reach.
        sure : float
            Standard errors that it must be.
        """
        rows = min(self.count, SPANS[-1])
        recent = (self.values if lane == "past" else self.beside)[ROWS - rows :][::-1].astype(np.float64)
        if lane == "past":
            recent = recent - self.past
        lasting = _MEDIAN / np.maximum(self.learnt, 1.0) if lane == "past" else 0.0  # how well the past is known
        each = 1.0 if lane == "past" else 1.0 + _MEDIAN / LIKES  # noise of the links that it is compared with
        known = np.isfinite(recent)
        total, number = np.cumsum(np.where(known, recent, 0.0), axis=0), np.cumsum(known, axis=0)
        with np.errstate(invalid="ignore"):
            often = np.cumsum(known & (recent > 0.0), axis=0)
            times = np.cumsum(known & (recent >= least), axis=0)
        out, height = np.zeros(self.keys.size, dtype=np.int64), np.zeros(self.keys.size)
        for span in (one for one in SPANS if one <= rows):
            enough = number[span - 1] >= max(3.0, KNOWN * span)
            mean = np.where(enough, total[span - 1] / np.maximum(number[span - 1], 1), -np.inf)
            error = self.spread * np.sqrt(each / np.maximum(number[span - 1], 1) + lasting)
            slow = (mean >= np.maximum(least, sure * error)) & (often[span - 1] >= OFTEN * number[span - 1])
            slow &= times[span - 1] >= LEAST_STEPS
            first = (out == 0) & slow
            out, height = np.where(first, span, out), np.where(first, mean, height)
        return out, height

    def risen(self, steps: int = RECENT) -> Floats:
        """By how much each link is slower than its past over the newest `steps` [links]."""
        return quiet_median(self.values[-steps:].astype(np.float64)) - self.past

    def forget(self) -> None:
        """Communicators are numbered anew."""
        self.__init__()  # type: ignore[misc]

    # -- internals -------------------------------------------------------------------------------------------

    def _enter(self, keys: Ints) -> None:
        new = np.setdiff1d(keys, self.keys)
        if not new.size:
            return
        if self.keys.size + new.size > MAX_LINKS:
            self._take(np.flatnonzero(np.isfinite(self.values).any(axis=0)))
            new = new[: MAX_LINKS - self.keys.size]
        more = np.full((ROWS, new.size), np.nan, dtype=np.float32)
        keys, known = np.concatenate((self.keys, new)), self.keys.size
        self.values, self.beside = np.hstack((self.values, more)), np.hstack((self.beside, more))
        self.past = np.append(self.past, np.full(new.size, np.nan))
        self.learnt = np.append(self.learnt, np.zeros(new.size))
        self.spread = np.append(self.spread, np.full(new.size, np.nan))
        self.held = np.append(self.held, np.zeros(keys.size - known, dtype=np.bool_))
        self.keys = keys
        self._take(np.argsort(keys, kind="stable"))

    def _take(self, places: Ints) -> None:
        for name in _ARRAYS:
            setattr(self, name, getattr(self, name)[..., places])

    def _learn(self, code: Codes) -> None:
        """Each link's own past and noise, but of those that are slow now; `code` is the kind of each."""
        held = min(HELD_BACK, max(0, self.count - LEARN))
        old = self.values[max(0, ROWS - self.count) : ROWS - held].astype(np.float64)
        number = np.isfinite(old).sum(axis=0)
        fresh = (number >= LEARN) & ~(self.held & np.isfinite(self.past))
        self.past, self.learnt = np.where(fresh, quiet_median(old), self.past), np.where(fresh, number, self.learnt)
        own = np.where(number >= LEARN, _noise(old, number), np.nan)
        usual = median_of_peers(own, code)[1][code]
        spread = np.fmax(own, usual)
        self.spread = np.where(np.isnan(spread) | ~fresh & np.isfinite(self.spread), self.spread, spread)


def _noise(old: Floats, number: Ints) -> Floats:
    """Robust standard deviation of each link; on the safe side where few steps are known."""
    spread = noise(old)
    squares = np.where(np.isfinite(old), (old - quiet_median(old)) ** 2, 0.0).sum(axis=0)
    plain = np.sqrt(squares / np.maximum(number - 1, 1))
    return np.where(number < SCARCE, np.maximum(spread, plain), spread) * (1.0 + 2.0 / np.maximum(number, 1))


def _keys(links: Links) -> Ints:
    """Communicator, function, size of call and pair in one number."""
    pair = (np.where(links.source < 0, _NONE, links.source) << 17) | np.where(links.target < 0, _NONE, links.target)
    return np.asarray((((links.comm << 4 | links.function) << 6 | links.bucket) << 34) | pair)
