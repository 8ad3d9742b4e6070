"""The votes of the trained models: opening, closing, suspects, abstention, and agreement about one entity."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

from tests.doubles import ManualClock
from trainwarden.detectors.configured_detectors import chosen
from trainwarden.detectors.job.samples import Entity, ScoredSamples
from trainwarden.detectors.job.state import JobState
from trainwarden.detectors.job.window import Window
from trainwarden.detectors.job_monitor import JobMonitor, seen
from trainwarden.detectors.metrics.bundle.bundle import ModelBundle
from trainwarden.detectors.metrics.bundle.members import VoteConfig
from trainwarden.detectors.metrics.scores import NO_MODELS
from trainwarden.detectors.metrics.vote import ModelVoteConfig
from trainwarden.detectors.metrics.votes import MetricMeanVote, PcaVote
from trainwarden.detectors.service import DetectionHandler
from trainwarden.detectors.verdict.ensemble import Ensemble
from trainwarden.detectors.verdict.rule import EnsembleConfig
from trainwarden.errors import ConfigError, DetectorError
from trainwarden.records import IncidentRecord, MetricsRecord, Suspect, VerdictRecord, Vote
from trainwarden.self_metrics import SelfMetrics
from trainwarden.settings import DetectionSettings, parse

CONFIG = ModelVoteConfig(threshold=0.5, open_samples=2, close_samples=3)
ROLES = {name: choice.role for name, choice in chosen(DetectionSettings()).items()}


def window(*scored: ScoredSamples, unscored: dict[str, str] | None = None, **more: Any) -> Window:
    found = {"scored": scored, "unscored": unscored or {}, "model_versions": {"pca": "v1"}} | more
    return replace(JobState("job").window(0.0), **found)


def scored(
    scores: Any, start_s: float = 0.0, family: str = "gpu", ensemble: Any = None, every_s: float = 60.0
) -> ScoredSamples:
    array = np.array(scores, dtype=float)
    count, fresh = array.shape
    return ScoredSamples(
        family=family,
        rows=np.arange(count),
        entities=tuple(Entity(f"n{one // 2}", f"GPU-{one}", one) for one in range(count)),
        times_s=np.tile(start_s + every_s * np.arange(fresh), (count, 1)),
        scores={"pca": array},
        ensemble=array if ensemble is None else np.array(ensemble, dtype=float),
        blamed=lambda row, sample: (f"metric-{row}-{sample}", "twin"),
    )


def after(*windows: Window, config: ModelVoteConfig = CONFIG) -> tuple[PcaVote, Vote]:
    detector = PcaVote(config)
    vote = Vote(opinion="abstain")
    for one in windows:
        detector.update(one)
        vote = detector.score(one)
    return detector, vote


def test_one_strange_sample_is_not_enough_and_two_of_three_are() -> None:
    assert after(window(scored([[0.1, 0.9, 0.1, 0.1, 0.9]])))[1].opinion == "normal"
    vote = after(window(scored([[0.1, 0.9, 0.1, 0.8]])))[1]
    assert vote.opinion == "anomalous"
    assert (vote.kind, vote.severity, vote.onset_s, vote.score, vote.threshold) == (
        "metric_anomaly",
        "sev3",
        60.0,
        0.9,
        0.5,
    )
    (suspect,) = vote.suspects
    assert (suspect.rank, suspect.node, suspect.device, suspect.score) == (0, "n0", "GPU-0", 0.9)
    assert vote.metrics == ("metric-0-1", "twin")
    assert "rank 0" in vote.reason
    assert "metric-0-1" in vote.reason


def test_it_closes_after_a_calm_stretch_and_the_next_onset_is_new() -> None:
    assert after(window(scored([[0.9, 0.9, 0.1, 0.1]])))[1].opinion == "anomalous"
    assert after(window(scored([[0.9, 0.9, 0.1, 0.1, 0.1]])))[1].opinion == "normal"
    vote = after(window(scored([[0.9, 0.9, 0.1, 0.1, 0.1, 0.6, 0.6]])))[1]
    assert (vote.onset_s, vote.score) == (300.0, 0.6)


def test_a_device_that_is_not_measured_any_more_is_not_anomalous_for_ever() -> None:
    nan = float("nan")
    sick = window(scored([[0.9, 0.9], [0.1, 0.1]]), end_s=60.0)
    soon = window(scored([[nan], [0.1]], start_s=120.0), end_s=360.0)
    detector, vote = after(sick, soon)
    assert vote.opinion == "anomalous"
    again = PcaVote(CONFIG)
    again.restore(detector.state())
    later = window(end_s=30 * 86_400.0)
    again.update(later)
    assert again.score(later).opinion == "abstain"
    assert again.score(later).reason == "no sample of late that the model could judge"


def test_gaps_neither_open_nor_close() -> None:
    gap = float("nan")
    assert after(window(scored([[0.9, gap, gap, 0.9]])))[1].opinion == "anomalous"
    assert after(window(scored([[0.9, 0.9, 0.1, gap, gap, gap, 0.1]])))[1].opinion == "anomalous"


def test_what_is_lost_while_samples_come_is_told_for_ten_of_them() -> None:
    gap = float("nan")
    for gaps, opinion in ((9, "anomalous"), (10, "abstain")):
        scores = [[0.9, 0.9, *[gap] * gaps]]
        assert after(window(scored(scores)))[1].opinion == opinion
        one_by_one = [window(scored([[one]], start_s=60.0 * place)) for place, one in enumerate(scores[0])]
        assert after(*one_by_one)[1].opinion == opinion
        assert bool(CONFIG.opened(np.array(scores), np.full(gaps + 2, 0.5))[0, -1]) == (opinion == "anomalous")
    back = window(scored([[0.9, 0.9, *[gap] * 12, 0.9]]))
    assert after(back)[1].opinion == "normal"


def test_samples_that_are_left_out_are_not_lost() -> None:
    one = scored([[0.9, 0.9, *[float("nan")] * 30]])
    left_out = replace(one, times_s=np.where(np.isnan(one.scores["pca"]), np.nan, one.times_s))
    assert after(window(left_out))[1].opinion == "anomalous"


@pytest.mark.parametrize(("every_s", "silent_s"), [(1.0, 30.0), (60.0, 600.0)])
def test_a_score_ends_with_its_samples(every_s: float, silent_s: float) -> None:
    for passed_s, opinion in ((silent_s - 1.0, "anomalous"), (silent_s + 1.0, "abstain")):
        sick = window(scored([[0.9] * 30], every_s=every_s), end_s=1000.0)
        assert after(sick, window(end_s=1000.0 + passed_s))[1].opinion == opinion


def test_how_samples_are_cut_into_windows_changes_nothing() -> None:
    random = np.random.default_rng(0)
    scores = random.uniform(0.0, 1.0, (5, 40)) * (random.uniform(size=(5, 40)) < 0.5)
    whole = after(window(scored(scores)))[0]
    parts = [window(scored(scores).until(first, first + 4)) for first in range(0, 40, 4)]
    detector, vote = after(*parts)
    expected = whole.score(window())
    assert (vote.opinion, vote.onset_s, [one.rank for one in vote.suspects]) == (
        expected.opinion, expected.onset_s, [one.rank for one in expected.suspects],
    )  # fmt: skip
    restored = PcaVote(CONFIG)
    restored.restore(detector.state())
    assert restored.score(window()) == vote
    assert restored.state() == detector.state()


def test_the_second_round_of_a_window_counts_nothing_twice() -> None:
    first = window(scored([[0.1, 0.9]]))
    detector, _ = after(first)
    again = seen(first)
    detector.update(again)
    assert detector.score(again).opinion == "normal"


def test_suspects_are_ordered_by_the_whole_vote_and_bounded() -> None:
    scores = np.full((40, 3), 0.9)
    whole = scored(scores, ensemble=np.linspace(0.5, 0.8, 40)[:, None] * np.ones(3))
    vote = after(
        window(whole), config=ModelVoteConfig(threshold=0.5, open_samples=2, close_samples=3, common_share=1.0)
    )[1]
    assert [one.rank for one in vote.suspects] == list(range(39, 23, -1))
    assert "and 39 more" in vote.reason
    assert vote.metrics[0].startswith("metric-39")


def test_nobody_is_accused_of_what_most_of_a_family_begin_at_once() -> None:
    """Three of five differ from the third sample on, and stay so; one more has a fault of its own before or after."""
    calm, strange = [0.1] * 12, [0.1] * 2 + [0.9] * 10
    vote = after(window(scored([strange, strange, strange, calm, calm])))[1]
    assert (vote.opinion, vote.score, "at once" in vote.reason) == ("normal", 0.9, True)
    assert after(window(scored([strange, strange, calm, calm, calm])))[1].opinion == "anomalous"
    assert after(window(scored([strange])))[1].opinion == "anomalous"
    begun = [0.9] * 12
    (suspect,) = after(window(scored([begun, strange, strange, strange, calm])))[1].suspects
    assert suspect.rank == 0
    over = [0.1] * 2 + [0.9] * 2 + [0.1] * 8
    later = [0.1] * 10 + [0.9] * 2
    vote = after(window(scored([over, over, over, later, calm])))[1]
    assert [one.rank for one in vote.suspects] == [3]
    once = [0.1] * 2 + [0.9] + [0.1] * 9  # an older single sample is anybody's
    vote = after(window(scored([strange, once, once, once, calm]).until(0, 4)))[1]
    assert [one.rank for one in vote.suspects] == [0]
    few = [window(scored([strange, strange, strange, calm, calm]).until(at, at + 1)) for at in range(12)]
    detector, vote = after(*few)
    assert vote.opinion == "normal"
    again = PcaVote(CONFIG)
    again.restore(detector.state())
    assert again.score(window()) == vote


def test_of_a_large_cluster_a_sample_has_to_be_rarer() -> None:
    few, many = np.full((16, 3), 0.1), np.full((4096, 3), 0.1)
    few[3] = many[3] = 0.53
    assert after(window(scored(few)))[1].opinion == "anomalous"
    vote = after(window(scored(many)))[1]
    assert vote.opinion == "normal"
    assert vote.threshold > 0.53
    many[3] = 0.7
    assert [one.rank for one in after(window(scored(many)))[1].suspects] == [3]


def test_of_frequent_samples_one_has_to_be_rarer_however_they_are_cut() -> None:
    scores = np.full((1, 12), 0.1)
    scores[0, 6:] = 0.53
    assert after(window(scored(scores)))[1].opinion == "anomalous"
    detector, vote = after(window(scored(scores, every_s=1.0)))
    assert (vote.opinion, vote.threshold > 0.53) == ("normal", True)
    parts = [window(scored(scores[:, one : one + 1], start_s=float(one))) for one in range(12)]
    again, cut = after(*parts)
    assert (cut.opinion, cut.threshold) == (vote.opinion, pytest.approx(vote.threshold))
    assert again.state() == detector.state()


@pytest.mark.parametrize(
    ("one", "reason"),
    [
        (window(unscored=None, model_versions={}), "no metrics to score yet"),
        (replace(window(), unscored=None), NO_MODELS),
        (window(unscored={"gpu": "3 of the 4 metrics are missing"}), "3 of the 4 metrics are missing"),
        (window(model_versions={"lof": "v1"}), "no pca model was trained"),
        (window(scored([[np.nan, np.nan]])), PcaVote.silence),
    ],
)
def test_abstention_says_why(one: Window, reason: str) -> None:
    vote = after(one)[1]
    assert (vote.opinion, vote.reason) == ("abstain", reason)


def test_damaged_state_is_refused() -> None:
    state = after(window(scored([[0.9, 0.9]])))[0].state()
    with pytest.raises(DetectorError):
        PcaVote(CONFIG).restore(state[:-30])


def named(*suspects: tuple[int | None, str | None, str | None]) -> Vote:
    found = tuple(Suspect(score=0.9, reason="r", rank=rank, node=node, device=dev) for rank, node, dev in suspects)
    return Vote(opinion="anomalous", score=0.9, kind="metric_anomaly", severity="sev3", reason="r", suspects=found)


def believed(votes: dict[str, Vote], **config: Any) -> list[list[int | None]]:
    found = Ensemble(EnsembleConfig(**config), ROLES).candidates(window(phase=""), votes)
    return [[suspect.rank for suspect in one.suspects] for one in found]


def test_models_must_agree_about_the_same_entity() -> None:
    one, other = named((0, "n0", "GPU-0")), named((1, "n0", "GPU-1"))
    assert believed({"dtw": one, "metric_change": other}) == []
    assert believed({"dtw": one, "metric_change": one}) == [[0]]
    both = named((1, "n0", "GPU-1"), (0, "n0", "GPU-0"))
    assert believed({"dtw": both, "metric_change": one}) == [[0]]


def test_rank_and_device_are_each_enough_to_be_the_same_and_a_node_is_not() -> None:
    assert believed({"dtw": named((0, "n0", "GPU-0")), "metric_change": named((0, "n0", None))}) == [[0, 0]]
    assert believed({"dtw": named((None, "n0", "eth0")), "metric_change": named((None, "n0", "eth0"))}) == [[None]]
    assert believed({"dtw": named((None, "n0", "eth0")), "metric_change": named((None, "n1", "eth0"))}) == []
    assert believed({"dtw": named((None, "n0", "eth0")), "metric_change": named((None, "n0", None))}) == []


def test_weights_are_summed_for_each_entity_and_abstention_is_no_no() -> None:
    one = named((0, "n0", None))
    silent = Vote(opinion="abstain", reason="warm-up")
    assert believed({"kmeans": one, "pca": one, "nearest": one}) == []
    assert believed({"kmeans": one, "pca": one, "metric_change": one}) == [[0]]
    assert believed({"metric_change": one, "dtw": one, "lof": silent}) == [[0]]
    assert believed({"lof": one, "zlength": one, "metric_change": one}) == []
    assert believed({"lof": one, "pca": one}, weights={"lof": 1.0}) == []  # pca keeps its half
    assert believed({"lof": one, "pca": one}, weights={"lof": 1.0, "pca": 1.0}) == [[0]]


def test_provisional_votes_support_others_and_open_nothing() -> None:
    sure = named((0, "n0", None))
    unsure = msgspec.structs.replace(sure, provisional=True)
    assert believed({"metric_change": sure, "dtw": sure}) == [[0]]
    assert believed({"metric_change": sure, "dtw": unsure}) == []
    assert believed({"metric_mean": sure}) == [[0]], "it opens by itself"
    assert believed({"metric_mean": unsure}) == [], "it does not while it is provisional"
    models = dict.fromkeys([name for name, role in ROLES.items() if role.reads == "scores"], unsure)
    assert len(models) == 10
    assert believed(models) == [], "nor do all together"
    assert believed(models | {"still_metrics": sure}) == [], "nor with one other"
    assert believed(models | {"still_metrics": sure, "pca": sure}) == [[0]], "but they support what is nearly enough"
    nearly = {"still_metrics": sure, "pca": sure}
    assert believed(nearly) == []
    assert believed(nearly | {"dtw": unsure}) == [], "one keeps a share of its weight"
    heavy = nearly | {"lof": unsure, "dtw": unsure}
    assert believed(heavy, weights={"lof": 10.0}, metric_votes=2.1) == [], "all keep a part of what is enough"


def test_a_vote_of_a_provisional_model_says_so_and_after_a_restart_too() -> None:
    strange = window(scored([[0.1, 0.9, 0.9]]), provisional=frozenset({"pca"}))
    detector, vote = after(strange)
    assert vote.provisional
    assert "for pca (provisional)" in vote.reason
    again = PcaVote(CONFIG)
    again.restore(detector.state())
    assert again.score(strange) == vote
    assert not after(window(scored([[0.1, 0.9, 0.9]]), provisional=frozenset({"kmeans"})))[1].provisional
    mean = MetricMeanVote(CONFIG)
    mean.update(window(scored([[0.1, 0.9, 0.9]]), provisional=frozenset({"ensemble"})))
    assert mean.score(strange).provisional, "its calibration is the version called ensemble"


def test_a_vote_about_the_whole_job_supports_everyone() -> None:
    everyone = Vote(opinion="anomalous", score=0.9, kind="slow_job", severity="sev3", reason="slower")
    assert believed({"iteration_threshold": everyone, "dtw": named((3, "n1", None))}) != []
    assert believed({"iteration_threshold": everyone}) == []


NAMES = ("gpu_power_watts", "gpu_sm_clock_hertz", "gpu_utilization_ratio")


def metrics(seed: int, samples: int) -> Any:
    random = np.random.default_rng(seed)
    return np.sin(np.arange(samples)[:, None] / np.array([3.0, 5.0, 7.0])) + random.normal(0.0, 0.1, (samples, 3))


@pytest.fixture(scope="module")
def bundle() -> ModelBundle:
    config = parse(VoteConfig, {"neighbor_profile": {"bags": 8, "bag_size": 8}, "dtw_samples": 20}, "models")
    normal = [(Entity("n", f"GPU-{one}", one), np.arange(400.0), metrics(one, 400)) for one in range(4)]
    return ModelBundle.fit({"gpu": normal}, {"gpu": NAMES}, config, seed=0)


def played(bundle: ModelBundle | None, *, sick: bool) -> list[Any]:
    """What a job's watch says of 90 seconds of metrics of four GPUs."""
    handler = DetectionHandler(DetectionSettings(), ManualClock(0.0), SelfMetrics("detector"))
    detectors = {name: choice.made() for name, choice in handler._chosen.items()}
    watch = JobMonitor("job", detectors, EnsembleConfig(), SelfMetrics("detector"), bundle)
    values = np.stack([metrics(30 + one, 90) for one in range(4)])
    if sick:
        values[2, 60:, 1] -= 8.0
    out = []
    for second in range(90):
        lanes = tuple(map(tuple, values[:, second].T.tolist()))
        devices = tuple(f"GPU-{one}" for one in range(4))
        watch.state.feed(
            MetricsRecord(
                job="job", node="n", time_s=1e6 + second, devices=devices, names=NAMES, values=lanes, ranks=(0, 1, 2, 3)
            )
        )
        out.extend(watch.score(1e6 + second + 0.5))
    return out


