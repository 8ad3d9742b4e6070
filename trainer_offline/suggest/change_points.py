"""Where the level of a whole series changes, found afterwards: PELT with a penalty by rule.

Killick, Fearnhead and Eckley (2012, JASA 107:1590), ruptures' implementation in C (`KernelCPD`, linear kernel, which is
the cost of a mean). The online detector (`trainwarden.detectors.pace.shifts`) decides within a few steps; here the rest
of the series is known, so that a change needs no alarm but a level that lasted.
"""

from __future__ import annotations

import itertools
from typing import Annotated, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import ruptures
from scipy import ndimage

from trainwarden.settings import Config

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

SIGMA_OF_MAD: Final = 1.4826  # of a normal distribution (Rousseeuw and Croux 1993)
NEIGHBOURS: Final = 11  # of the running median beside which single samples are clipped
TOO_LARGE: Final = 1e307  # for the mean of two, which a median may be
ROOT_2: Final = float(np.sqrt(2.0))  # a difference of two has so much more noise than one
CLIP: Final = 3.0  # standard deviations
LEAST_NOISE: Final = 0.005  # of a level, relative: a clock's and a scheduler's jitter; else of the range
COMPARED: Final = 400  # samples on each side of a change, at most, from which it is told how sure it is


class ChangeConfig(Config, frozen=True, kw_only=True):
    """When a change is worth a person's time.

    Attributes
    ----------
    least_samples : int
        A level that lasted for less is none.
    least_ratio : float
        Levels of durations that are less apart are one.
    least_noises : float
        Levels that are less apart than so many standard deviations of the noise are one.
    least_sure : float
        See `Change.sure`.
    penalty : float
        Of a further change, in squared noises times the logarithm of the samples. The Bayesian criterion takes 2, for
        the place and the level; more is for noise that is not normal.
    max_points : int
        A longer series is thinned to medians of as many blocks: the search is quadratic where nothing ever changes
        (0.15 s for 4,000 points).
    """

    least_samples: Annotated[int, msgspec.Meta(ge=3)] = 10
    least_ratio: Annotated[float, msgspec.Meta(gt=1.0)] = 1.1
    least_noises: Annotated[float, msgspec.Meta(gt=0.0)] = 2.0
    least_sure: Annotated[float, msgspec.Meta(ge=0.5, le=1.0)] = 0.9
    penalty: Annotated[float, msgspec.Meta(gt=0.0)] = 6.0
    max_points: Annotated[int, msgspec.Meta(ge=100, le=20_000)] = 4_000


class Change(NamedTuple):
    """A change of level.

    Attributes
    ----------
    at, end : int
        First sample of the new level, and the first one after it; places in the series as it was given.
    before, after : float
        Medians of the two levels, in the unit of the series.
    sure : float
        Of a sample after and one before the change (400 of each side at most), the probability that they lie as the
        levels do: 0.5 is chance, 1 no overlap (Mann and Whitney 1947, U as a share).
    """

    at: int
    end: int
    before: float
    after: float
    sure: float


