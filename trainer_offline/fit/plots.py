"""Pictures of one detector's test for the MLflow UI: score distributions, precision-recall, one time line per job."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trainwarden.trainer_offline.data.grids import Flags, Floats
from trainwarden.trainer_offline.fit.judge import Tally

MAX_JOBS = 8
MARGINS_IN = (0.75, 0.2, 0.5, 0.55)  # left, right, below and above: room for numbers, labels and titles
UNITS = (("days", 86_400.0), ("hours", 3_600.0), ("minutes", 60.0), ("seconds", 1.0))


def draw(name: str, tally: Tally, folder: Path) -> list[Path]:
    """Write the pictures that the counts allow into `folder`; none where matplotlib is not installed."""
    try:
        import matplotlib as _  # noqa: F401
    except ImportError:
        return []
    quiet, events = _joined(tally.quiet_scores), _joined(tally.event_scores)
    figures: dict[str, Any] = {}
    if quiet.size:
        kind = "injected anomalies" if tally.quality.injected else "annotated faults"
        figures["score distributions"] = _distributions(quiet, events, kind)
    if quiet.size and events.size:
        figures["precision-recall"] = _precision_recall(quiet, events)
    if tally.lines:
        figures["time lines"] = _time_lines(tally.lines[:MAX_JOBS])
    drawn = []
    for title, figure in figures.items():
        figure.suptitle(f"{name}: {title}", fontsize=11)
        drawn.append(folder / f"{name}-{title.replace(' ', '-')}.png")
        figure.savefig(drawn[-1], dpi=90, metadata={"Software": None})
    return drawn


def _distributions(quiet: Floats, events: Floats, kind: str) -> Any:
    """Calibrated scores of normal samples and of those of faults, `kind` of them."""
    figure = _figure(7.0, 3.5)
    axes = figure.subplots()
    bins = np.linspace(0.0, 1.0, 51)
    for scores, color, label in ((quiet, "C0", "normal"), (events, "C1", kind)):
        if scores.size:
            density, _ = np.histogram(scores, bins, density=True)
            axes.stairs(density, bins, fill=True, alpha=0.65, color=color, label=label)
    axes.set(xlabel="calibrated score", ylabel="density", yscale="log")
    axes.legend()
    return figure


def _precision_recall(quiet: Floats, events: Floats) -> Any:
    """Precision and recall of samples at every threshold."""
    from sklearn.metrics import precision_recall_curve

    truth = np.repeat([0, 1], [quiet.size, events.size])
    precision, recall, _ = precision_recall_curve(truth, np.concatenate([quiet, events]))
    figure = _figure(4.5, 4.0)
    axes = figure.subplots()
    axes.step(recall, precision, where="post")
    axes.set(xlabel="recall (samples)", ylabel="precision (samples)", xlim=(0, 1), ylim=(0, 1.02))
    return figure


def _time_lines(lines: Sequence[tuple[str, Floats, Floats, Flags]]) -> Any:
    """Scores of each job over its time, faults shaded."""
    figure = _figure(9.0, 1.6 * len(lines) + 0.8)
    rows = figure.subplots(len(lines), squeeze=False, gridspec_kw={"hspace": 0.9})[:, 0]
    for axes, (job, times_s, scores, labels) in zip(rows, lines, strict=True):
        unit, unit_s = next(one for one in UNITS if times_s[-1] - times_s[0] >= 2 * one[1] or one[1] == 1.0)
        since = (times_s - times_s[0]) / unit_s
        axes.plot(since, scores, linewidth=0.6)
        axes.fill_between(since, 0.0, 1.0, where=labels, alpha=0.3, color="tab:red")
        axes.set(ylim=(0, 1), ylabel="score", xlabel=unit)
        axes.set_title(job[:80], fontsize=9, loc="left")
    return figure


def _figure(width_in: float, height_in: float) -> Any:
    """With margins of a fixed size: to find them by the text in the picture draws it twice over."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width_in, height_in))
    left, right, bottom, top = MARGINS_IN
    figure.subplots_adjust(left / width_in, bottom / height_in, 1 - right / width_in, 1 - top / height_in)
    return figure


def _joined(parts: list[Floats]) -> Floats:
    joined = np.concatenate([np.zeros(0), *parts])
    return np.asarray(joined[np.isfinite(joined)], dtype=np.float64)
