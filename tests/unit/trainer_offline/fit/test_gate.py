"""What the gate compares with: a champion only on test jobs new to it, and floors above what chance finds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from detectors.metrics.bundle.bundle import ModelBundle
from detectors.metrics.bundle.members import VoteConfig
from tests.training_data import batch
from tests.training_data import job as job_of
from trainer_offline.data.card import DIGEST, DataCard
from trainer_offline.data.grids import PrepareConfig
from trainer_offline.data.prepare import TrainingData, prepare
from trainer_offline.fit.fit import fit
from trainer_offline.fit.gate import CONFIDENCE, Champion, GateConfig, GateResult, decide, gate, most_by_chance
from trainer_offline.fit.judge import Quality, Tally
from trainer_offline.service.train import champion_of

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


# -- a job that has grown ------------------------------------------------------------------------------------------


def until(data: TrainingData, sample: int, bundle: ModelBundle) -> Champion:
    name = data.test[0].name
    return Champion(bundle, frozenset({name}), until_s={name: float(data.test[0].grids[0].times_s[sample])})


def test_a_job_that_has_grown_is_judged_on_what_the_champion_has_not_seen(
    data: TrainingData, bundle: ModelBundle
) -> None:
    champion, job = until(data, 299, bundle), data.test[0]
    new = champion.unseen(job)
    assert new is not None
    assert [grid.times_s[0] > champion.until_s[job.name] for grid in new.grids] == [True]
    assert new.grids[0].times_s.size == job.grids[0].times_s.size - 300
    found = judged(data, champion)
    assert found.beats is True
    assert f"compared with the champion on {job.name} after 2990 s, up to which it was trained on it" in found.reasons


def test_what_the_champion_has_seen_does_not_count_for_it(data: TrainingData, bundle: ModelBundle) -> None:
    """A champion that is blind but for what it was trained on: alarms in what it has seen must not matter."""
    champion, job = until(data, 299, bundle), data.test[0]
    grid = job.grids[0]
    values = grid.values.copy()
    values[:, :, 100:130] += 1e3 * np.abs(values[:, :, :1])
    odd = replace(job, grids=[replace(grid, values=values)], digest="0" * 64)
    plain = gate(bundle, champion, [job], GateConfig(), seed=0)[0]["pca"]
    found = gate(bundle, champion, [odd], GateConfig(), seed=0)[0]["pca"]
    assert found.beats is True
    said = [[reason for reason in one.reasons if reason.startswith("champion on")] for one in (plain, found)]
    assert said[0] == said[1] != []


def test_a_few_new_samples_are_no_comparison(data: TrainingData, bundle: ModelBundle) -> None:
    champion = until(data, -30, bundle)
    assert champion.covers(data.test[0])
    alone = gate(bundle, champion, data.test[:1], GateConfig(), seed=0)[0]["pca"]
    assert alone.beats is None
    assert any(reason.startswith("not compared with the champion") for reason in alone.reasons)


def test_the_card_says_until_when_each_job_was_learnt_from(tmp_path: Path) -> None:
    only = prepare(job_of(tmp_path / "only", 0), PrepareConfig(), workers=1)
    champion = champion_of(fit(only, QUICK, 0), [only.card])
    assert only.card.train_until_s == {"only": float(only.train[0].grids[0].times_s[-1])}
    assert champion.unseen(only.test[0]) is only.test[0]
    grown = prepare(job_of(tmp_path / "more" / "only", 0, rows=900), PrepareConfig(), workers=1)
    assert champion.unseen(grown.test[0]) is grown.test[0], "the test of more data lies after what was learnt of less"
    whole = replace(grown.test[0], grids=[one.grids[0] for one in (grown.train[0],)])
    part = champion.unseen(whole)
    assert part is None or part.grids[0].times_s[0] > only.card.train_until_s["only"]


def test_of_parts_of_several_runs_the_latest_time_counts_and_unknown_is_all(bundle: ModelBundle) -> None:
    cards = [card(train_until_s={"a": 5.0}), card(train_until_s={"a": 9.0})]
    assert champion_of(bundle, cards).until_s == {"a": 9.0}
    assert champion_of(bundle, [*cards, card()]).until_s == {}


def card(**known: Any) -> DataCard:
    return DataCard(hash="", jobs=1, rows=1, hours=1.0, train_jobs=["a"], test_jobs=[], split="by job", train_rows=1,
                    test_rows=1, **known)  # fmt: skip


@pytest.mark.thorough
def test_what_chance_gives_is_scipys_quantile_of_the_poisson_distribution() -> None:
    from scipy.stats import poisson

    grid = np.concatenate([np.linspace(1e-9, 30.0, 4_001), np.geomspace(30.0, 1e9, 500)])
    # Where the distribution itself is just as high as asked for, rounding decides.
    edges = [float(one) for one in poisson.isf(1.0 - CONFIDENCE, np.linspace(0.05, 20.0, 200))]
    for expected in (*grid.tolist(), *edges, 0.05129329438755058):
        assert most_by_chance(expected) == (int(poisson.ppf(CONFIDENCE, expected)) if expected else 0), expected
    assert most_by_chance(0.0) == most_by_chance(-1.0) == 0