def change_points(values: Floats, config: ChangeConfig, *, relative: bool = False) -> list[Change]:
    """Changes of level of ``values [n]``, in order; what is not finite or above 1e307 counts as not there.

    Parameters
    ----------
    values : float array [n]
        Samples in order of time, in any unit.
    relative : bool
        They are durations above 0: levels are compared by their ratio.

    Examples
    --------
    >>> noise = np.random.default_rng(0).normal(0.0, 0.01, 200)
    >>> found = change_points(np.repeat([1.0, 1.5], 100) + noise, ChangeConfig(), relative=True)
    >>> [(change.at, change.end, round(change.before, 1), round(change.after, 1)) for change in found]
    [(100, 200, 1.0, 1.5)]
    """
    there = np.flatnonzero((np.abs(values) < TOO_LARGE) & (values > 0.0 if relative else True))
    known = values[there]
    if known.size < 2 * config.least_samples or known.min() == known.max():
        return []
    work = np.log(known) if relative else _scaled(known)
    block = -(-known.size // config.max_points)
    points = _medians(work, block)
    least = LEAST_NOISE if relative else LEAST_NOISE * max(float(np.ptp(np.percentile(points, (5, 95)))), 1e-9)
    sample_noise = max(_spread(np.diff(points)) / ROOT_2, least)
    points = _clipped(points, sample_noise)
    noise = max(sample_noise, _slow_noise(points, config.least_samples))
    search = ruptures.KernelCPD(kernel="linear", min_size=config.least_samples)
    # The search works with n x n sums of float64; a series in units of its own noise cannot overflow them.
    search.fit((points / noise)[:, None])
    edges = np.array(search.predict(pen=config.penalty * np.log(points.size))[:-1], np.int64)
    apart = np.log(config.least_ratio) if relative else 0.0
    edges = _refined(work, edges * block, block) if block > 1 else edges
    edges = _kept(work, edges, max(apart, config.least_noises * noise), config)
    ends = np.append(there[edges[1:]], values.size) if edges.size else edges
    levels = [float(np.median(part)) for part in np.split(known, edges)]
    lanes = zip(
        there[edges].tolist(), ends.tolist(), levels, levels[1:], _judged(work, edges)[1].tolist(), strict=False
    )
    return [Change(*one) for one in lanes]


def _scaled(known: Floats) -> Floats:
    """Without overflow in squares, whatever the unit; differences keep their proportions."""
    centre, size = float(np.median(known)), float(np.abs(known).max())
    return np.asarray(known / size - centre / size)


def _medians(values: Floats, block: int) -> Floats:
    """Medians of blocks of `block` samples; the last may be short."""
    if block == 1:
        return values
    whole = values.size // block * block
    medians = np.median(values[:whole].reshape(-1, block), axis=1)
    return medians if whole == values.size else np.append(medians, np.median(values[whole:]))


def _slow_noise(points: Floats, group: int) -> float:
    """Standard deviation as it follows from means of `group` samples, if these were independent.

    Noise that is alike from one sample to the next moves means more than its samples tell, and a penalty that did not
    know would find changes in it. From differences, in which a change of level is once.
    """
    whole = points.size // group * group
    means = points[:whole].reshape(-1, group).mean(axis=1)
    return _spread(np.diff(means)) * float(np.sqrt(group)) / ROOT_2


def _spread(values: Floats) -> float:
    return SIGMA_OF_MAD * float(np.median(np.abs(values - np.median(values))))


def _clipped(points: Floats, noise: float) -> Floats:
    """Single samples far off (a checkpoint, a pause) drawn in to what lies around them; edges stay where they are."""
    around = ndimage.median_filter(points, NEIGHBOURS, mode="nearest")
    return np.asarray(around + np.clip(points - around, -CLIP * noise, CLIP * noise))


def _refined(work: Floats, edges: Ints, block: int) -> Ints:
    """The sample of the change, where blocks have said it to a block."""
    found = []
    for edge in edges.tolist():
        first, last = max(0, edge - block), min(work.size, edge + block)
        part = work[first:last]
        before, after = (
            np.median(work[max(0, edge - 5 * block) : first + 1]),
            np.median(work[last - 1 : edge + 5 * block]),
        )
        cost = np.cumsum(np.abs(part - before) - np.abs(part - after))
        found.append(first + int(np.argmin(np.append(0.0, cost))))
    return np.unique(np.array(found, np.int64))


def _kept(work: Floats, edges: Ints, apart: float, config: ChangeConfig) -> Ints:
    """Without the edges beside which the levels are alike: the least of them goes first, which joins two levels."""
    while edges.size:
        steps, sure = _judged(work, edges)
        wrong = np.flatnonzero((steps < apart) | (sure < config.least_sure))
        if not wrong.size:
            break
        edges = np.delete(edges, wrong[np.argmin(steps[wrong])])
    return edges


def _judged(work: Floats, edges: Ints) -> tuple[Floats, Floats]:
    """How far the levels beside each edge are apart, and how sure it is; see `Change.sure`."""
    parts = np.split(work, edges)
    levels = np.array([np.median(part) for part in parts])
    sure = [_beyond(before[-COMPARED:], after[:COMPARED]) for before, after in itertools.pairwise(parts)]
    return np.abs(np.diff(levels)), np.array(sure)


def _beyond(before: Floats, after: Floats) -> float:
    ordered = np.sort(before)
    below = np.searchsorted(ordered, after, side="left") + np.searchsorted(ordered, after, side="right")
    share = float(below.sum()) / (2.0 * before.size * after.size)
    return max(share, 1.0 - share)
