"""Bayesian change points beside the reference in Python, hildensia's ``bayesian_changepoint_detection``.

It keeps every run length, in a matrix of all times by all run lengths; ours keeps a bounded number of hypotheses and
takes many series at once. Compared: seconds for each update of one series at run length 10,000, the posteriors where
ours is not pruned, and whether our cost grows with the stream.

Run: ``python -m tests.benchmarks.bench_bocd`` (about half a minute, 1 GB).
"""

from __future__ import annotations

import json
import statistics
import time
from functools import partial
from importlib.metadata import version
from typing import Any, Final

import numpy as np

from trainwarden.detectors.metrics.models.rows import Floats
from trainwarden.detectors.pace.bocd import ALPHA, BETA, KAPPA, Bocd

NAMES: Final = ("bocd_vs_hildensia",)
PACKAGE: Final = "bayesian_changepoint_detection"
HAZARD: Final = 0.004
LENGTH: Final = 10_000
TIMED: Final = 200  # updates at the end
SERIES: Final = 512
UNPRUNED: Final = 400
TOLERANCE: Final = 1e-9
RATIO: Final = 100.0
FLAT: Final = 1.25  # at 10,000 beside 1,000; room for noise
BAR: Final = f"ratio >= {RATIO:g}, equal to {TOLERANCE:g} when unpruned, cost flat in stream length"


def benchmarks() -> list[dict[str, Any]]:
    """The one entry, as `trainwarden bench` prints it."""
    row: dict[str, Any] = {
        "name": NAMES[0], "value": None, "unit": "s for each update of one series", "rounds": TIMED, "spread": None,
        "peer": None, "ratio": None, "bar": BAR, "holds": None,
    }  # fmt: skip
    try:
        from bayesian_changepoint_detection import online_changepoint_detection as peer
    except ImportError:
        return [{**row, "skipped": f"{PACKAGE} is not installed"}]
    theirs_s = _theirs(peer)
    early_s, late_s = _ours()
    difference = apart(peer)
    ratio, growth = theirs_s / late_s, late_s / early_s
    return [
        {
            **row,
            "value": late_s,
            "peer": {"name": PACKAGE, "version": version(PACKAGE), "value": theirs_s},
            "ratio": ratio,
            "largest_difference": difference,
            "cost_at_10000_vs_1000": growth,
            "holds": ratio >= RATIO and difference <= TOLERANCE and growth <= FLAT,
        }
    ]


def _theirs(peer: Any) -> float:
    """Median time from one value to the next at run length `LENGTH`, in their own loop."""
    times: list[float] = []

    class Timed(peer.StudentT):  # type: ignore[misc]
        def pdf(self, data: float) -> Floats:
            times.append(time.perf_counter())
            found: Floats = super().pdf(data)
            return found

    values = np.random.default_rng(0).normal(size=LENGTH)
    peer.online_changepoint_detection(
        values, partial(peer.constant_hazard, 1.0 / HAZARD), Timed(ALPHA, BETA, KAPPA, 0.0)
    )
    return statistics.median(np.diff(times[-TIMED:]).tolist())


def _ours() -> tuple[float, float]:
    """Seconds for each update of one series of a batch after a tenth of `LENGTH`, and after all of it."""
    rng = np.random.default_rng(1)
    bocd = Bocd(SERIES, HAZARD)
    times = []
    for _ in range(LENGTH):
        values = rng.normal(size=SERIES)
        begun_s = time.perf_counter()
        bocd.update(values)
        times.append((time.perf_counter() - begun_s) / SERIES)
    tenth = LENGTH // 10
    return statistics.median(times[tenth - TIMED : tenth]), statistics.median(times[-TIMED:])


def apart(peer: Any) -> float:
    """Largest difference of the posteriors of all run lengths, after every value.

    Theirs gives the hazard's share to "a new segment begins with the next value"; ours says how long the segment of the
    newest value is, so theirs is taken under the condition that the next one does not begin.
    """
    values = np.random.default_rng(2).normal(size=UNPRUNED)
    values[UNPRUNED // 2 :] += 3.0
    found, _ = peer.online_changepoint_detection(
        values, partial(peer.constant_hazard, 1.0 / HAZARD), peer.StudentT(ALPHA, BETA, KAPPA, 0.0)
    )
    bocd, worst = Bocd(1, HAZARD, width=UNPRUNED + 1), 0.0
    for place, value in enumerate(values):
        bocd.update(np.array([value]))
        ours = np.bincount(bocd.run[0], np.exp(bocd.log_mass[0]), minlength=UNPRUNED + 1)
        theirs = found[: UNPRUNED + 1, place + 1] / (1.0 - HAZARD)
        worst = max(worst, float(np.abs(ours - theirs)[1:].max()))
    return worst


if __name__ == "__main__":
    print(json.dumps(benchmarks(), indent=2))
