"""Detectors' requests on their way from the bus to a node's collectors: bounded, and waited for by nobody."""

from __future__ import annotations

import queue
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.doubles import ManualClock, MemoryBus, ScriptedCollector, metric_value
from trainwarden.bus.embedded.engine import EmbeddedBus
from trainwarden.collectors.agent import listener as module
from trainwarden.collectors.agent.agent import Agent
from trainwarden.collectors.agent.listener import Listener
from trainwarden.errors import BusUnavailable
from trainwarden.protocols import Message
from trainwarden.records import SamplingRecord
from trainwarden.self_metrics import SelfMetrics
from trainwarden.settings import AgentSettings, Settings
from trainwarden.topics import SAMPLING

PATIENCE_S = 20.0


def request(first: int, job: str = "job") -> SamplingRecord:
    return SamplingRecord(job=job, time_s=1.0, from_step=first, until_step=first + 32)


class Wire:
    """A bus with one consumer, whose polls the test answers one by one; None breaks the connection."""

    def __init__(self) -> None:
        self.answers: queue.SimpleQueue[list[SamplingRecord] | None] = queue.SimpleQueue()
        self.asked: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.closed = 0

    def consumer(self, topics: Any, group: str, *, start: str) -> Wire:
        assert (topics, start) == ((SAMPLING,), "latest")
        self.asked.put(group)
        return self

    def poll(self, timeout_s: float, max_records: int = 1000) -> list[Message]:
        answer = self.answers.get(timeout=PATIENCE_S)
        if answer is None:
            raise BusUnavailable("away by the test")
        self.asked.put("poll")
        return [Message(SAMPLING.name, 0, place, 1.0, one.job, one) for place, one in enumerate(answer)]

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def wire() -> Wire:
    return Wire()


@pytest.fixture
def heard(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(module, "_FIRST_RETRY_S", 0.0)
    made = Listener(lambda: wire, "job", "n0")  # type: ignore[arg-type,return-value]
    yield made
    made.close()
    wire.answers.put([])
    if made._thread is not None:
        made._thread.join(PATIENCE_S)
        assert not made._thread.is_alive()


def answered(wire: Wire, *answers: list[SamplingRecord] | None) -> None:
    """Give these answers, and one more: when that is taken, all before it are."""
    for answer in (*answers, []):
        wire.answers.put(answer)
    polls = sum(answer is not None for answer in answers) + 1
    while polls:
        polls -= wire.asked.get(timeout=PATIENCE_S) == "poll"
    wire.answers.put([])


def test_requests_of_this_job_alone_are_heard_each_once(wire: Wire, heard: Listener) -> None:
    heard.start()
    heard.start()
    assert wire.asked.get(timeout=PATIENCE_S) == "agent/job/n0"
    answered(wire, [request(1), request(2, "other")], [request(3)])
    assert [one.from_step for one in heard.pop_new()] == [1, 3]
    assert heard.pop_new() == []


def test_a_flood_takes_no_room(wire: Wire, heard: Listener) -> None:
    heard.start()
    answered(wire, [request(number) for number in range(10_000)])
    assert [one.from_step for one in heard.pop_new()] == list(range(9_984, 10_000))


def test_a_bus_that_goes_away_is_connected_to_again(wire: Wire, heard: Listener) -> None:
    heard.start()
    answered(wire, None, None, [request(5)])
    assert [one.from_step for one in heard.pop_new()] == [5]
    assert (heard.failures, wire.closed) == (2, 4)


@pytest.mark.thorough
def test_over_a_bus_of_its_own_kind(tmp_path: Path) -> None:
    """What was asked for before anybody listened is passed over."""
    engine = EmbeddedBus(str(tmp_path / "bus.db"))
    engine.publish(SAMPLING, "job", request(1))
    engine.flush()
    connected = threading.Event()

    class Bus(EmbeddedBus):
        def consumer(self, *args: Any, **kwargs: Any) -> Any:
            made = super().consumer(*args, **kwargs)
            connected.set()
            return made

    listener = Listener(lambda: Bus(str(tmp_path / "bus.db")), "job", "n0")
    listener.start()
    assert connected.wait(PATIENCE_S)
    engine.publish(SAMPLING, "job", request(2))
    engine.flush()
    found: list[SamplingRecord] = []
    until = threading.Event()
    for _ in range(200):
        found += listener.pop_new()
        if found:
            break
        until.wait(0.1)
    listener.close()
    assert listener._thread is not None
    listener._thread.join(PATIENCE_S)
    engine.close()
    assert [one.from_step for one in found] == [2]


class Hearing(ScriptedCollector):
    """Listens when it is told to."""

    listens = False

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.asked: list[SamplingRecord] = []

    def ask(self, request: SamplingRecord) -> None:
        self.asked.append(request)


def test_an_agent_listens_only_while_a_collector_does(
    tmp_path: Path, wire: Wire, heard: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    double = f"{__name__}:Hearing"
    monkeypatch.setattr(
        "trainwarden.collectors.agent.agent.CATALOG", {"a": double, "b": "tests.doubles:ScriptedCollector"}
    )
    clock, metrics, bus = ManualClock(1000.0), SelfMetrics("agent"), MemoryBus()
    settings = Settings(job="job", node="n0", agent=AgentSettings(collectors={"a": {}, "b": {}}))
    agent = Agent(settings, lambda: bus, clock, metrics, state_dir=tmp_path / "state", run_dir=tmp_path)
    agent._listener = heard
    agent.step()
    assert heard._thread is None
    (collector,) = agent._hearers
    collector.listens = True
    agent.step()
    assert heard._thread is not None
    answered(wire, [request(7)])
    agent.step()
    assert [one.from_step for one in collector.asked] == [7]
    assert metric_value(metrics, "sampling_requests_total") == 1.0
    agent.close()
