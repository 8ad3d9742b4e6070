"""Pictures of one detector's test for the MLflow UI: score distributions, precision-recall, one time line per job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from trainer_offline.data.grids import Floats
from trainer_offline.fit.judge import Tally

MAX_JOBS = 8
UNITS = (("days", 86_400.0), ("hours", 3_600.0), ("minutes", 60.0), ("seconds", 1.0))


def draw(name: str, tally: Tally, folder: Path) -> list[Path]:
    """Write the pictures that the counts allow into `folder`; none where matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return []
    quiet, events = _joined(tally.quiet_scores), _joined(tally.event_scores)
    kind = "injected anomalies" if tally.quality.injected else "annotated faults"
    drawn = []

    def keep(figure: Any, title: str) -> None:
        figure.suptitle(f"{name}: {title}", fontsize=11)
        path = folder / f"{name}-{title.replace(' ', '-')}.png"
        figure.savefig(path, dpi=90, metadata={"Software": None})
        drawn.append(path)

    if quiet.size:
        figure = Figure(figsize=(7, 3.5), layout="constrained")
        axes = figure.subplots()
        bins = np.linspace(0.0, 1.0, 51).tolist()
        axes.hist(quiet, bins, density=True, alpha=0.7, label="normal")
        if events.size:
            axes.hist(events, bins, density=True, alpha=0.6, label=kind)
        axes.set(xlabel="calibrated score", ylabel="density", yscale="log")
        axes.legend()
        keep(figure, "score distributions")
    if quiet.size and events.size:
        precision, recall = _curve(quiet, events)
        figure = Figure(figsize=(4.5, 4), layout="constrained")
        axes = figure.subplots()
        axes.step(recall, precision, where="post")
        axes.set(xlabel="recall (samples)", ylabel="precision (samples)", xlim=(0, 1), ylim=(0, 1.02))
        keep(figure, "precision-recall")
    if tally.lines:
        shown = tally.lines[:MAX_JOBS]
        figure = Figure(figsize=(9, 1.6 * len(shown) + 0.8), layout="constrained")
        for axes, (job, times_s, scores, labels) in zip(
            figure.subplots(len(shown), squeeze=False)[:, 0], shown, strict=True
        ):
            unit, unit_s = next(one for one in UNITS if times_s[-1] - times_s[0] >= 2 * one[1] or one[1] == 1.0)
            since = (times_s - times_s[0]) / unit_s
            axes.plot(since, scores, linewidth=0.6)
            axes.fill_between(since, 0.0, 1.0, where=labels, alpha=0.3, color="tab:red")
            axes.set(ylim=(0, 1), ylabel="score", xlabel=unit)
            axes.set_title(job[:80], fontsize=9, loc="left")
        keep(figure, "time lines")
    return drawn


def _joined(parts: list[Floats]) -> Floats:
    joined = np.concatenate([np.zeros(0), *parts])
    return np.asarray(joined[np.isfinite(joined)], dtype=np.float64)


def _curve(quiet: Floats, events: Floats) -> tuple[Floats, Floats]:
    """Precision and recall of samples at every threshold, from the highest down."""
    scores = np.concatenate([events, quiet])
    hits = np.concatenate([np.ones(events.size), np.zeros(quiet.size)])[np.argsort(-scores, kind="stable")]
    found = np.cumsum(hits)
    return found / np.arange(1, hits.size + 1), found / events.size
