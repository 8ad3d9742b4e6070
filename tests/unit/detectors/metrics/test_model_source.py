"""Models that come while the service runs: swapped between windows, shadowed, kept when the source fails."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from tests.doubles import ManualClock, metric_value
from tests.unit.detectors.detection_streams import RememberingBus
from trainwarden.detectors.job.samples import Entity
from trainwarden.detectors.metrics.bundle.bundle import ModelBundle
from trainwarden.detectors.metrics.bundle.members import VoteConfig
from trainwarden.detectors.metrics.source import ModelPoller, ModelSet
from trainwarden.detectors.service import DetectionHandler
from trainwarden.errors import DetectorError
from trainwarden.protocols import Message
from trainwarden.records import EventRecord, MetricsRecord, VerdictRecord
from trainwarden.self_metrics import SelfMetrics
from trainwarden.settings import DetectionSettings

START_S = 1_000_000.0


class Source:
    def __init__(self, *answers, kept=None):
        self.answers = list(answers)
        self.kept = kept

    def poll(self):
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, Exception):
            raise answer
        return answer

    def last_good(self):
        return self.kept


@pytest.fixture(scope="module")
def bundles():
    def one(seed):
        values = np.random.default_rng(seed).normal(size=(400, 2))
        config = VoteConfig(members={"kmeans": 1.0, "pca": 1.0})
        series = {"": [(Entity("n"), np.arange(400.0), values)]}
        return ModelBundle.fit(series, {"": ("power", "clock")}, config, seed)

    return one(0).with_versions({"kmeans": "1", "pca": "1"}), one(1).with_versions({"kmeans": "2", "pca": "2"})


class Service:
    def __init__(self, source):
        self.metrics = SelfMetrics("detector")
        self.clock = ManualClock(START_S)
        self.follower = ModelPoller(source, 10.0)
        self.handler = DetectionHandler(DetectionSettings(), self.clock, self.metrics, self.follower)
        bus = RememberingBus()
        self.handler.start(bus, bus)
        self.rng = np.random.default_rng(0)
        self.offset = 0

    def run(self, seconds):
        found = []
        for _ in range(seconds):
            self.clock.sleep(1.0)
            values = tuple((float(value),) for value in self.rng.normal(size=2))
            record = MetricsRecord(
                job="j", node="n", time_s=self.clock.now_s(), devices=("",), names=("power", "clock"), values=values
            )
            found += self.feed(record)
            found += self.handler.tick(self.clock.now_s())
        return [record for _, record in found if isinstance(record, VerdictRecord)]

    def feed(self, record):
        self.offset += 1
        message = Message("trainwarden.metrics", 0, self.offset, self.clock.now_s(), record.job, record)
        return list(self.handler.handle([message]))


def served(verdicts):
    """Versions of pca in the verdicts where it had an opinion (a model warms up once)."""
    return {one.model_versions["pca"] for one in verdicts if "pca" in one.model_versions}


@pytest.mark.thorough
def test_models_are_swapped_without_losing_a_window(bundles):
    first, second = bundles
    service = Service(Source(ModelSet(first), ModelSet(second)))
    service.follower.ask()
    before = service.run(40)
    service.follower.ask()
    after = service.run(40)
    assert served(before) == {"1"}
    assert {one.model_versions["pca"] for one in after} == {"2"}
    times = [one.time_s for one in (*before, *after)]
    assert np.diff(times).max() <= np.diff([one.time_s for one in before]).max()
    assert all(one.votes["pca"].opinion == "normal" for one in after), "histories are rebuilt, no new warm-up"
    value = partial(metric_value, service.metrics)
    assert value("model_version_info", role="champion", detector="pca", version="1") == 0.0
    assert value("model_version_info", role="champion", detector="pca", version="2") == 1.0


@pytest.mark.thorough
def test_the_challenger_is_scored_in_the_shadow_and_does_not_vote(bundles):
    first, second = bundles
    service = Service(Source(ModelSet(first, second)))
    service.follower.ask()
    verdicts = service.run(60)
    assert served(verdicts) == {"1"}
    value = partial(metric_value, service.metrics)
    judged = value("shadow_samples_total", training_job="j", detector="pca")
    assert judged is not None
    assert judged > 30
    assert 0 <= value("shadow_agreed_total", training_job="j", detector="pca") <= judged
    scores = {
        role: value("model_score", training_job="j", detector="ensemble", role=role)
        for role in ("champion", "challenger")
    }
    assert None not in scores.values(), "both are exported"
    assert scores["champion"] != scores["challenger"], "and each is its own"


def test_a_source_that_fails_leaves_the_models_that_serve(bundles):
    service = Service(Source(ModelSet(bundles[0]), DetectorError("tampered"), DetectorError("tampered")))
    service.follower.ask()
    service.run(20)
    service.follower.ask()
    assert served(service.run(20)) == {"1"}


def test_a_start_without_the_registry_serves_what_is_kept(bundles):
    follower = ModelPoller(Source(DetectorError("away"), kept=ModelSet(bundles[1])), 60.0)
    follower.start()
    follower.close()
    found = follower.pop_new()
    assert found is not None
    assert found.champion is bundles[1]
    assert follower.pop_new() is None


def test_events_about_models_make_no_job(bundles):
    service = Service(Source(ModelSet(bundles[0])))
    service.feed(EventRecord(id="m", job="models", node="n", time_s=START_S, kind="model"))
    service.handler.tick(START_S + 1.0)
    assert metric_value(service.metrics, "jobs") == 0.0
