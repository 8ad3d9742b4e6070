"""Where a recorded job has left its initialisation behind; read backwards, where its end has begun."""

from __future__ import annotations

from typing import Final

import numpy as np

from trainwarden.trainer_offline.data.grids import Floats

UNSETTLED_METRICS: Final = 0.2  # of the metrics measured at the start, so many have to be off their later range
MARGIN: Final = 0.25  # of the later range: outside it by more is another level
SETTLED_SAMPLES: Final = 5  # settled once nothing is off for so many samples,
SETTLED_S: Final = 300.0  # and for so long: what so many are on servers sampled once a minute (`opening.REFERENCE_S`)
START_SAMPLES: Final = 3  # an initialisation begins with the recording: with these samples,
START_S: Final = 180.0  # or within this time, the same there
LOOKED_SHARE: Final = 0.5  # of the part that is looked through either may take: a recording of minutes starts, too
LEAST_SAMPLES: Final = 40  # of fewer, whatever their interval, nothing can be said about levels


def settled_index(values: Floats, start_share: float, every_s: float) -> int:
    """How many first samples of ``values [d, n]`` belong to an initialisation phase; 0 if there is none.

    A job initialises while several metrics stand at levels that they never see again: outside the range of the rest of
    the recording. It has settled when nothing is off for five minutes of samples, one every `every_s` seconds. What is
    not settled after `start_share` of the recording is no initialisation.

    Examples
    --------
    >>> power = np.concatenate([np.full(20, 80.0), np.random.default_rng(0).normal(400.0, 5.0, 280)])
    >>> settled_index(power[None], 0.2, 60.0), settled_index(power[None, 20:], 0.2, 60.0)
    (20, 0)
    """
    return _phase(values, start_share, every_s)[0]


def ending_index(values: Floats, end_share: float, every_s: float) -> int:
    """How many last samples of ``values [d, n]`` belong to the job's end, by the same rule read backwards.

    Examples
    --------
    >>> power = np.concatenate([np.random.default_rng(0).normal(400.0, 5.0, 280), np.full(20, 80.0)])
    >>> ending_index(power[None], 0.2, 1.0), ending_index(power[None, :280], 0.2, 1.0)
    (20, 0)
    """
    found, off = _phase(values[:, ::-1], end_share, every_s)
    return found if 2 * off >= found >= START_SAMPLES else 0  # a wild value or two near the end are none


def _phase(values: Floats, share: float, every_s: float) -> tuple[int, int]:
    """How many first samples are a phase, and at how many of them several metrics are off."""
    samples = values.shape[1]
    limit = int(samples * share)
    if samples < LEAST_SAMPLES or limit < START_SAMPLES:
        return 0, 0
    start, rest = values[:, :limit], values[:, limit:]
    there = np.isfinite(start).any(axis=1) & np.isfinite(rest).any(axis=1)
    if not there.any():
        return 0, 0
    start, rest = start[there], rest[there]
    low, high = np.nanquantile(rest, (0.005, 0.995), axis=1)
    margin = MARGIN * (high - low) + 1e-9 * np.maximum(np.abs(low), np.abs(high))
    with np.errstate(invalid="ignore"):
        off = (start < (low - margin)[:, None]) | (start > (high + margin)[:, None])
    least = max(1.0, UNSETTLED_METRICS * there.sum())
    places = np.flatnonzero(off.sum(axis=0) >= least)
    settled, begins = (
        max(few, min(round(seconds / every_s), int(LOOKED_SHARE * limit)))
        for few, seconds in ((SETTLED_SAMPLES, SETTLED_S), (START_SAMPLES, START_S))
    )
    if not places.size or places[0] >= begins:
        return 0, 0
    breaks = np.flatnonzero(np.diff(places) > settled)
    last = int(places[breaks[0]] if breaks.size else places[-1])
    return (0, 0) if last + 1 + settled > limit else (last + 1, int((places <= last).sum()))