@pytest.mark.thorough
def test_a_sick_gpu_becomes_one_incident_with_culprit_metrics_and_versions(bundle: ModelBundle) -> None:
    opened = [one for one in played(bundle, sick=True) if isinstance(one, IncidentRecord) and one.state == "opened"]
    (incident,) = opened
    assert (incident.kind, incident.severity) == ("metric_anomaly", "sev3")
    assert (incident.suspects[0].rank, incident.suspects[0].device) == (2, "GPU-2")
    assert incident.metrics[0] == "gpu_sm_clock_hertz"
    assert incident.onset_s is not None
    assert 58.0 <= incident.onset_s - 1e6 <= 64.0
    assert incident.model_versions.items() <= bundle.versions.items()
    assert incident.model_versions


@pytest.mark.thorough
def test_a_healthy_job_opens_none(bundle: ModelBundle) -> None:
    assert not [one for one in played(bundle, sick=False) if isinstance(one, IncidentRecord)]


def test_without_models_the_verdict_shows_that_they_abstain() -> None:
    verdict = [one for one in played(None, sick=True) if isinstance(one, VerdictRecord)][-1]
    assert verdict.votes["lof"].reason == NO_MODELS
    assert not verdict.anomalous
    assert Ensemble(EnsembleConfig(), {}).judge(window(), {}).model_versions == {}


def test_models_are_named_in_the_settings(bundle: ModelBundle, tmp_path: Any) -> None:
    bundle.save(tmp_path)
    made = DetectionHandler(DetectionSettings(models=str(tmp_path)), ManualClock(0.0), SelfMetrics("detector"))
    assert made.models.champion is not None
    with pytest.raises(ConfigError, match=r"detection\.models.*holds no models"):
        DetectionHandler(DetectionSettings(models=str(tmp_path / "x")), ManualClock(0.0), SelfMetrics("detector"))
