"""A job teaches models by its own healthy start; they weigh little, and give way to trained ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future

import msgspec
import numpy as np
import pytest

from trainwarden.detectors.configured_detectors import chosen
from trainwarden.detectors.job.board import MetricBuffer
from trainwarden.detectors.job.samples import Entity, FamilySamples
from trainwarden.detectors.job.state import JobState
from trainwarden.detectors.job_monitor import JobMonitor
from trainwarden.detectors.metrics.bundle.bundle import ModelBundle
from trainwarden.detectors.metrics.scores import MetricScorer
from trainwarden.detectors.own_models import own_models
from trainwarden.detectors.own_models.learner import Learner, from_bytes, learnt, packed, to_bytes, unpacked
from trainwarden.detectors.own_models.own_models import STAGES, OwnModels
from trainwarden.detectors.protocol import Role
from trainwarden.detectors.verdict.ensemble import Ensemble
from trainwarden.detectors.verdict.rule import EnsembleConfig
from trainwarden.errors import DetectorError
from trainwarden.records import IncidentRecord, MetricsRecord, Suspect, VerdictRecord, Vote
from trainwarden.self_metrics import SelfMetrics
from trainwarden.settings import DetectionSettings

NAMES = ("rank_cpu_ratio", "rank_run_queue_wait_ratio", "rank_resident_memory_bytes")
NAMED = ("lof", "neighbor_profile", "dtw")


def told(first: int, last: int, ranks: int = 4, sick: bool = False) -> Iterator[MetricsRecord]:
    """One record a second."""
    for second in range(first, last):
        values = np.random.default_rng(second).normal(0.5, 0.05, (len(NAMES), ranks))
        if sick:
            values[:, 1] += 3.0
        yield MetricsRecord(
            job="job", node="n", time_s=1e6 + second, devices=tuple(f"rank-{rank}" for rank in range(ranks)),
            names=NAMES, values=tuple(map(tuple, values.tolist())), ranks=tuple(range(ranks)),
        )  # fmt: skip


class Lessons:
    """What is to be learnt, and futures that the test fulfils."""

    def __init__(self) -> None:
        self.asked: list[Sequence[FamilySamples]] = []
        self.futures: list[Future[ModelBundle]] = []

    def learn(self, samples: Sequence[FamilySamples]) -> Future[ModelBundle]:
        self.asked.append(samples)
        self.futures.append(Future())
        return self.futures[-1]


def at_once(samples: Sequence[FamilySamples]) -> Future[ModelBundle]:
    found: Future[ModelBundle] = Future()
    found.set_result(learnt(samples))
    return found


def fed(board: MetricBuffer, own: OwnModels, first: int, last: int, *, calm: bool = True) -> None:
    for record in told(first, last):
        board.feed(record)
        own.follow(board, calm)


@pytest.fixture(scope="module")
def bundle() -> ModelBundle:
    board = MetricBuffer()
    before = board.counts()
    for record in told(0, 30):
        board.feed(record)
    return learnt(board.after(before, 24, 24, 64))


def test_the_first_healthy_samples_are_learnt_from_and_again_when_there_are_more(bundle):
    lessons, board = Lessons(), MetricBuffer()
    own = OwnModels(lessons.learn)
    fed(board, own, 0, 25)
    (first,) = lessons.asked[0]
    assert first.family == "rank"
    assert first.values.shape == (4, 3, 24)
    lessons.futures[0].set_result(bundle)
    assert own.follow(board, calm=True) is bundle
    fed(board, own, 25, 130)
    assert lessons.asked[1][0].values.shape == (4, 3, STAGES[1])
    lessons.futures[1].set_result(bundle)
    own.follow(board, calm=True)
    fed(board, own, 130, 400)
    assert len(lessons.asked) == 2


def test_what_came_before_an_incident_was_over_is_not_learnt_from(bundle):
    lessons, board = Lessons(), MetricBuffer()
    own = OwnModels(lessons.learn)
    fed(board, own, 0, 20)
    fed(board, own, 20, 40, calm=False)
    fed(board, own, 40, 60)
    assert not lessons.asked
    fed(board, own, 60, 66)
    assert lessons.asked[0][0].times_s.min() > 1e6 + 39


def test_what_was_learnt_just_before_an_incident_does_not_count(bundle):
    """The first seconds of a fault may be in it."""
    lessons, board = Lessons(), MetricBuffer()
    own = OwnModels(lessons.learn)
    fed(board, own, 0, 25)
    own.follow(board, calm=False)
    lessons.futures[0].set_result(bundle)
    fed(board, own, 25, 40)
    assert own.bundle is None
    fed(board, own, 40, 70)
    assert len(lessons.asked) == 2


def test_why_there_are_none_is_said():
    lessons, board = Lessons(), MetricBuffer()
    own = OwnModels(lessons.learn)
    assert own.why == "no trained model; the job's own start is learnt from after 24 healthy samples"
    fed(board, own, 0, 25)
    assert own.why == "no trained model; the job's own start is being learnt from"
    lessons.futures[0].set_exception(DetectorError("no metric is worth keeping"))
    own.follow(board, calm=True)
    assert own.why == "nothing could be learnt from the job's own start: no metric is worth keeping"
    assert OwnModels(None).why == ""


def test_more_than_can_be_scored_in_time_is_not_learnt_from(monkeypatch):
    monkeypatch.setattr(own_models, "MOST_PER_S", 0.5)
    lessons, board = Lessons(), MetricBuffer()
    own = OwnModels(lessons.learn)
    fed(board, own, 0, 130)
    assert not lessons.asked
    assert "take too long" in own.why


def test_where_too_many_come_every_few_samples_are_learnt_from_and_scored(monkeypatch):
    monkeypatch.setattr(own_models, "MOST_PER_S", 2.0)
    lessons, board = Lessons(), MetricBuffer()
    own = OwnModels(lessons.learn)
    fed(board, own, 0, 30)
    assert not lessons.asked
    assert "after 120 healthy samples" in own.why
    fed(board, own, 30, 125)
    ((one,),) = lessons.asked
    assert one.values.shape == (4, 3, 60)
    assert set(np.diff(one.times_s, axis=1).ravel()) == {2.0}
    learnt_from = learnt([one])
    pace = learnt_from.votes["rank"].pace
    assert pace is not None
    assert pace.fastest_s == 2.0
    scorer, places = MetricScorer(learnt_from), []
    board.pop_new()
    for record in told(125, 165):
        board.feed(record)
        (scored,) = scorer.score(board.pop_new(), record.time_s)
        places.append(np.isfinite(scored.scores["zlength"]).all())
    assert sum(places) == 20
    assert places[:6] == [True, False, True, False, True, False]


def test_of_a_counter_that_is_thinned_the_mean_is_learnt(monkeypatch):
    monkeypatch.setattr(own_models, "MOST_PER_S", 0.5)
    values = np.arange(96.0).reshape(1, 1, 96).repeat(2, axis=1)
    times_s, names = np.arange(96.0)[None], ("gpu_energy_joules", "gpu_power_watts")
    one = FamilySamples("gpu", names, np.array([1]), (Entity("n", "0"),), ("",), values, times_s)
    shown = own_models.shown(one)
    assert shown is not None
    assert shown.values[0, :, :2].tolist() == [[1.5, 5.5], [3.0, 7.0]]
    assert shown.times_s[0, :2].tolist() == [3.0, 7.0]


def test_the_named_methods_are_learnt(bundle):
    assert set(NAMED) <= bundle.versions.keys()
    assert all(version.startswith("own-") for version in bundle.versions.values())


def test_models_are_kept_as_data_and_damage_is_refused(bundle):
    kept = to_bytes(bundle)
    assert from_bytes(kept).versions == bundle.versions
    for damaged in (b"", b"garbage", kept[:-9], kept[: len(kept) // 2]):
        with pytest.raises(DetectorError):
            from_bytes(damaged)


def test_samples_reach_the_learner_as_they_are():
    board = MetricBuffer()
    for record in told(0, 30):
        board.feed(record)
    (one,) = board.after({}, 24, 24, 2)
    (other,) = unpacked(packed([one]))
    assert other.names == one.names
    np.testing.assert_array_equal(other.values, one.values)
    assert one.rows.tolist() == [0, 3]


def watch_of(learn, bundle: ModelBundle | None = None) -> JobMonitor:
    detectors = {name: choice.made() for name, choice in chosen(DetectionSettings()).items()}
    return JobMonitor("job", detectors, EnsembleConfig(), SelfMetrics("test"), bundle, learn=learn)


def verdicts(watch: JobMonitor, first: int, last: int, *, sick: bool = False) -> list[VerdictRecord | IncidentRecord]:
    found = []
    for record in told(first, last, sick=sick):
        watch.state.feed(record)
        found += watch.score(record.time_s)
    return [one for one in found if isinstance(one, VerdictRecord | IncidentRecord)]


@pytest.mark.thorough
def test_a_job_without_trained_models_has_votes_after_half_a_minute_also_after_a_change_of_service(bundle):
    watch = watch_of(at_once)
    early = verdicts(watch, 0, 20)[-1]
    assert early.votes["lof"].reason == "no trained model; the job's own start is learnt from after 24 healthy samples"
    late = verdicts(watch, 20, 70)[-1]
    assert {name: late.votes[name].opinion for name in NAMED} == dict.fromkeys(NAMED, "normal")
    assert late.model_versions.keys() >= set(NAMED)
    other = watch_of(None)
    other.restore(watch.snapshot())
    assert verdicts(other, 70, 75)[-1].votes == verdicts(watch, 70, 75)[-1].votes


@pytest.mark.thorough
def test_trained_models_take_the_place_of_a_jobs_own(bundle):
    watch = watch_of(at_once)
    verdicts(watch, 0, 30)
    trained = ModelBundle(bundle.votes, {"kmeans": "7"})
    watch.scorer.swap(trained)
    assert verdicts(watch, 30, 60)[-1].model_versions == {"kmeans": "7"}
    assert watch.scorer.bundle is trained


def test_all_models_of_a_jobs_own_together_open_nothing_with_one_other_vote():
    names = ("metric_mean", "lof", "pca", "metric_change", "peers", "still")
    roles = {name: Role(reads="samples" if name in names[-2:] else "scores") for name in names}
    ensemble = Ensemble(EnsembleConfig(), roles)
    suspects = (Suspect(score=0.9, reason="r", rank=3),)
    vote = Vote(opinion="anomalous", score=0.9, kind="metric_anomaly", severity="sev3", reason="r", suspects=suspects)
    window = JobState("job").window(1.0)
    assert ensemble.candidates(window, dict.fromkeys(names[:-2], vote))
    models = dict.fromkeys(names[:-2], msgspec.structs.replace(vote, provisional=True))
    assert not ensemble.candidates(window, models)
    assert not ensemble.candidates(window, {**models, "peers": vote})
    assert ensemble.candidates(window, {"still": vote, "peers": vote})


@pytest.mark.thorough
def test_a_process_of_its_own_learns_within_bounds(bundle):
    board = MetricBuffer()
    for record in told(0, 30):
        board.feed(record)
    samples = board.after({}, 24, 24, 64)
    learner = Learner()
    assert learner.learn(samples).result(timeout=120).versions == learnt(samples).versions
    with pytest.raises(DetectorError, match="nothing to learn from"):
        learner.learn([]).result(timeout=120)
    learner.close()
    with pytest.raises(DetectorError, match="the service ends"):
        learner.learn(samples).result(timeout=120)
