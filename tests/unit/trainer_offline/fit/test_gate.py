"""What the gate compares with: a champion only on test jobs new to it, and floors above what chance finds."""

from __future__ import annotations

import msgspec
import pytest

from detectors.metrics.bundle.bundle import ModelBundle
from detectors.metrics.bundle.members import VoteConfig
from tests.training_data import batch
from trainer_offline.data.card import DIGEST
from trainer_offline.data.grids import PrepareConfig
from trainer_offline.data.prepare import TrainingData, prepare
from trainer_offline.fit.fit import fit
from trainer_offline.fit.gate import Champion, GateConfig, GateResult, decide, gate
from trainer_offline.fit.judge import Quality, Tally

QUICK = VoteConfig(members={"pca": 1.0})
GOOD = Quality(
    events=40, found=38, judged=10_000, false_episodes=8, machine_days=10.0, accuracy=0.98, precision=38 / 46,
    recall=0.95, false_alarms_per_machine_day=0.8, by_chance=0.02,
)  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> TrainingData:
    return prepare(batch(tmp_path_factory.mktemp("jobs"), jobs=6), PrepareConfig(), workers=1)


@pytest.fixture(scope="module")
def bundle(data: TrainingData) -> ModelBundle:
    return fit(data, QUICK, 0)


def judged(data: TrainingData, champion: Champion) -> GateResult:
    return gate(champion.bundle, champion, data.test, GateConfig(), seed=0)[0]["pca"]


def test_a_champion_that_knows_no_test_job_is_compared_on_all(data: TrainingData, bundle: ModelBundle) -> None:
    known = Champion(bundle, frozenset(data.card.train_jobs), frozenset(data.card.train_digests))
    found = judged(data, known)
    assert found.beats is True
    assert not any("compared with the champion" in reason for reason in found.reasons)


def test_jobs_that_the_champion_was_trained_on_are_left_out_of_the_comparison(
    data: TrainingData, bundle: ModelBundle
) -> None:
    first = data.test[0].name
    found = judged(data, Champion(bundle, frozenset({first})))
    assert found.beats is True
    assert f"compared with the champion without {first}, which it was trained on" in found.reasons


def test_without_a_job_that_is_new_to_the_champion_there_is_no_comparison(
    data: TrainingData, bundle: ModelBundle
) -> None:
    renamed = Champion(bundle, digests=frozenset(job.digest[:DIGEST] for job in data.test))
    found = judged(data, renamed)
    assert found.beats is None
    assert any(reason.startswith("not compared with the champion") for reason in found.reasons)


def test_the_later_part_of_a_job_whose_first_part_was_learnt_is_new(data: TrainingData, bundle: ModelBundle) -> None:
    job = data.test[0]
    digest = frozenset({job.digest[:DIGEST]})
    assert Champion(bundle, frozenset({job.name}), digest).covers(job)
    assert not Champion(bundle, frozenset({job.name}), digest, before=digest).covers(job)


def test_whoever_finds_no_more_than_alarms_at_random_fails() -> None:
    found = decide(msgspec.structs.replace(GOOD, recall=0.4, found=16, by_chance=0.5), None, GateConfig())
    assert not found.passed
    assert "at random moments" in found.reasons[0]
    assert decide(GOOD, None, GateConfig()).passed


def test_what_opens_incidents_alone_may_be_wrong_less_often() -> None:
    noisy = msgspec.structs.replace(GOOD, false_episodes=40, false_alarms_per_machine_day=4.0, precision=38 / 78)
    assert decide(noisy, None, GateConfig()).passed
    assert not decide(noisy, None, GateConfig(), alone=True).passed


def test_the_card_says_which_scale_and_which_jobs(data: TrainingData, bundle: ModelBundle) -> None:
    assert set(bundle.votes) == {""}
    assert data.card.scales == {"rows without device": "one scale, that of training, for all"}
    assert len(data.card.train_digests) == len(data.card.train_jobs)


def test_where_there_is_nothing_to_find_precision_is_unknown_and_not_none_right() -> None:
    quality = Tally(Quality(judged=1_000, false_episodes=1, machine_days=1.0), right=990).done()
    assert (quality.precision, quality.recall, quality.accuracy) == (None, None, 0.99)
    assert decide(quality, None, GateConfig()).passed
