"""The sentences of methods 10 about what models learn from and who may serve; those about data are in test_prepare."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pandas as pd
import pytest

from tests.training_data import EVERY_S, annotate, batch
from trainwarden.detectors.metrics.bundle.members import VoteConfig
from trainwarden.trainer_offline.data.grids import PrepareConfig
from trainwarden.trainer_offline.data.prepare import prepare
from trainwarden.trainer_offline.fit.fit import fit
from trainwarden.trainer_offline.fit.floors import GateConfig, decide
from trainwarden.trainer_offline.fit.judge import Quality

QUICK = VoteConfig(members={"pca": 1.0, "kmeans": 1.0})
WRONG_FROM, WRONG_TO = 100, 160
CHAMPION = Quality(
    events=40, found=38, judged=10_000, false_episodes=8, machine_days=10.0, accuracy=0.98, precision=38 / 46,
    recall=0.95, false_alarms_per_machine_day=0.8,
)  # fmt: skip
WORSE = {
    "recall": {"found": 20, "recall": 0.5},
    "accuracy": {"accuracy": 0.9},
    "precision": {"found": 36, "recall": 0.9, "false_episodes": 13, "precision": 36 / 49},
    "false alarms": {"false_episodes": 30, "precision": 38 / 68, "false_alarms_per_machine_day": 3.0},
}
BELOW = {
    "recall 0.01 of annotated faults": {"events": 400, "found": 4, "recall": 0.01, "precision": 4 / 12},
    "accuracy 0.5": {"accuracy": 0.5},
    "precision 0.01": {"found": 8, "false_episodes": 792, "machine_days": 1_000.0, "precision": 0.01},
    "20 false alarms per machine-day": {"false_episodes": 200, "false_alarms_per_machine_day": 20.0},
}


def versions(folder: Path) -> dict[str, str]:
    """Content hash of every model fitted on what `folder` holds."""
    data = prepare(folder, PrepareConfig(), workers=1)
    assert "job0" in data.card.train_jobs
    return dict(fit(data, QUICK, 0).versions)


def with_a_wild_stretch(folder: Path, size: float) -> Path:
    """Four jobs; in a stretch of the first one power jumps about by `size`."""
    batch(folder, jobs=4, rows=300)
    table = pd.read_csv(folder / "job0" / "metrics.csv")
    wild = table.time_s.between(WRONG_FROM * EVERY_S, WRONG_TO * EVERY_S, inclusive="left")
    table.loc[wild, "power"] += size * np.random.default_rng(3).normal(size=int(wild.sum()))
    table.to_csv(folder / "job0" / "metrics.csv", index=False)
    return folder


@pytest.mark.thorough
@pytest.mark.parametrize("label", ["fault,slow_link", "ignore,"])
def test_models_learn_from_normal_rows_alone(label: str, tmp_path: Path) -> None:
    stretch = f"job0,{WRONG_FROM * EVERY_S},{WRONG_TO * EVERY_S},{label},,"
    # All have a fault, so which job is the test does not hang on the label of this one.
    others = [f"job{number},2500,2600,fault,hang,," for number in range(4)]
    found = []
    for size in (0.0, 500.0):
        folder = with_a_wild_stretch(tmp_path / str(size), size)
        annotate(folder, stretch, *others)
        found.append(versions(folder))
    assert found[0] == found[1], "what happens in a stretch that is not normal changes no model"
    annotate(folder, *others)
    assert versions(folder) != found[1], "without the annotation it does"


def test_one_spike_on_a_fast_switching_metric_is_filtered_and_on_another_is_scored(tmp_path: Path) -> None:
    vote = fit(prepare(batch(tmp_path, rows=300), PrepareConfig(), workers=1), QUICK, 0).votes[""]
    quiet = np.zeros((1, len(vote.preparation.names), 60))
    usual = vote.score(quiet).members["kmeans"]
    for name, filtered in (("traffic", True), ("power", False)):
        spike = quiet.copy()
        spike[0, vote.preparation.names.index(name), -1] = 500.0
        score = vote.score(spike).members["kmeans"]
        assert (score == usual).all() if filtered else (score > usual + 0.2).all(), name


def test_what_is_no_worse_than_the_champion_passes() -> None:
    assert decide(CHAMPION, CHAMPION, GateConfig()).passed
    luckless = msgspec.structs.replace(CHAMPION, false_episodes=10, precision=38 / 48, recall=0.92, accuracy=0.96)
    found = decide(luckless, CHAMPION, GateConfig())
    assert (found.passed, found.beats) == (True, True), found.reasons


@pytest.mark.parametrize("what", WORSE)
def test_whoever_is_worse_than_the_champion_in_one_of_four_ways_fails(what: str) -> None:
    worse = msgspec.structs.replace(CHAMPION, **WORSE[what])
    assert decide(worse, None, GateConfig()).passed, "it is above every floor"
    found = decide(worse, CHAMPION, GateConfig())
    assert (found.passed, found.beats) == (False, False)
    assert any(f"worse than the champion: {what}" in one or f" {what} against" in one for one in found.reasons), found


@pytest.mark.parametrize("what", BELOW)
def test_whoever_is_below_one_of_four_floors_fails_without_a_champion(what: str) -> None:
    found = decide(msgspec.structs.replace(CHAMPION, **BELOW[what]), None, GateConfig())
    assert not found.passed
    assert len(found.reasons) == 2, "one failure, and what was judged"
    assert what in found.reasons[0]


def test_numbers_of_the_gate_travel_with_the_result() -> None:
    metrics = decide(CHAMPION, None, GateConfig()).metrics
    assert {"precision", "recall", "accuracy", "false_alarms_per_machine_day", "delay_s"} <= metrics.keys()
    assert decide(None, CHAMPION, GateConfig()).reasons == ["the test jobs gave it nothing to judge"]
