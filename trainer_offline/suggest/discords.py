"""Stretches of a recording that are unlike all of its others: discords of the matrix profile.

Keogh, Lin and Fu (2005, ICDM): the subsequence whose nearest neighbour is farthest away. Distances are Euclidean on the
values as they are (stumpy's `aamp`): under the usual z-normalisation the noise of a quiet metric is as unlike itself as
a fault is, and 5 of 19 events were found where 10 are (ASD's choosing half, five stretches a machine).
"""

from __future__ import annotations

import warnings
from typing import Annotated, Final, NamedTuple

import msgspec
import numpy as np
import stumpy

from trainwarden.settings import Config
from trainwarden.trainer_offline.suggest.change_points import TOO_LARGE, Floats

MEASURED: Final = 0.5  # of the samples: what is missing more often is not compared
LEAST_WINDOWS: Final = 8  # that a recording has to have room for, or nothing is usual in it


class DiscordConfig(Config, frozen=True, kw_only=True):
    """When a stretch is worth a person's time.

    Attributes
    ----------
    window_points : int
        Length of what is compared; 8 do as well (26 and 27 of 52 events of SMD's choosing half by twenty stretches).
    max_points : int
        A longer series is thinned to so many: the profile is quadratic (0.4 s of a processor a metric for 4,000).
    least_times : float
        How far a stretch lies from its nearest neighbour at least, as `Discord.times`. With 2 two thirds of ASD's
        choosing half are found, with 1.5 five sixths.
    most : int
        Stretches that are looked for.
    """

    window_points: Annotated[int, msgspec.Meta(ge=4, le=256)] = 16
    max_points: Annotated[int, msgspec.Meta(ge=200, le=20_000)] = 4_000
    least_times: Annotated[float, msgspec.Meta(ge=1.0)] = 1.5
    most: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = 20


class Discord(NamedTuple):
    """A stretch that is unlike all others.

    Attributes
    ----------
    at, end : int
        First sample, and the first one after it.
    times : float
        How far it lies from its nearest neighbour, as a multiple of the mean over the recording.
    columns : tuple of int
        The metrics that lie farthest, farthest first, three at most.
    """

    at: int
    end: int
    times: float
    columns: tuple[int, ...]


def discords(values: Floats, config: DiscordConfig) -> list[Discord]:
    """Stretches of ``values [d, n]`` that no other is like, farthest first; those that touch are one.

    What is not finite or above 1e307 counts as not there; a metric that is constant or hardly there is not compared.
    """
    samples, block = values.shape[1], -(-values.shape[1] // config.max_points)
    if -(-samples // block if block else 0) < LEAST_WINDOWS * config.window_points:
        return []
    known = [(column, points) for column, one in enumerate(values) if (points := _points(one, block)) is not None]
    if not known:
        return []
    profiles = np.stack([nearest(points, config.window_points) for _, points in known])
    mean = profiles.mean(axis=0)
    usual = float(mean.mean())
    if usual <= 0.0:
        return []
    found = []
    for first, last in _stretches(mean, config.least_times * usual, config):
        own = profiles[:, first : last + 1].max(axis=1)
        worst = [known[place][0] for place in np.argsort(-own, kind="stable")[:3].tolist() if own[place] > 0.0]
        end = min(samples, (last + config.window_points) * block)
        found.append(Discord(first * block, end, float(mean[first : last + 1].max()) / usual, tuple(worst)))
    return sorted(found, key=lambda one: -one.times)


def _points(values: Floats, block: int) -> Floats | None:
    """One metric in units of its spread, of each block the sample farthest from its median; None if it tells nothing.

    A block's median loses what is shorter than the block: 18 of 52 events of SMD's choosing half, not 27.
    """
    usable = np.where(np.abs(values) < TOO_LARGE, values, np.nan)
    there = np.isfinite(usable)
    if there.mean() < MEASURED:
        return None
    centre, size = float(np.median(usable[there])), float(np.abs(usable[there]).max())
    if size == 0.0:
        return None
    away = usable / size - centre / size
    blocks = np.pad(away, (0, -away.size % block), constant_values=np.nan).reshape(-1, block)
    farthest = np.where(np.isfinite(blocks), np.abs(blocks), -1.0).argmax(axis=1)
    points = blocks[np.arange(len(blocks)), farthest]
    spread = float(np.nanstd(points))
    # Rounding alone makes a constant vary by about 1e-16 of its size.
    return None if spread <= 1e-12 else np.asarray(points / spread)


def nearest(points: Floats, window: int) -> Floats:
    """Distance ``[n - window + 1]`` of each window to its nearest neighbour; 0 where a sample is missing."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that windows are far from all others, which is what is looked for
        found = np.asarray(stumpy.aamp(points, window)[:, 0], dtype=np.float64)
    return np.where(np.isfinite(found), found, 0.0)


def _stretches(mean: Floats, least: float, config: DiscordConfig) -> list[tuple[int, int]]:
    """First and last window of what is farther than `least`, windows that touch as one.

    Examples
    --------
    >>> far = np.ones(100)
    >>> far[[20, 33, 70]] = 5.0, 4.0, 3.0
    >>> _stretches(far, 2.0, DiscordConfig(window_points=12))
    [(20, 33), (70, 70)]
    """
    left, peaks = mean.copy(), []
    for _ in range(config.most):
        peak = int(left.argmax())
        if left[peak] < least:
            break
        peaks.append(peak)
        left[max(0, peak - config.window_points) : peak + config.window_points + 1] = -np.inf
    found: list[tuple[int, int]] = []
    for peak in sorted(peaks):
        if found and peak - found[-1][1] <= config.window_points + 1:
            found[-1] = (found[-1][0], peak)
        else:
            found.append((peak, peak))
    return found
