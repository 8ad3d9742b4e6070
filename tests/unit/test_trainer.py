"""The trainer service: when it trains, and what it tells of aliases; no registry, no process."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.doubles import MemoryBus
from trainer_offline.trainer import TrainerHandler
from trainwarden.clock import ManualClock
from trainwarden.errors import DataError
from trainwarden.protocols import Message
from trainwarden.records import EVENTS, VerdictRecord, Vote
from trainwarden.self_metrics import SelfMetrics
from trainwarden.settings import Settings, TrainerSettings

DAY_S = 86_400.0


class FakeRegistry:
    uri = "sqlite:///fake"

    def __init__(self) -> None:
        self.by_alias = {"champion": {"lof": "1"}, "challenger": {}}
        self.asked: list[str] = []
        self.answers: list[tuple[str, str]] = []
        self.noted: list[str] = []
        self.away = False

    def aliases(self, alias):
        if self.away:
            raise DataError("registry is away")
        return dict(self.by_alias[alias])

    def asked_to_retrain(self):
        return list(self.asked)

    def answer_retrain(self, detector, text):
        self.answers.append((detector, text))
        self.asked = []

    def version(self, detector, version):
        return SimpleNamespace(detector=detector, version=version, tags={})

    def note_champion(self, one):
        self.noted.append(one.version)


class FakeTraining:
    def __init__(self, arguments):
        self.arguments = list(arguments)
        self.answer = None

    def result(self):
        return self.answer

    def close(self):
        pass


class Bench:
    def __init__(self, **settings):
        self.clock = ManualClock(1_000_000.0)
        self.registry = FakeRegistry()
        self.begun: list[FakeTraining] = []
        self.handler = TrainerHandler(
            Settings(trainer=TrainerSettings(**settings)),
            self.registry,
            self.clock,
            SelfMetrics("trainer"),
            (),
            self.begin,
        )

    def begin(self, arguments):
        self.begun.append(FakeTraining(arguments))
        return self.begun[-1]

    def tick(self, elapsed_s=20.0):
        self.clock.sleep(elapsed_s)
        return [record for _, record in self.handler.tick(self.clock.now_s())]

    def verdict(self, score, number=0):
        votes = {"lof": Vote(opinion="normal", score=score)}
        record = VerdictRecord(
            id=str(number), job="j", time_s=0.0, window_s=1.0, anomalous=False, reason="", votes=votes,
            model_versions={"lof": "1"},
        )  # fmt: skip
        self.handler.handle([Message("v", 0, number, 0.0, "j", record)])


def test_it_trains_on_schedule_and_not_while_it_trains():
    bench = Bench(every_s=7 * DAY_S, data="recordings")
    bench.tick()
    assert bench.begun == []
    bench.tick(7 * DAY_S)
    bench.tick(7 * DAY_S)
    assert len(bench.begun) == 1
    assert bench.begun[0].arguments[:4] == ["--data", "recordings", "--registry", "sqlite:///fake"]
    bench.begun[0].answer = {"error": "no data"}
    bench.tick(DAY_S)
    assert len(bench.begun) == 1
    bench.tick(7 * DAY_S)
    assert len(bench.begun) == 2


def test_a_request_in_the_ui_trains_at_once_and_is_answered():
    bench = Bench()
    bench.registry.asked = ["lof"]
    bench.tick()
    assert len(bench.begun) == 1
    bench.begun[0].answer = {"run_id": "r1", "models": []}
    bench.tick()
    assert bench.registry.answers == [("lof", "running"), ("lof", "done: run r1")]


@pytest.mark.parametrize(("later", "trains"), [(0.105, False), (0.4, True), (0.01, True)])
def test_drift_of_normal_scores_trains(later, trains):
    bench = Bench(drift_verdicts=50, pause_s=0.0)
    for number in range(100):
        bench.verdict(0.1 + 0.001 * (number % 10) if number < 50 else later, number)
    bench.tick()
    assert bool(bench.begun) is trains


def test_a_pause_lies_between_trainings_but_not_before_a_persons_word():
    bench = Bench(every_s=60.0, pause_s=3_600.0)
    bench.tick(61.0)
    bench.begun[0].answer = {"error": "x"}
    bench.tick(100.0)
    bench.tick(100.0)
    assert len(bench.begun) == 1
    bench.registry.asked = ["pca"]
    bench.tick()
    assert len(bench.begun) == 2


def test_moved_aliases_are_told_once_also_over_a_restart():
    bench = Bench()
    assert [(one.kind, one.fields["to"]) for one in bench.tick()] == [("model", "1")]
    assert bench.tick() == []
    bench.registry.by_alias["champion"]["lof"] = "2"
    bench.registry.by_alias["challenger"]["pca"] = "4"
    found = bench.tick()
    assert {(one.fields["detector"], one.fields["alias"], one.fields["from"], one.fields["to"]) for one in found} == {
        ("lof", "champion", "1", "2"), ("pca", "challenger", None, "4"),
    }  # fmt: skip
    assert bench.registry.noted == ["1", "2"]
    assert "champion of lof: version 1 -> 2" in {one.message for one in found}
    bus = MemoryBus()
    for record in found:
        bus.publish(EVENTS, "models", record)
    bus.flush()
    again = Bench()
    again.registry = bench.registry
    again.handler._registry = bench.registry
    again.handler.start(bus, None)
    assert again.tick() == []


def test_a_registry_that_is_away_costs_nothing_but_a_look_later():
    bench = Bench()
    bench.registry.away = True
    assert bench.tick() == []
    bench.registry.away = False
    assert len(bench.tick()) == 1
