"""Fail-slows of every shape injected into realistic iteration times: the noise of real healthy runs, or a made-up one.

All of it is seeded; tuning and reporting use different seeds and the residuals of different recorded runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from tests.benchmarks.detection.change_series import CLASSES, START, Floats, Kind, Series, Split, TrueChange

SEEDS: Final = {"tune": 11, "report": 914_207}  # the report half's is new: 23, 58,211 and 730,119 were looked at
LENGTH: Final = (500, 1500)
QUIET: Final = 150  # iterations before the first change, and after the last one
STOCK_SHARE: Final = 0.5  # of the series get blocks of recorded residuals


def residuals(runs: Sequence[Series]) -> list[Floats]:
    """Log residuals of healthy recorded runs about their running median over 61 iterations.

    Without the ends, where the median is that of a padded series: with a repeating pattern it takes another level,
    which would be a change that nobody injected.
    """
    stock = []
    for run in runs:
        if run.changes or run.ignores or len(run.durations) < 200 or run.reach[1] < 30:
            continue
        log = np.log(run.durations[START:])
        windows = np.lib.stride_tricks.sliding_window_view(log, 61)
        stock.append(log[30:-30] - np.median(windows, axis=1))
    return stock


def synthetic(split: Split, per_class: int, stock: Sequence[Floats]) -> list[Series]:
    """`per_class` series of each of `CLASSES`.

    Parameters
    ----------
    split : "tune" or "report"
        Chooses the seed.
    stock : sequence of float array
        Residuals of `residuals`; without any, all noise is made up.
    """
    out = []
    for place, what in enumerate(CLASSES):
        for number in range(per_class):
            rng = np.random.default_rng((SEEDS[split], place, number))
            out.append(one(rng, what, f"{what}-{number}", split, stock))
    return out


def one(rng: np.random.Generator, what: str, name: str, split: Split, stock: Sequence[Floats]) -> Series:
    """One series of class `what`."""
    length = int(rng.integers(*LENGTH))
    log = np.log(10 ** rng.uniform(-1.5, 1.3)) + noise(rng, length, stock)
    level, changes = shape(rng, what, length)
    log += level
    log[0] += rng.uniform(0.5, 3.0)
    log[1:3] += rng.uniform(0.0, 0.5, 2)
    durations = np.exp(log)
    if rng.random() < 0.15:  # a coarse clock: steps of about 3 % of the duration
        quantum = float(np.median(durations)) / rng.integers(28, 60)
        durations = np.maximum(np.round(durations / quantum), 1.0) * quantum
    steps = np.arange(length)
    return Series(name, "synthetic", name, steps, durations, tuple(changes), what=what, split=split)


def noise(rng: np.random.Generator, length: int, stock: Sequence[Floats]) -> Floats:
    """Log noise of a healthy job: jitter, single spikes, pauses with fast steps after them."""
    if stock and rng.random() < STOCK_SHARE:
        source = stock[int(rng.integers(len(stock)))]
        size = int(rng.integers(20, 80))
        starts = rng.integers(0, max(1, len(source) - size), length // size + 1)
        return np.concatenate([source[start : start + size] for start in starts])[:length].copy()
    width = 10 ** rng.uniform(-2.5, -1.25)  # 0.3 % to 5.6 %
    kind = rng.random()
    if kind < 0.5:
        log = rng.normal(0.0, width, length)
    elif kind < 0.8:
        log = width * rng.standard_t(3, length) / np.sqrt(3.0)
    else:  # two paces in turn, as 28 and 34 ms
        log = np.where(np.arange(length) % 2 == 0, -0.5, 0.5) * rng.uniform(0.03, 0.19) + rng.normal(0, 0.01, length)
    spikes = rng.random(length) < rng.uniform(0.0, 0.01)
    log[spikes] += np.log(rng.uniform(1.3, 6.0, int(spikes.sum())))
    if rng.random() < 0.4:
        every = int(rng.integers(40, 250))
        for at in range(every, length - 4, every):
            log[at] += np.log(rng.uniform(1.2, 3.0))
            log[at + 1 : at + 1 + int(rng.integers(1, 4))] -= rng.uniform(0.02, 0.12)
    if rng.random() < 0.3:
        at = int(rng.integers(QUIET // 2, length - 4))
        log[at : at + int(rng.integers(2, 4))] += np.log(rng.uniform(1.2, 2.0))
    return log


def shape(rng: np.random.Generator, what: str, length: int) -> tuple[Floats, list[TrueChange]]:
    """Log level over the series and its true changes."""
    level = np.zeros(length)
    at = int(rng.integers(QUIET, length - 2 * QUIET))
    ratio = float(np.exp(rng.uniform(np.log(1.1), np.log(3.0))))
    if what == "healthy":
        return level, []
    if what == "planned":
        ratio = ratio if rng.random() < 0.5 else 1.0 / ratio
        level[at:] += np.log(ratio)
        return level, [TrueChange(at, at, ratio, "planned")]
    if what == "step":
        level[at:] += np.log(ratio)
        return level, [TrueChange(at, at, ratio, "step"), *_relief(rng, level, at + 60, ratio)]
    if what == "spell":
        end = at + int(rng.integers(12, 60))
        ratio = max(ratio, 1.2)
        level[at:end] += np.log(ratio)
        return level, [TrueChange(at, at, ratio, "spell"), TrueChange(end, end, 1.0 / ratio, "relief")]
    if what == "staircase":
        return _staircase(rng, level)
    return _drift(rng, level)


def _relief(rng: np.random.Generator, level: Floats, earliest: int, ratio: float) -> list[TrueChange]:
    if rng.random() < 0.4 or earliest >= len(level) - 60:
        return []
    end = int(rng.integers(earliest, len(level) - 40))
    level[end:] -= np.log(ratio)
    return [TrueChange(end, end, 1.0 / ratio, "relief")]


def _staircase(rng: np.random.Generator, level: Floats) -> tuple[Floats, list[TrueChange]]:
    """Three to five steps of 4 to 8 % each, 25 to 70 iterations apart."""
    at = first = int(rng.integers(120, max(121, len(level) - 380)))
    for _ in range(int(rng.integers(3, 6))):
        level[at:] += np.log(rng.uniform(1.04, 1.08))
        at += int(rng.integers(25, 71))
    return level, [_passing(level, first, "staircase")]


def _drift(rng: np.random.Generator, level: Floats) -> tuple[Floats, list[TrueChange]]:
    """10 % in 60 to 500 iterations, as far as there is room for it, going on to 12 to 60 %, then level."""
    # What never passes 10 % is no change by the protocol: 120 iterations before it, 60 after 10 % are passed.
    slope = np.log(1.1) / min(rng.uniform(60, 500), len(level) - 190)
    end = np.log(rng.uniform(1.12, 1.6))
    room = len(level) - int(np.log(1.1) / slope) - 60
    first = int(rng.integers(120, room))
    level += np.clip((np.arange(len(level)) - first) * slope, 0.0, end)
    return level, [_passing(level, first, "drift")]


def _passing(level: Floats, first: int, kind: Kind) -> TrueChange:
    passed = np.flatnonzero(level >= np.log(1.1) - 1e-9)
    by = int(passed[0]) if passed.size else len(level) - 1
    return TrueChange(first, by, float(np.exp(level.max())), kind)
