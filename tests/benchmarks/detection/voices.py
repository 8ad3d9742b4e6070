"""What each vote is worth: by both rules, by measured weights, and with each left out.

On the servers only the models' votes count, so that what a weight does is not hidden by detectors that need no model.
Weights are measured on the choosing half as the gate does it (`trainwarden.trainer_offline.fit.weights`) and used on
the report half. On the mixed streams all detectors vote.

Run: ``python -m tests.benchmarks.detection.voices TABLES.json...`` for the table of votes, from what
``trainwarden bench detection --json TABLES.json`` wrote, in parts or at once.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from tests.benchmarks.detection.measures import event_quality
from trainwarden.detectors.configured_detectors import ConfiguredDetector, chosen
from trainwarden.detectors.metrics.hysteresis import ModelVoteConfig
from trainwarden.detectors.metrics.vote import ENSEMBLE
from trainwarden.detectors.verdict.rule import TRANSOM_VOTES, EnsembleConfig
from trainwarden.settings import DetectionSettings
from trainwarden.trainer_offline.fit.judge import SPELL_S, episodes, segments
from trainwarden.trainer_offline.fit.weights import Counted, Weight, weighed

Flags = npt.NDArray[np.bool_]
WEIGHTED, TRANSOM, MEASURED = "models_weighted", "models_transom", "models_measured"
WHOLE: Final = "metric_mean"
MARGIN: Final = 5  # samples, as in the protocol
MIXED: Final = "mixed, constructed"
READS: Final = {
    "logs": "log lines", "events": "events of processes and devices", "steps": "times of steps",
    "calls": "collective calls", "samples": "metrics, no training needed", "scores": "metrics, by a trained model",
}  # fmt: skip


class Voted(Protocol):
    """When each model's vote was anomalous on one machine, and what was right."""

    labels: Flags
    every_s: float
    votes: dict[str, Flags]


def opened(scores: npt.NDArray[np.float64], every_s: float) -> Flags:
    """When one machine is anomalous for a model, by its calibrated scores ``[t]``."""
    config, samples = ModelVoteConfig(), np.full(scores.size, every_s)
    return config.opened(scores[None], config.thresholds_of(1, samples), samples)[0]


def voices() -> dict[str, ConfiguredDetector]:
    """The trained models' detectors."""
    return {name: one for name, one in chosen(DetectionSettings()).items() if one.role.reads == "scores"}


def by_votes(choose: Sequence[Voted], report: Sequence[Voted]) -> dict[str, list[Flags]]:
    """Alerts on the report half by both rules, by weights measured on the choosing half, and without each model."""
    constant = {name: one.role.weight for name, one in voices().items()}
    enough = EnsembleConfig().metric_votes
    transom = {name: float(one.role.transom) for name, one in voices().items()}
    rules = {WEIGHTED: (constant, enough), TRANSOM: (transom, TRANSOM_VOTES)}
    rules[MEASURED] = {name: one.weight for name, one in measured(choose).items()}, enough
    for name, weight in constant.items():
        if weight > 0.0 and key_of(name) in report[0].votes:
            rules[f"models without {name}"] = {**constant, name: 0.0}, enough
    return {rule: [_agreed(one, *by) for one in report] for rule, by in rules.items()}


def key_of(detector: str) -> str:
    """What a detector's scores are called."""
    return ENSEMBLE if detector == WHOLE else detector


def _agreed(one: Voted, weights: Mapping[str, float], enough: float) -> Flags:
    total = np.zeros(one.labels.size)
    for name, weight in weights.items():
        if key_of(name) in one.votes:
            total += weight * one.votes[key_of(name)]
    return np.asarray(total >= enough - 1e-9, dtype=np.bool_)


def measured(machines: Sequence[Voted]) -> dict[str, Weight]:
    """Weights as the gate would give them, all `machines` being its test jobs."""
    return {
        name: weighed(_counted(machines, key_of(name)), one.role.weight, alone=name == WHOLE)
        for name, one in voices().items()
        if key_of(name) in machines[0].votes
    }


def plain(weights: Mapping[str, Weight]) -> dict[str, dict[str, Any]]:
    """As a row of a table holds them."""
    return {name: {"weight": one.weight, "why": one.why} for name, one in weights.items()}


def _counted(machines: Sequence[Voted], key: str) -> Counted:
    total = Counted()
    for one in machines:
        on, labels = one.votes[key], one.labels
        near = np.convolve(labels, np.ones(2 * MARGIN + 1), mode="same") > 0
        false = [first for first, last in episodes(on).tolist() if not near[first : last + 1].any()]
        total.false_spells += len({int(first * one.every_s // SPELL_S) for first in false})
        total.found += event_quality(labels, on, 86_400.0 / one.every_s).found
        total.events += len(segments(labels))
        total.fault_s += float(labels.sum()) * one.every_s
        total.judged_s += labels.size * one.every_s
    return total


def voices_table(tables: Sequence[Mapping[str, Any]]) -> str:
    """Markdown: each vote, where it votes, its weights and where they are from, and what is lost without it."""
    figures = {(row["row"], row["set"]): row for row in tables if row["table"] in ("metrics", MIXED)}
    sets = [name for name in ("smd", "asd") if (WEIGHTED, name) in figures]
    mixed = ["mixed"] if ("all_detectors", "all") in figures else []
    heads = ["vote", "where it votes", "opens alone", "`weighted`: weight", "`transom`: votes"]
    heads += [f"measured on {name}'s choosing half" for name in sets]
    heads += [f"F1 without it, {name}" for name in (*sets, *mixed)]
    whole = [_f1(figures, WEIGHTED, name) for name in sets] + [_f1(figures, "all_detectors", "all") for _ in mixed]
    lines = [["(none left out)", *["" for _ in heads[1:5]], *["" for _ in sets], *whole]]
    for name, one in chosen(DetectionSettings()).items():
        role, trained = one.role, one.role.reads == "scores"
        lines.append([
            f"`{name}`", READS[role.reads], ", ".join(role.opens) or "no", f"{role.weight:g}", str(int(role.transom)),
            *(_measured(figures, name, dataset) if trained else "" for dataset in sets),
            *(_f1(figures, f"models without {name}", dataset) if trained else "" for dataset in sets),
            *(_f1(figures, f"without {name}", "all", does=role.weight > 0.0 or bool(role.opens)) for _ in mixed),
        ])  # fmt: skip
    rows = [heads, ["---"] * len(heads), *lines]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _measured(figures: Mapping[tuple[str, str], Mapping[str, Any]], name: str, dataset: str) -> str:
    part = figures.get((WEIGHTED, dataset), {}).get("measured", {}).get(name)
    return f"{part['weight']:g} ({part['why']})" if part else "alone on each machine"


def _f1(figures: Mapping[tuple[str, str], Mapping[str, Any]], row: str, dataset: str, does: bool = False) -> str:
    """The figure; where there is none, what leaves a vote that `does` something out was not run."""
    value = figures.get((row, dataset), {}).get("f1")
    return f"{value:.3f}" if value is not None else "not measured" if does else "as it is"


if __name__ == "__main__":
    print(voices_table([row for file in sys.argv[1:] for row in json.loads(Path(file).read_text())["tables"]]))
