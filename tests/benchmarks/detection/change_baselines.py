"""What iteration change points are measured against: plain methods, written here or taken from their packages.

Each takes durations in seconds and returns `Report`s; none looks ahead but PELT, Rbeast and `annotate suggest`, which
are offline and have no delay of their own: for them a change counts as reported where it begins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Final, NamedTuple

import numpy as np

from tests.benchmarks.detection.change_series import Floats, Series
from trainwarden.detectors.pace.bocd import Bocd
from trainwarden.detectors.pace.shifts.level_shifts import LevelShifts, ShiftConfig
from trainwarden.trainer_offline.suggest.change_points import ChangeConfig, change_points

WARM_UP_ROWS: Final = 10  # the detection service takes the first ten steps of a job for its start
OFFLINE: Final = ("suggest", "pelt", "rbeast")
WINDOW: Final = 10


class Report(NamedTuple):
    """One reported change; `onset` and `reported` are indices into the series."""

    onset: int
    reported: int
    ratio: float


def ours(runs: Sequence[Series], config: ShiftConfig | None = None) -> list[list[Report]]:
    """`trainwarden.detectors.pace.shifts.level_shifts`, many runs of about one length at a time."""
    out: list[list[Report]] = [[] for _ in runs]
    order = sorted(range(len(runs)), key=lambda place: len(runs[place].durations))
    for first in range(0, len(order), 128):
        part = order[first : first + 128]
        longest = len(runs[part[-1]].durations)
        rows = np.full((longest, len(part)), np.nan)
        for column, place in enumerate(part):
            rows[: len(runs[place].durations), column] = np.log(runs[place].durations)
        strides = np.array([max(1, int(np.median(np.diff(runs[place].steps)))) for place in part])
        shifts = LevelShifts(config or ShiftConfig())
        for seq in range(WARM_UP_ROWS, longest):
            for found in shifts.update(seq, rows[seq], strides):
                out[part[found.series]].append(Report(found.onset, found.reported, found.after / found.before))
    return out


def always_off(durations: Floats) -> list[Report]:
    """Never a word: what job accuracy is worth where changes are rare."""
    return []


def window_rule(durations: Floats) -> list[Report]:
    """Mean of the newest ten against the ten before, 10 % (Falcon's sliding window)."""
    found: list[Report] = []
    for end in range(2 * WINDOW + WARM_UP_ROWS, len(durations)):
        ratio = float(durations[end - WINDOW : end].mean() / durations[end - 2 * WINDOW : end - WINDOW].mean())
        fresh = not found or end - found[-1].reported > 2 * WINDOW
        if fresh and not 1 / 1.1 < ratio < 1.1:
            found.append(Report(end - WINDOW, end - 1, ratio))
    return found


def plain_bocd(durations: Floats, *, verify: bool = False) -> list[Report]:
    """Adams and MacKay 2007; a change when a fresh run holds 0.9 of the posterior; `verify` adds Falcon's rule."""
    log = np.log(durations[WARM_UP_ROWS:])
    if len(log) < 30:
        return []
    centre, scale = float(np.median(log[:20])), max(float(np.std(log[1:20])), 0.005)
    bocd, found, last = Bocd(1, 0.004), [], 0
    for place, value in enumerate(np.clip((log - centre) / scale, -60, 60)):
        bocd.update(np.array([value]))
        run = int(bocd.most_likely_run()[0])
        onset, needed = place - run + 1, WINDOW if verify else 3
        if place < 20 or run < needed or onset <= last or float(bocd.mass_between(1, 2 * WINDOW)[0]) < 0.9:
            continue
        before, after = (
            durations[WARM_UP_ROWS:][max(last, onset - 30) : onset],
            durations[WARM_UP_ROWS:][onset : place + 1],
        )
        if len(before) < WINDOW:
            continue
        ratio = float(after.mean() / before.mean())
        if verify and 1 / 1.1 < ratio < 1.1:
            continue
        found.append(Report(onset + WARM_UP_ROWS, place + WARM_UP_ROWS, ratio))
        last = onset
    return found


def bocd_verified(durations: Floats) -> list[Report]:
    """Falcon's BOCD+V: means at least 10 % apart, at least ten iterations long."""
    return plain_bocd(durations, verify=True)


def pelt(durations: Floats) -> list[Report]:
    """ruptures' PELT on log times, verified as Falcon does; offline."""
    ruptures = import_module("ruptures")
    log = np.log(durations[WARM_UP_ROWS:])
    noise = max(float(np.median(np.abs(np.diff(log)))), 0.005)
    algorithm = ruptures.Pelt(model="l2", min_size=WINDOW, jump=5).fit(log[:, None])
    return _segments(durations, algorithm.predict(pen=12.0 * noise**2 * np.log(len(log)))[:-1])


def suggest(durations: Floats) -> list[Report]:
    """What `annotate suggest` shows a person; offline."""
    found = change_points(durations, ChangeConfig(), relative=True)
    return [Report(one.at, one.at, one.after / one.before) for one in found]


def rbeast(durations: Floats) -> list[Report]:
    """Rbeast, which Falcon's published code uses, trend only, verified as Falcon does; offline."""
    beast = import_module("Rbeast").beast
    result = beast(np.log(durations[WARM_UP_ROWS:]), season="none", quiet=True, print_progress=False)
    places = np.ravel(result.trend.cp)
    likely = np.ravel(result.trend.cpPr)[: len(places)] > 0.9
    return _segments(durations, sorted(int(place) for place in places[likely] if np.isfinite(place)))


def _segments(durations: Floats, places: Sequence[int]) -> list[Report]:
    edges = [WARM_UP_ROWS, *(place + WARM_UP_ROWS for place in places), len(durations)]
    found = []
    for before, at, after in zip(edges, edges[1:], edges[2:], strict=False):
        if min(at - before, after - at) < WINDOW:
            continue
        ratio = float(durations[at:after].mean() / durations[before:at].mean())
        if not 1 / 1.1 < ratio < 1.1:
            found.append(Report(at, at, ratio))
    return found


def methods() -> dict[str, Callable[[Floats], list[Report]]]:
    """The baselines that can run here, by name."""
    known: dict[str, Callable[[Floats], list[Report]]] = {
        "always_off": always_off, "window_rule": window_rule, "bocd": plain_bocd, "bocd_verified": bocd_verified,
    }  # fmt: skip
    offline = (("suggest", "ruptures", suggest), ("pelt", "ruptures", pelt), ("rbeast", "Rbeast", rbeast))
    return known | {name: method for name, package, method in offline if find_spec(package) is not None}
