"""What the gate compares with: a champion only on test jobs new to it, and floors above what chance finds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from tests.training_data import batch
from tests.training_data import job as job_of
from trainwarden.detectors.job.samples import Entity
from trainwarden.detectors.metrics.bundle.bundle import ModelBundle
from trainwarden.detectors.metrics.bundle.members import VoteConfig
from trainwarden.trainer_offline.data.card import DIGEST, DataCard
from trainwarden.trainer_offline.data.grids import JobGrid, PrepareConfig
from trainwarden.trainer_offline.data.prepare import TrainingData, prepare
from trainwarden.trainer_offline.fit import judge
from trainwarden.trainer_offline.fit.fit import fit
from trainwarden.trainer_offline.fit.floors import GateConfig, GateResult, decide, needed
from trainwarden.trainer_offline.fit.gate import Champion, gate
from trainwarden.trainer_offline.fit.judge import Quality, Tally
from trainwarden.trainer_offline.service.train import champion_of

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


def result_of(data: TrainingData, champion: Champion) -> GateResult:
    return gate(champion.bundle, champion, data.test, GateConfig(), seed=0)[0]["pca"]


@pytest.mark.thorough
def test_a_champion_that_knows_no_test_job_is_compared_on_all(data: TrainingData, bundle: ModelBundle) -> None:
    known = Champion(bundle, frozenset(data.card.train_jobs), frozenset(data.card.train_digests))
    found = result_of(data, known)
    assert found.beats is True
    assert not any("compared with the champion" in reason for reason in found.reasons)


def test_jobs_that_the_champion_was_trained_on_are_left_out_of_the_comparison(
    data: TrainingData, bundle: ModelBundle
) -> None:
    first = data.test[0].name
    found = result_of(data, Champion(bundle, frozenset({first})))
    assert found.beats is True
    assert f"compared with the champion without {first}, which it was trained on" in found.reasons


def test_without_a_job_that_is_new_to_the_champion_there_is_no_comparison(
    data: TrainingData, bundle: ModelBundle
) -> None:
    renamed = Champion(bundle, digests=frozenset(job.digest[:DIGEST] for job in data.test))
    found = result_of(data, renamed)
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


@pytest.mark.thorough
def test_a_job_that_has_grown_is_judged_on_what_the_champion_has_not_seen(
    data: TrainingData, bundle: ModelBundle
) -> None:
    champion, job = until(data, 299, bundle), data.test[0]
    new = champion.unseen(job)
    assert new is not None
    assert [grid.times_s[0] > champion.until_s[job.name] for grid in new.grids] == [True]
    assert new.grids[0].times_s.size == job.grids[0].times_s.size - 300
    found = result_of(data, champion)
    assert found.beats is True
    assert f"compared with the champion on {job.name} after 2990 s, up to which it was trained on it" in found.reasons


@pytest.mark.thorough
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


# -- too little to tell --------------------------------------------------------------------------------------------

DEMO = Quality(  # k-means on two minutes of four ranks and their host: the last 36 seconds of each are the test
    judged=118, false_episodes=6, false_spells=1, machine_days=0.00106, accuracy=0.3,
    false_alarms_per_machine_day=5_640.0,
)  # fmt: skip


def alarms(episodes: int, spells: int, days: float) -> dict[str, Any]:
    return {"false_episodes": episodes, "false_spells": spells, "machine_days": days,
            "false_alarms_per_machine_day": episodes / days}  # fmt: skip


SURE, UNSURE, PASSES = "rejected", "provisional", "passed"
CASES: dict[str, tuple[dict[str, Any], str, str]] = {
    "everything well": ({}, PASSES, ""),
    "two of two faults found": ({"events": 2, "found": 2, "recall": 1.0, "precision": 0.2}, PASSES, ""),
    "one fault, missed": ({"events": 1, "found": 0, "recall": 0.0, "precision": 0.0}, UNSURE, "recall 0 of annotated"),
    "a hundred faults, all missed": ({"events": 100, "found": 0, "recall": 0.0}, SURE, "is below"),
    "two injected, one found": ({"injected": True, "events": 2, "found": 1, "recall": 0.5}, UNSURE, "0.12 to 0.88"),
    "ninety injected, a fifth found": ({"injected": True, "events": 90, "found": 18, "recall": 0.2}, SURE, "is below"),
    "half of a minute wrong": ({"judged": 60, "accuracy": 0.5}, UNSURE, "accuracy 0.5 may be"),
    "half of a day wrong": ({"judged": 1_440, "accuracy": 0.5}, SURE, "accuracy 0.5 is below"),
    "half of a week wrong in one spell": (
        {"judged": 10_080, "accuracy": 0.5, "events": 0, "found": 0, "recall": None, "precision": None,
         "false_spells": 1, "by_chance": None}, UNSURE, "accuracy 0.5 may be"),
    "half of a week wrong in forty": (
        {"judged": 10_080, "accuracy": 0.5, "events": 0, "found": 0, "recall": None, "precision": None,
         "false_spells": 40, "by_chance": None}, SURE, "accuracy 0.5 is below"),
    "a quarter of the time in faults that it missed": (
        {"found": 10, "recall": 0.25, "accuracy": 0.73, "missed_share": 0.26, "precision": 10 / 18}, PASSES, ""),
    "as much missed, and as much wrongly open": (
        {"accuracy": 0.3, "missed_share": 0.25, "false_spells": 40}, SURE,
        "accuracy 0.55, but for what was missed, is below"),
    "a quiet hour": (alarms(0, 0, 1 / 24), UNSURE, "may be 0 to 72 a day"),
    "a quiet half day": (alarms(0, 0, 0.5), PASSES, ""),
    "one alarm in a minute": (alarms(1, 1, 1 / 1_440), UNSURE, "may be 0 to"),
    "eighty alarms of one evening in a week": (alarms(80, 3, 7.0), UNSURE, "80 false alarms in 7 machine-days may be"),
    "eighty alarms over a week": (alarms(80, 60, 7.0), SURE, "11.4286 false alarms per machine-day are above 6"),
    "no better than chance, for sure": ({"found": 16, "recall": 0.4, "by_chance": 0.6}, SURE, "at random"),
    "no better than chance, perhaps": ({"found": 24, "recall": 0.6, "by_chance": 0.5}, UNSURE, "at random"),
    "one sure doubt and one unsure": ({"judged": 60, "accuracy": 0.5, "by_chance": 0.999}, SURE, "at random"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_floors_are_judged_by_what_the_counts_leave_open(case: str) -> None:
    changes, result, reason = CASES[case]
    found = decide(msgspec.structs.replace(GOOD, **changes), None, GateConfig())
    assert (PASSES if found.passed else UNSURE if found.provisional else SURE) == result, found.reasons
    assert reason in found.reasons[0]
    assert found.reasons[0].startswith("too little to tell: ") == (result == UNSURE)
    assert not (found.passed and found.provisional)


@pytest.mark.parametrize("alone", [False, True])
def test_two_minutes_of_a_demo_reject_nobody(alone: bool) -> None:
    found = decide(DEMO, None, GateConfig(), alone=alone)
    assert found.provisional, found.reasons
    assert decide(None, None, GateConfig()).provisional, "nothing to judge at all is too little too"


@pytest.mark.parametrize(("changes", "result"), [
    ({"events": 4, "found": 3, "recall": 0.75, "precision": 3 / 11}, UNSURE),
    ({"found": 20, "recall": 0.5, "precision": 20 / 28}, SURE),
    ({"judged": 60, "accuracy": 0.9}, UNSURE),
    ({"accuracy": 0.85}, SURE),
    ({"false_episodes": 30, "false_spells": 2, "false_alarms_per_machine_day": 3.0}, UNSURE),
    ({"false_episodes": 30, "false_alarms_per_machine_day": 3.0}, SURE),
])  # fmt: skip
def test_whoever_may_be_worse_than_the_champion_does_not_replace_it(changes: dict[str, Any], result: str) -> None:
    found = decide(msgspec.structs.replace(GOOD, **changes), GOOD, GateConfig())
    assert (found.passed, found.provisional, found.beats) == (False, result == UNSURE, False), found.reasons


@pytest.mark.parametrize(("hours", "days", "said"), [
    (0.03, 0.004, "2 minutes; 4 hours of as many machines are needed for a model, 12 hours for the ensemble"),
    (10.0, 0.6, "10 hours; 25 hours of as many machines are needed for the ensemble"),
    (10.0, 1.4, "10 hours; 11 hours of as many machines are needed for the ensemble"),
    (10.0, 1.5, None),
])  # fmt: skip
def test_what_is_needed_is_said_where_there_is_less(hours: float, days: float, said: str | None) -> None:
    found = needed(hours, days, GateConfig())
    assert found == (None if said is None else f"too little for the gate: {said}")
    quiet = msgspec.structs.replace(GOOD, machine_days=days, false_episodes=0, false_alarms_per_machine_day=0.0)
    assert decide(quiet, None, GateConfig(), alone=True).passed == (found is None), "and it is what the gate goes by"


@pytest.mark.thorough
def test_a_provisional_version_that_serves_is_judged_again(data: TrainingData, bundle: ModelBundle) -> None:
    serving = Champion(replace(bundle, provisional=frozenset({"pca"})))
    anything = GateConfig(accuracy=0.0, injected_recall=0.0, false_alarms_per_machine_day=1e6)
    found = gate(bundle, serving, data.test, anything, seed=0)[0]
    assert found["pca"].stand_in is not None
    assert found["pca"].stand_in.passed
    assert found["ensemble"].stand_in is None, "it has passed before"
    strict = gate(bundle, serving, data.test, GateConfig(accuracy=1.0, injected_recall=1.0), seed=0)[0]["pca"].stand_in
    assert strict is not None
    assert not strict.passed
    assert result_of(data, Champion(bundle)).stand_in is None


def test_where_no_false_alarm_is_allowed_no_length_is_named() -> None:
    assert (
        needed(1.0, 0.1, GateConfig(false_alarms_per_machine_day=0.0, alone_false_alarms_per_machine_day=0.0)) is None
    )


def test_alarms_of_one_hour_of_a_job_are_one_spell_on_however_many_entities() -> None:
    grid = quiet_grid(entities=3, samples=600, every_s=60.0)
    scores = np.full((3, 600), 0.1)
    for first in (100, 130, 400):
        scores[:, first : first + 5] = 0.9
    grid = replace(grid, times_s=grid.times_s + 3_600.0 * 7 - 60.0)  # it begins a minute before a full hour
    tallies: dict[str, Tally] = {}
    judge._take(tallies, "job", grid, {"pca": scores}, grid.fault)
    quality = tallies["pca"].done()
    assert (quality.false_episodes, quality.false_spells) == (9, 3), "100 and 130 minutes are in two hours"
    again = replace(grid, family="host")
    judge._take(tallies, "job", again, {"pca": scores}, grid.fault)
    assert tallies["pca"].done().false_spells == 3, "another family of the same job at the same time"


def test_every_injected_anomaly_is_judged_as_if_it_were_the_only_one() -> None:
    """A tenth of the time is injected; a vote that learns what is usual would take that for usual."""
    grid = quiet_grid(entities=1, samples=10_000, every_s=60.0)
    labels = np.zeros(10_000, dtype=np.bool_)
    for first in range(60, 9_900, 300):
        labels[first : first + 30] = True
    scores = np.where(labels, 0.46, 0.1)[None]
    tallies: dict[str, Tally] = {}
    judge._take_injected(tallies, grid, {"pca": scores}, labels)
    assert (tallies["pca"].quality.found, tallies["pca"].quality.events) == (33, 33)


def quiet_grid(entities: int, samples: int, every_s: float) -> JobGrid:
    yes, no = np.ones(samples, dtype=np.bool_), np.zeros(samples, dtype=np.bool_)
    return JobGrid(
        family="gpu", names=("a",), entities=tuple(Entity("n", f"g{one}", one) for one in range(entities)),
        roles=("",) * entities, every_s=every_s, times_s=every_s * np.arange(samples),
        values=np.zeros((entities, 1, samples)), normal=yes, quiet=yes, fault=no,
    )  # fmt: skip


def test_what_was_missed_of_a_fault_is_counted_apart(data: TrainingData, bundle: ModelBundle) -> None:
    """Nobody has said a word in a fault of a hundred samples that looks like everything else."""
    job = data.test[0]
    grids = []
    for grid in job.grids:
        fault = np.zeros(grid.times_s.size, dtype=np.bool_)
        fault[200:300] = True
        grids.append(replace(grid, fault=fault, quiet=grid.quiet & ~fault, normal=grid.normal & ~fault))
    quality = judge.judge(bundle, [replace(job, grids=grids)], 8.0, 0)["pca"].quality
    assert quality.found == 0
    assert quality.missed_share == pytest.approx(100 / quality.judged, abs=1e-3)
    assert quality.accuracy is not None
    assert quality.accuracy <= 1.0 - quality.missed_share
