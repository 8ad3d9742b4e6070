"""Records as the windows that a detector would be shown of them."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from functools import cache
from typing import Any, Final

import numpy as np

from trainwarden.detectors.job.samples import Entity
from trainwarden.detectors.job.state import JobState
from trainwarden.detectors.job.window import Window
from trainwarden.detectors.metrics.bundle.bundle import ModelBundle
from trainwarden.detectors.metrics.bundle.members import VoteConfig
from trainwarden.detectors.metrics.scores import MetricScorer
from trainwarden.detectors.testing.streams import JOB, METRICS, Sent, metric_values
from trainwarden.settings import parse

EVERY_S: Final = 0.5
MOST: Final = 1_000  # a longer stream is looked at less often


def windows_of(records: Sequence[Sent], models: ModelBundle | None = None) -> tuple[Window, ...]:
    """The windows of one job, each a copy that stays as it is; with `models` their scores of its metrics."""
    state, out = JobState(JOB), list[Window]()
    scorer = MetricScorer(models)
    ordered = sorted(records, key=lambda entry: entry[0])
    start_s, end_s = ordered[0][0], ordered[-1][0]
    every_s = max(EVERY_S, (end_s - start_s) / MOST)
    now_s, place = float(start_s), 0
    while place < len(ordered):
        now_s += every_s
        while place < len(ordered) and ordered[place][0] <= now_s:
            state.feed(ordered[place][1])
            place += 1
        out.append(_kept(state.window(now_s), scorer))
    return tuple(out)


def _kept(window: Window, scorer: MetricScorer) -> Window:
    found: dict[str, Any] = {
        name: value.copy() for name in Window.__slots__ if isinstance(value := getattr(window, name), np.ndarray)
    }
    for array in found.values():
        array.flags.writeable = False
    found["beats"] = deepcopy(window.beats)  # one object for all windows of a job, which goes on
    if scorer.bundle is not None:
        found["scored"] = scorer.score(window.samples, window.end_s)
        found |= {"unscored": scorer.abstained, "model_versions": scorer.bundle.versions,
                  "provisional": scorer.bundle.provisional, "weights": scorer.bundle.weights}  # fmt: skip
    return replace(window, **found)


@cache
def small_models() -> ModelBundle:
    """Models of the four devices of `trainwarden.detectors.testing.streams.metrics`, trained in a moment."""
    times_s = np.arange(400.0) / 2  # two samples a second
    normal = [(Entity("node0", f"GPU-{one}", one), times_s, metric_values(one, 400)) for one in range(4)]
    config = parse(VoteConfig, {"neighbor_profile": {"bags": 20, "bag_size": 16}, "dtw_samples": 20}, "models")
    return ModelBundle.fit({"GPU": normal}, {"GPU": METRICS}, config, seed=0)
