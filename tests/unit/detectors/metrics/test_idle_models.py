"""A model whose votes weigh nothing is not computed, unless somebody asked for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.unit.detectors import recordings
from trainwarden.detectors.configured_detectors import chosen, ensemble, rule
from trainwarden.detectors.job.samples import Entity
from trainwarden.detectors.job_monitor import JobMonitor
from trainwarden.detectors.metrics.bundle.bundle import ModelBundle
from trainwarden.detectors.metrics.bundle.members import VoteConfig
from trainwarden.detectors.metrics.vote import IDLE
from trainwarden.detectors.recorded.metrics import score_recorded
from trainwarden.detectors.recorded.replay import replay
from trainwarden.detectors.verdict.ensemble import Ensemble
from trainwarden.records import MetricsRecord, VerdictRecord
from trainwarden.self_metrics import SelfMetrics
from trainwarden.settings import DetectionSettings, parse

SMALL = parse(VoteConfig, {"members": {"pca": 1.0, "lof": 0.0, "zlength": 0.0}}, "models")
NAMES = ("power", "clock")
MEMBERS = {"pca": 1.0, "lof": 0.0, "zlength": 0.0, "dtw": 0.0}


@pytest.fixture(scope="module")
def bundle() -> ModelBundle:
    normal = [(Entity("n"), np.arange(400.0), np.random.default_rng(0).normal(size=(400, 2)))]
    return ModelBundle.fit({"": normal}, {"": NAMES}, SMALL, seed=0)


def watched(bundle: ModelBundle, asked: tuple[str, ...] = (), **said: Any) -> JobMonitor:
    settings = DetectionSettings(ensemble=said)
    detectors = {name: choice.made() for name, choice in chosen(settings).items() if choice.role.reads == "scores"}
    return JobMonitor("job", detectors, rule(settings), SelfMetrics("test"), bundle, asked=asked)


def played(watch: JobMonitor, since: int = 0) -> VerdictRecord:
    values = np.random.default_rng(1).normal(size=(60, 2))
    told: list[VerdictRecord] = []
    for second, row in enumerate(values.tolist(), since):
        lanes = tuple((value,) for value in row)
        record = MetricsRecord(job="job", node="n", time_s=1e6 + second, devices=("",), names=NAMES, values=lanes)
        watch.state.feed(record)
        told += [one for one in watch.score(1e6 + second + 0.5) if isinstance(one, VerdictRecord)]
    return told[-1]


def test_what_weighs_nothing_is_not_computed_and_says_so(bundle: ModelBundle) -> None:
    verdict = played(watched(bundle))
    assert (verdict.votes["lof"].reason, verdict.votes["zlength"].reason) == (IDLE, IDLE)
    assert verdict.votes["pca"].opinion == "normal"
    assert set(verdict.model_versions) == {"pca"}


@pytest.mark.parametrize("how", ["asked", "weight", "transom", "measured"])
def test_who_is_asked_for_or_weighs_something_is_computed(bundle: ModelBundle, how: str) -> None:
    if how == "measured":
        bundle = replace(bundle, weights={"lof": {"": 0.3}})
    said: dict[str, Any] = {"weight": {"weights": {"lof": 0.5}}, "transom": {"rule": "transom"}}.get(how, {})
    verdict = played(watched(bundle, ("lof",) if how == "asked" else (), **said))
    assert verdict.votes["lof"].opinion == "normal"
    assert verdict.votes["zlength"].reason == IDLE


def test_scores_of_the_others_and_of_the_mean_stay_what_they_were(bundle: ModelBundle) -> None:
    few, all_ = played(watched(bundle)), played(watched(bundle, ("lof", "zlength")))
    for name in ("pca", "metric_mean"):
        assert few.votes[name] == all_.votes[name]


@pytest.mark.thorough
def test_a_restart_with_others_computed_goes_on(bundle: ModelBundle) -> None:
    before, after = watched(bundle), watched(bundle, ("lof",))
    played(before)
    after.restore(before.snapshot())
    assert played(after, since=60).votes["lof"].opinion == "normal"
    again = watched(bundle)
    again.restore(after.snapshot())
    assert played(again, since=120).votes["lof"].reason == IDLE


def test_which_models_are_idle() -> None:
    usual = ensemble(DetectionSettings())
    assert usual.idle(MEMBERS, {}, ()) == {"lof", "zlength"}
    assert usual.idle(MEMBERS, {}, ("lof",)) == {"zlength"}
    assert usual.idle(MEMBERS, {"lof": {"gpu": 0.0, "nic": 0.1}, "dtw": {"gpu": 0.0}}, ()) == {"zlength", "dtw"}
    silenced = ensemble(DetectionSettings(ensemble={"weights": {"dtw": 0.0, "lof": 1.0}}))
    assert silenced.idle(MEMBERS, {"dtw": {"gpu": 1.0}}, ()) == {"dtw", "zlength"}
    assert ensemble(DetectionSettings(ensemble={"rule": "transom"})).idle(MEMBERS, {}, ()) == {"zlength"}
    assert Ensemble(rule(DetectionSettings()), {}).idle(MEMBERS, {}, ()) == {"lof", "zlength", "dtw"}


def test_a_recording_is_scored_by_those_that_count_and_by_all_for_a_file() -> None:
    job = recordings.job(metrics=recordings.metrics(rows=800))
    settings = DetectionSettings()
    usual = ensemble(settings)
    until_s = recordings.START_S + 6_000.0
    few = score_recorded(job, None, until_s, SMALL, idle=lambda members, measured: usual.idle(members, measured, ()))
    all_ = score_recorded(job, None, until_s, SMALL)
    assert few is not None
    assert all_ is not None
    assert (set(few.by_model), set(all_.by_model)) == ({"pca"}, {"pca", "lof", "zlength"})
    np.testing.assert_array_equal(few.ensemble, all_.ensemble)
    assert replay(job, settings, names=["pca", "lof"], scores=few).abstained["lof"] == IDLE
    # Models that were trained before are not computed either.
    of_before = score_recorded(job, all_.bundle, idle=lambda members, measured: usual.idle(members, measured, ()))
    assert of_before is not None
    assert set(of_before.by_model) == {"pca"}
