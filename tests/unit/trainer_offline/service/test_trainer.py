"""The trainer service: when it trains, and what it tells of aliases; no registry, no process."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.doubles import ManualClock, MemoryBus, metric_value
from trainwarden.errors import ConfigError, DataError
from trainwarden.protocols import Message
from trainwarden.records import VerdictRecord, Vote
from trainwarden.self_metrics import SelfMetrics
from trainwarden.settings import Settings, TrainerSettings
from trainwarden.topics import EVENTS
from trainwarden.trainer_offline.service.handler import ARCHIVE_S, FIRST_HOURS, GROWTH, RETRY_S, TrainerHandler

DAY_S = 86_400.0


class FakeRegistry:
    uri = "sqlite:///fake"

    def __init__(self) -> None:
        self.by_alias = {"champion": {"lof": "1"}, "challenger": {}}
        self.asked: list[str] = []
        self.answers: list[tuple[str, str]] = []
        self.running: list[str] = []
        self.noted: list[str] = []
        self.made_s: list[float] = []
        self.hours: float | None = 1.0
        self.away = False
        self.refuses = False
        self.deleted = False

    def aliases(self, alias):
        if self.away:
            raise DataError("registry is away")
        return dict(self.by_alias.get(alias, {}))

    def asked_to_retrain(self, word="requested"):
        return list(self.running if word == "running" else self.asked)

    def answer_retrain(self, detector, text):
        self.answers.append((detector, text))
        self.asked = []

    def versions(self):
        return [SimpleNamespace(created_s=one) for one in self.made_s]

    def card(self, version):
        return None if self.hours is None else SimpleNamespace(hours=self.hours)

    def version(self, detector, version):
        if self.deleted:
            raise ConfigError("no such version")
        return SimpleNamespace(detector=detector, version=version, tags={})

    def note_champion(self, one):
        if self.refuses:
            raise DataError("no tags today")
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
        self.metrics = SelfMetrics("trainer")
        self.begun: list[FakeTraining] = []
        self.archived = 0.0
        self.handler = TrainerHandler(
            Settings(trainer=TrainerSettings(**settings)),
            self.registry,
            self.clock,
            self.metrics,
            begin=self.begin,
            hours=lambda folder: self.archived,
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
    bench.begun[0].answer = {"run_id": "r1", "models": []}
    bench.tick(DAY_S)
    assert len(bench.begun) == 1
    bench.tick(7 * DAY_S)
    assert len(bench.begun) == 2


def test_a_failed_training_is_tried_again_soon_and_less_soon_each_time():
    bench = Bench(every_s=7 * DAY_S, pause_s=600.0)
    bench.tick(7 * DAY_S)
    for failures, wait_s in enumerate((600.0, 1_200.0, 2_400.0), 1):
        bench.begun[-1].answer = {"error": "no data"}
        bench.tick()
        assert metric_value(bench.metrics, "failed_in_a_row") == failures
        bench.tick(wait_s - 20.0)
        assert len(bench.begun) == failures
        bench.tick(20.0)
        assert len(bench.begun) == failures + 1
    bench.begun[-1].answer = {"run_id": "r1", "models": []}
    bench.tick()
    assert metric_value(bench.metrics, "failed_in_a_row") == 0
    bench.tick(6 * DAY_S)
    assert len(bench.begun) == 4


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


def test_a_moved_alias_is_told_even_if_the_registry_then_refuses_a_tag():
    bench = Bench()
    bench.registry.refuses = True
    assert len(bench.tick()) == 1
    assert bench.tick() == []
    bench.registry.refuses = False
    assert bench.tick() == []
    assert bench.registry.noted == ["1"]


def test_an_alias_that_points_to_nothing_stops_nobody():
    bench = Bench(every_s=60.0)
    bench.registry.deleted = True
    assert len(bench.tick()) == 1
    bench.tick(61.0)
    assert len(bench.begun) == 1


def test_restarts_do_not_put_off_the_schedule():
    bench = Bench(every_s=7 * DAY_S)
    bench.registry.made_s = [bench.clock.now_s() - 20 * DAY_S, bench.clock.now_s() - 6 * DAY_S]
    bench.tick()
    assert bench.begun == []
    bench.tick(DAY_S)
    assert len(bench.begun) == 1
    bench.begun[0].answer = {"run_id": "r1", "models": []}
    bench.tick()
    bench.tick(6 * DAY_S)
    assert len(bench.begun) == 1, "a week after the last one, whether it made versions or not"


def test_a_request_that_a_killed_trainer_had_begun_is_taken_up_again():
    bench = Bench()
    bench.registry.running = ["pca"]
    bench.tick()
    assert len(bench.begun) == 1
    assert bench.registry.answers == [("pca", "running")]
    bench.begun[0].answer = {"run_id": "r1", "models": []}
    bench.tick()
    bench.tick()
    assert len(bench.begun) == 1
    assert bench.registry.answers[-1] == ("pca", "done: run r1")


def test_a_request_made_while_it_trains_is_not_answered_by_that_training():
    bench = Bench()
    bench.registry.asked = ["lof"]
    bench.tick()
    bench.registry.asked = ["lof"]
    bench.begun[0].answer = {"run_id": "r1", "models": []}
    bench.tick()
    assert len(bench.begun) == 2
    assert ("lof", "done: run r1") not in bench.registry.answers


def test_the_first_training_begins_when_the_archive_holds_enough_and_not_a_week_later():
    bench = Bench()
    bench.registry.by_alias = {}
    for hours, begun in ((0.0, 0), (FIRST_HOURS - 0.01, 0), (FIRST_HOURS, 1)):
        bench.archived = hours
        bench.clock.sleep(ARCHIVE_S)
        bench.handler.tick(bench.clock.now_s())
        assert len(bench.begun) == begun, hours


@pytest.mark.parametrize(("hours", "begins"), [(1.0 * GROWTH - 0.01, False), (1.0 * GROWTH, True)])
def test_without_a_champion_it_trains_again_once_the_archive_has_grown(hours, begins):
    bench = Bench()
    bench.registry.by_alias, bench.registry.made_s = {}, [bench.clock.now_s() - 60.0]
    bench.archived = hours
    bench.handler.tick(bench.clock.now_s())
    assert bool(bench.begun) == begins


def test_what_was_trained_on_an_unknown_amount_is_trained_again_on_schedule_only():
    bench = Bench()
    bench.registry.by_alias, bench.registry.made_s, bench.registry.hours = {}, [bench.clock.now_s() - 60.0], None
    bench.archived = 100.0
    bench.handler.tick(bench.clock.now_s())
    assert not bench.begun


def test_an_archive_that_grows_under_a_champion_is_left_to_the_schedule():
    bench = Bench()
    bench.archived = 1_000.0
    bench.handler.tick(bench.clock.now_s())
    assert not bench.begun


def test_a_first_training_that_failed_is_tried_again_after_its_pause():
    bench = Bench(pause_s=0.0)
    bench.registry.by_alias = {}
    bench.archived = 1.0
    bench.handler.tick(bench.clock.now_s())
    bench.begun[0].answer = {"error": "no metric was measured"}
    for waited_s, begun in ((RETRY_S / 2, 1), (RETRY_S, 2)):
        bench.clock.sleep(waited_s)
        bench.handler.tick(bench.clock.now_s())
        assert len(bench.begun) == begun
