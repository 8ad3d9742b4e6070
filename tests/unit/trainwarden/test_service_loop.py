"""The service loop: handle, publish, flush, then commit; a bus that is away loses nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.doubles import ManualClock, metric_value
from trainwarden.bus.embedded.engine import EmbeddedBus
from trainwarden.errors import BusUnavailable, DataError, WardenError
from trainwarden.protocols import Bus, Consumer, Message
from trainwarden.records import DeadLetter, EventRecord, Record, VerdictRecord, Vote
from trainwarden.self_metrics import SelfMetrics
from trainwarden.service_loop import Output, ServiceLoop
from trainwarden.topics import DEAD_LETTERS, EVENTS, VERDICTS, Topic


class Echo:
    """A handler that answers each event with a verdict, and fails when told to."""

    topics: Sequence[Topic[Any]] = (EVENTS,)
    group = "echo"

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.starts = 0
        self.start_error: Exception | None = None
        self.handle_error: Exception | None = None
        self.tick_error: Exception | None = None

    def start(self, bus: Bus, consumer: Consumer) -> None:
        if self.start_error is not None:
            error, self.start_error = self.start_error, None
            raise error
        self.starts += 1

    def handle(self, messages: Sequence[Message]) -> Iterable[Output]:
        if self.handle_error is not None:
            error, self.handle_error = self.handle_error, None
            raise error
        for message in messages:
            record = message.record
            assert isinstance(record, EventRecord)
            self.seen.append(record.id)
            verdict = VerdictRecord(id=record.id, job="j", time_s=1.0, window_s=1.0, anomalous=False, reason="r")
            yield "j", verdict

    def tick(self, now_s: float) -> Iterable[Output]:
        if self.tick_error is not None and self.seen:
            error, self.tick_error = self.tick_error, None
            raise error
        return ()


def publish(bus: EmbeddedBus, *ids: str) -> None:
    for name in ids:
        bus.publish(EVENTS, "j", EventRecord(id=name, job="j", node="n", time_s=1.0, kind="job_start"))
    bus.flush()


def verdicts(bus: EmbeddedBus) -> list[str]:
    return [message.record.id for message in bus.read(VERDICTS) if isinstance(message.record, VerdictRecord)]


def loop_of(bus: EmbeddedBus, handler: Echo) -> tuple[ServiceLoop, SelfMetrics]:
    metrics = SelfMetrics("echo")
    return ServiceLoop(bus, handler, ManualClock(100.0), metrics, poll_timeout_s=0.0), metrics


def test_each_record_is_answered_once(tmp_path: Path) -> None:
    bus, handler = EmbeddedBus(str(tmp_path / "bus.db")), Echo()
    publish(bus, "a", "b")
    loop, _ = loop_of(bus, handler)
    for _ in range(4):
        loop.step()
    publish(bus, "c")
    for _ in range(2):
        loop.step()
    assert handler.seen == ["a", "b", "c"]
    assert verdicts(bus) == ["a", "b", "c"]
    bus.close()


def test_a_start_that_failed_is_tried_again(tmp_path: Path) -> None:
    bus, handler = EmbeddedBus(str(tmp_path / "bus.db")), Echo()
    publish(bus, "a")
    handler.start_error = BusUnavailable("away")
    loop, metrics = loop_of(bus, handler)
    for _ in range(4):
        loop.step()
    assert handler.starts == 1
    assert handler.seen == ["a"]
    assert metric_value(metrics, "bus_unavailable_total") == 1.0
    bus.close()


def test_a_member_that_was_put_out_starts_anew_though_it_gets_the_same_partitions_back(tmp_path: Path) -> None:
    clock = ManualClock(100.0)
    bus, echo, stalled = EmbeddedBus(str(tmp_path / "bus.db"), clock=clock, lease_s=30.0), Echo(), Echo()
    loops = [ServiceLoop(bus, handler, clock, SelfMetrics("echo"), poll_timeout_s=0.0) for handler in (echo, stalled)]

    def rounds(number: int, *running: ServiceLoop) -> None:
        for _ in range(number):
            for loop in running:
                loop.step()
            clock.sleep(1.0)

    rounds(4, *loops)
    consumer = loops[1]._consumer
    assert consumer is not None
    before, starts = consumer.assignment(), stalled.starts
    rounds(40, loops[0])  # what is written now, the other one reads in its stead
    rounds(4, *reversed(loops))
    assert consumer.assignment() == before
    assert stalled.starts > starts
    bus.close()


def test_a_member_that_left_its_group_forgets_before_it_is_let_in_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus, handler = EmbeddedBus(str(tmp_path / "bus.db")), Echo()
    publish(bus, "a")
    loop, _ = loop_of(bus, handler)
    for _ in range(2):
        loop.step()
    starts, handler.tick_error = handler.starts, BusUnavailable("away")
    loop.step()
    assert handler.starts == starts
    monkeypatch.setattr("trainwarden.bus.embedded.consumer.EmbeddedConsumer.assignment", lambda self: frozenset())
    for _ in range(3):
        loop.step()
    assert handler.starts == starts + 1, "once, with nothing that is its own"
    monkeypatch.undo()
    loop.step()
    assert handler.starts == starts + 2
    bus.close()


@pytest.mark.parametrize("error", [BusUnavailable("away"), WardenError("broken")])
def test_errors_are_counted_and_nothing_is_lost(tmp_path: Path, error: WardenError) -> None:
    bus, handler = EmbeddedBus(str(tmp_path / "bus.db")), Echo()
    publish(bus, "a")
    loop, metrics = loop_of(bus, handler)
    loop.step()
    handler.handle_error = error
    for _ in range(4):
        loop.step()
    publish(bus, "b")
    for _ in range(2):
        loop.step()
    bus.close()
    assert handler.seen == ["a", "b"]
    away = metric_value(metrics, "bus_unavailable_total")
    counted = away or metric_value(metrics, "errors_total", kind="WardenError")
    assert counted == 1.0


def test_an_error_that_lasts_is_logged_once_and_so_is_its_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bus, handler = EmbeddedBus(str(tmp_path / "bus.db")), Echo()
    publish(bus, "a")
    loop, metrics = loop_of(bus, handler)
    loop.step()
    caplog.set_level("INFO", "trainwarden.service_loop")
    for why in ("the disk is full", "the disk is full", "the disk is full", "it is read-only", None, None):
        handler.tick_error = None if why is None else DataError(why)
        loop.step()
    assert [record.message for record in caplog.records] == ["round failed", "round failed", "rounds succeed again"]
    assert metric_value(metrics, "errors_total", kind="DataError") == 4.0
    bus.close()


def test_what_followed_from_records_is_told_though_the_tick_after_them_breaks(tmp_path: Path) -> None:
    """The handler has noted it as told: it does not tell it again when the records come once more."""
    bus, handler = EmbeddedBus(str(tmp_path / "bus.db")), Echo()
    publish(bus, "a")
    handler.tick_error = KeyError("x")
    loop, _ = loop_of(bus, handler)
    loop.step()
    loop.step()
    assert handler.tick_error is None
    loop._round()
    assert verdicts(bus)[0] == "a"
    assert handler.seen[:1] == ["a"]
    assert len(verdicts(bus)) == len(handler.seen)
    bus.close()


def test_what_was_not_flushed_is_not_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bus, handler = EmbeddedBus(str(tmp_path / "bus.db")), Echo()
    publish(bus, "a")
    loop, _ = loop_of(bus, handler)

    def away(timeout_s: float = 0.0) -> None:
        raise BusUnavailable("away")

    with monkeypatch.context() as patch:
        patch.setattr(bus, "flush", away)
        loop.step()
        assert handler.seen == ["a"]
    bus.close()
    # A second process of the group, as after a kill of the first, meets the record again.
    later, other = EmbeddedBus(str(tmp_path / "bus.db")), Echo()
    again, _ = loop_of(later, other)
    for _ in range(3):
        again.step()
    later.close()
    assert other.seen == ["a"]


def test_a_record_that_breaks_the_handler_goes_to_dead_letters_and_all_others_are_answered(tmp_path: Path) -> None:
    class Fragile(Echo):
        def handle(self, messages: Sequence[Message]) -> Iterable[Output]:
            if any(getattr(message.record, "id", "") == "b" for message in messages):
                raise KeyError("a mistake of ours")
            return super().handle(messages)

    bus, handler = EmbeddedBus(str(tmp_path / "bus.db")), Fragile()
    publish(bus, "a", "b", "c")
    loop, metrics = loop_of(bus, handler)
    for _ in range(8):
        loop.step()
    publish(bus, "d")
    for _ in range(4):
        loop.step()
    assert verdicts(bus) == ["a", "c", "d"]
    (letter,) = [message.record for message in bus.read(DEAD_LETTERS)]
    assert isinstance(letter, DeadLetter)
    assert (letter.topic, letter.offset, letter.reason) == (EVENTS.name, 1, "KeyError: 'a mistake of ours'")
    assert b'"id":"b"' in letter.value
    assert metric_value(metrics, "errors_total", kind="KeyError") == 1
    bus.close()


def test_outputs_survive_a_bus_that_fails_between_two_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bus, handler = EmbeddedBus(str(tmp_path / "bus.db")), Echo()
    publish(bus, "a", "b", "c")
    loop, _ = loop_of(bus, handler)
    put, asked = bus.publish, []

    def fail_at_the_second(topic: Topic[Any], key: str, record: Record) -> None:
        asked.append(key)
        if len(asked) == 2:
            raise BusUnavailable("the queue is full")
        put(topic, key, record)

    monkeypatch.setattr(bus, "publish", fail_at_the_second)
    for _ in range(4):
        loop.step()
    assert verdicts(bus) == ["a", "b", "c"]
    bus.close()


def test_an_output_that_is_too_large_is_shortened_and_takes_nothing_with_it(tmp_path: Path) -> None:
    class Talkative(Echo):
        def handle(self, messages: Sequence[Message]) -> Iterable[Output]:
            for key, record in super().handle(messages):
                vote = Vote(opinion="normal", reason="x" * 1_000_000)
                yield key, msgspec.structs.replace(record, votes={"talker": vote} if record.id == "a" else {})

    bus = EmbeddedBus(str(tmp_path / "bus.db"))
    publish(bus, "a", "b")
    loop, metrics = loop_of(bus, Talkative())
    for _ in range(4):
        loop.step()
    assert verdicts(bus) == ["a", "b"]
    assert metric_value(metrics, "outputs_refused_total", kind="VerdictRecord") == 1
    bus.close()


def service_value(metrics: SelfMetrics, name: str) -> float | None:
    return metrics.registry.get_sample_value(name, {"service": "echo"})


def test_a_round_tells_that_the_service_lives_and_how_far_it_is_behind(tmp_path: Path) -> None:
    bus, handler, clock, metrics = EmbeddedBus(str(tmp_path / "b")), Echo(), ManualClock(100.0), SelfMetrics("echo")
    loop = ServiceLoop(bus, handler, clock, metrics, poll_timeout_s=0.0)
    assert metric_value(metrics, "dead_letters_total", topic=EVENTS.name) == 0.0
    assert service_value(metrics, "trainwarden_heartbeat_timestamp_seconds") is None
    loop.step()
    publish(bus, "a", "b")
    loop.step()
    assert service_value(metrics, "trainwarden_heartbeat_timestamp_seconds") == clock.now_s()
    assert service_value(metrics, "trainwarden_up") == 1.0
    assert service_value(metrics, "trainwarden_bus_lag_records") == 0.0
    bus.close()


def test_a_round_without_the_bus_is_one_and_a_round_that_failed_is_none(tmp_path: Path) -> None:
    bus, handler, clock, metrics = EmbeddedBus(str(tmp_path / "b")), Echo(), ManualClock(100.0), SelfMetrics("echo")
    loop = ServiceLoop(bus, handler, clock, metrics, poll_timeout_s=0.0)
    handler.start_error = BusUnavailable("away")
    loop.step()
    assert service_value(metrics, "trainwarden_up") == 0.0
    before = service_value(metrics, "trainwarden_heartbeat_timestamp_seconds")
    assert before is not None
    handler.start_error = KeyError("defect")
    clock.sleep(60.0)
    loop.step()
    assert service_value(metrics, "trainwarden_heartbeat_timestamp_seconds") == before
    loop.step()
    assert service_value(metrics, "trainwarden_up") == 1.0
    bus.close()


def test_bytes_that_are_no_record_are_counted(tmp_path: Path) -> None:
    bus, handler, metrics = EmbeddedBus(str(tmp_path / "bus.db")), Echo(), SelfMetrics("echo")
    loop = ServiceLoop(bus, handler, ManualClock(), metrics, poll_timeout_s=0.0)
    publish(bus, "a")
    verdict = VerdictRecord(id="v", job="j", time_s=1.0, window_s=1.0, anomalous=False, reason="r")
    bus.publish(Topic(EVENTS.name, VerdictRecord), "j", verdict)
    bus.flush()
    for _ in range(4):
        loop.step()
    assert handler.seen == ["a"]
    assert metric_value(metrics, "undecodable_total") == 1.0
    bus.close()
