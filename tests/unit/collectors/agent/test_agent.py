"""The agent's loop over scripted collectors, a bus in memory and a clock turned by hand."""

from __future__ import annotations

import json
import logging
import os
import threading
from pathlib import Path

import pytest

from tests.doubles import ManualClock, MemoryBus, ScriptedCollector, log_record, metric_value
from trainwarden.collectors.agent.agent import POSITIONS, Agent
from trainwarden.errors import BusUnavailable, CollectorError, ConfigError
from trainwarden.records import EventRecord, LogRecord, MetricsRecord, Record
from trainwarden.self_metrics import SelfMetrics
from trainwarden.settings import AgentSettings, Settings


class Rig:
    """An agent of scripted collectors `a` and `b` in a folder, which can be killed and started again."""

    def __init__(self, folder: Path, **agent: object) -> None:
        self.folder = folder
        self.clock = ManualClock(1000.0)
        self.bus = MemoryBus(self.clock)
        self.no_bus = False
        self.agent_settings = {"collectors": {"a": {}, "b": {"interval_s": 10.0}}, **agent}
        self.start()

    def start(self) -> None:
        """A fresh process in the same folder."""
        self.metrics = SelfMetrics("agent")
        settings = Settings(job="job", node="node0", agent=AgentSettings(**self.agent_settings))  # type: ignore[arg-type]
        self.agent = Agent(
            settings, self._connect, self.clock, self.metrics, state_dir=self.folder / "state", run_dir=self.folder
        )

    def _connect(self) -> MemoryBus:
        if self.no_bus:
            raise BusUnavailable("not there by the test")
        return self.bus

    def collector(self, name: str = "a") -> ScriptedCollector:
        """The collector behind a name."""
        found = next(task.collector for task in self.agent._tasks if task.name == name)
        assert isinstance(found, ScriptedCollector)
        return found

    def give(self, *records: Record) -> None:
        self.collector().pending.extend(records)

    def step(self, seconds: float = 1.0) -> None:
        self.clock.sleep(seconds)
        self.agent.step()

    def wait(self) -> None:
        for lane in self.agent.lanes:
            lane.wait.wait(lane.tasks)

    def lines(self) -> list[int]:
        """Numbers of the log records that the bus has."""
        return [record.ends[0] for record in self.bus.records(LogRecord)]


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rig:
    double = "tests.doubles:ScriptedCollector"
    monkeypatch.setattr("trainwarden.collectors.agent.agent.CATALOG", {"a": double, "b": double})
    return Rig(tmp_path)


def metrics_record(**values: float) -> MetricsRecord:
    rows = tuple((value,) for value in values.values())
    return MetricsRecord(job="job", node="node0", time_s=1.0, devices=("d",), names=tuple(values), values=rows)


def test_records_reach_the_bus_under_the_jobs_key(rig: Rig) -> None:
    rig.give(log_record(1), log_record(2))
    rig.step()
    assert rig.lines() == [1, 2]
    assert {key for _, key, _ in rig.bus.kept} == {"job"}


def test_each_collector_is_called_at_its_own_interval(rig: Rig) -> None:
    for _ in range(21):
        rig.step(1.0)
    assert (rig.collector("a").calls, rig.collector("b").calls) == (21, 3)


def test_a_wake_fd_brings_the_turn_forward(rig: Rig) -> None:
    reading, writing = os.pipe()
    try:
        rig.collector("b").fds = [reading]
        rig.step()
        os.write(writing, b"x")
        rig.clock.sleep(0.5)
        rig.wait()
        rig.agent.step()
        assert rig.collector("b").calls == 2
    finally:
        os.close(reading)
        os.close(writing)


def test_a_source_that_wakes_all_the_time_is_not_read_all_the_time(rig: Rig) -> None:
    reading, writing = os.pipe()
    try:
        os.write(writing, b"x")
        rig.collector("b").fds = [reading]
        rig.step()
        for _ in range(10):
            rig.clock.sleep(0.005)
            rig.wait()
            rig.agent.step()
        assert 2 <= rig.collector("b").calls <= 4
    finally:
        os.close(reading)
        os.close(writing)


def test_positions_are_kept_only_after_the_bus_has_confirmed(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(timeout_s: float = 30.0) -> None:
        raise KeyboardInterrupt

    rig.give(log_record(1))
    rig.step()
    rig.give(log_record(2))
    monkeypatch.setattr(rig.bus, "flush", killed)
    with pytest.raises(KeyboardInterrupt):
        rig.step()
    assert json.loads((rig.folder / "state" / POSITIONS).read_text())["a"] == {"read": 1}


def test_a_disk_that_keeps_no_positions_ends_no_agent(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    full = rig.folder / "state" / f".{POSITIONS}.{os.getpid()}.part"
    full.mkdir(parents=True)
    for number in (1, 2):
        rig.give(log_record(number))
        rig.step()
    assert rig.lines() == [1, 2]
    assert [record.message for record in caplog.records].count("positions cannot be kept") == 1
    full.rmdir()
    rig.step()
    assert json.loads((rig.folder / "state" / POSITIONS).read_text())["a"] == {"read": 2}


def test_positions_are_written_once_a_second_but_at_once_behind_a_fact_and_at_the_end(rig: Rig) -> None:
    def kept() -> object:
        return json.loads((rig.folder / "state" / POSITIONS).read_text())["a"]

    rig.collector().interval_s = 0.2
    rig.give(log_record(1))
    rig.step()
    rig.give(log_record(2))
    rig.step(0.2)
    assert (kept(), rig.lines()) == ({"read": 1}, [1, 2])
    rig.give(EventRecord(id="e", job="job", node="node0", time_s=1.0, kind="xid"))
    rig.step(0.2)
    assert kept() == {"read": 3}
    rig.give(log_record(4))
    rig.step(0.2)
    assert kept() == {"read": 3}
    rig.step(0.8)
    assert kept() == {"read": 4}, "without anything new"
    rig.give(log_record(5))
    rig.step(0.2)
    rig.agent.close()
    assert kept() == {"read": 5}


def test_a_round_at_which_nobody_had_a_turn_asks_nothing_of_the_bus(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.give(log_record(1))
    rig.step()
    drains: list[float] = []
    really = rig.agent._delivery.drain
    monkeypatch.setattr(rig.agent._delivery, "drain", lambda: drains.append(rig.clock.monotonic_s()) or really())
    rig.step(0.2)
    assert drains == []
    rig.step(0.8)
    assert len(drains) == 1
    rig.bus.away = True
    rig.give(log_record(2))
    rig.step()
    rig.step(0.2)
    assert len(drains) == 3, "what waits on the disk is brought on at each round"


def test_a_restart_hands_positions_back(rig: Rig) -> None:
    rig.give(log_record(1), log_record(2))
    rig.step()
    rig.start()
    rig.step()
    assert rig.collector().restored == {"read": 2}


def test_unknown_and_impossible_metrics_are_dropped_and_counted(rig: Rig) -> None:
    rig.give(
        metrics_record(gpu_temperature_celsius=65.0, made_up=1.0),
        metrics_record(gpu_temperature_celsius=float("nan"), gpu_power_watts=float("inf")),
        metrics_record(gpu_utilization_ratio=1.7, gpu_power_watts=300.0),
        MetricsRecord(job="j", node="n", time_s=1.0, devices=("d", "e"), names=("gpu_power_watts",), values=((1.0,),)),
    )
    rig.step()
    kept = [record for record in rig.bus.records(MetricsRecord) if record.devices == ("d",)]
    assert [(record.names, record.values) for record in kept] == [
        (("gpu_temperature_celsius",), ((65.0,),)),
        (("gpu_power_watts",), ((300.0,),)),
    ]
    reasons = ("unknown_name", "not_finite", "out_of_bounds", "shape")
    dropped = {why: metric_value(rig.metrics, "dropped_values_total", why=why) for why in reasons}
    assert dropped == {"unknown_name": 1.0, "not_finite": 2.0, "out_of_bounds": 1.0, "shape": 1.0}


def test_while_the_bus_is_away_records_wait_on_disk_and_come_in_order(rig: Rig) -> None:
    rig.give(log_record(0))
    rig.step()
    rig.bus.away = True
    for number in range(1, 20):
        rig.give(log_record(number))
        rig.step()
    assert rig.lines() == [0]
    rig.bus.away = False
    rig.give(log_record(20))
    for number in range(21, 30):
        rig.step()
        rig.give(log_record(number))
    rig.step()
    assert rig.lines() == list(range(30))


def test_new_records_queue_behind_a_spool_that_takes_several_rounds_to_drain(rig: Rig) -> None:
    rig.bus.away = True
    rig.give(log_record(0))
    rig.step()  # this one the bus has queued; what follows lies in the spool alone
    rig.give(*(log_record(number) for number in range(1, 1600)))
    rig.step()
    rig.bus.away = False
    rig.bus.flush_takes_s = 0.3
    for number in range(1600, 1620):
        rig.give(log_record(number))
        rig.step(5.0)
        assert rig.lines() == list(range(len(rig.lines())))
    assert len(rig.lines()) == 1620


def test_a_kill_while_the_bus_is_away_loses_nothing(rig: Rig) -> None:
    rig.bus.away = True
    for number in range(5):
        rig.give(log_record(number))
        rig.step()
    rig.bus = MemoryBus(rig.clock)  # what the old process had queued is gone with it
    rig.start()
    rig.step()
    rig.step()
    assert rig.lines() == list(range(5))


def test_the_agent_starts_without_a_bus(rig: Rig) -> None:
    rig.no_bus = True
    rig.give(log_record(1))
    rig.step()
    rig.no_bus = False
    rig.step(10.0)
    assert rig.lines() == [1]


def test_a_broker_that_takes_its_time_to_connect_does_not_hold_up_collection(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainwarden.collectors.agent.delivery._TRY_S", 0.01)
    answered = threading.Event()
    connect = rig._connect

    def slowly() -> MemoryBus:
        answered.wait(30.0)
        return connect()

    monkeypatch.setattr(rig, "_connect", slowly)
    rig.start()
    for number in range(5):
        rig.give(log_record(number))
        rig.step()
    assert rig.collector().calls == 5
    answered.set()
    while not rig.lines():
        rig.step(10.0)
    assert rig.lines() == list(range(5))


@pytest.mark.thorough
def test_a_full_spool_drops_the_oldest_and_counts_them(tmp_path: Path, rig: Rig) -> None:
    rig.agent_settings["spool_bytes"] = 65_536
    rig.start()
    rig.bus.away = True
    for number in range(600):
        rig.give(log_record(number, source="s" * 200))
        rig.step()
    rig.bus.away = False
    rig.bus.queued.clear()
    for _ in range(20):
        rig.step(10.0)
    dropped = metric_value(rig.metrics, "dropped_records_total", why="oldest")
    assert dropped
    newest = rig.lines()[-1]
    assert newest == 599
    assert len(rig.lines()) + dropped >= 600


def test_a_slow_bus_blocks_no_longer_than_the_timeout(rig: Rig) -> None:
    rig.agent_settings["flush_timeout_s"] = 2.0
    rig.start()
    rig.bus.flush_takes_s = 60.0
    for number in range(10):
        rig.give(log_record(number))
        before_s = rig.clock.now_s()
        rig.clock.sleep(1.0)
        rig.agent.step()
        assert rig.clock.now_s() - before_s <= 3.0
    assert max(rig.bus.flush_timeouts_s) <= 2.0
    assert rig.collector().calls == 10


def test_a_refused_record_does_not_hold_up_the_others(rig: Rig) -> None:
    rig.bus.refuses = EventRecord
    rig.give(EventRecord(id="e", job="job", node="n", time_s=1.0, kind="xid"), log_record(1))
    rig.step()
    assert rig.lines() == [1]
    assert metric_value(rig.metrics, "dropped_records_total", why="refused") == 1.0


def test_a_failing_collector_backs_off_and_is_told_of_once(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="trainwarden.agent")
    rig.step()
    collector = rig.collector()
    collector.error = CollectorError("gone")
    rig.give(log_record(1))
    for _ in range(100):
        rig.step()
    assert rig.lines() == [1]  # what it gave before it failed is kept
    assert 4 <= collector.calls <= 10
    assert metric_value(rig.metrics, "collector_errors_total", collector="a") == collector.calls - 1
    collector.error = None
    for _ in range(100):
        rig.step()
    messages = [record.message for record in caplog.records]
    assert messages.count("collector fails") == 1
    assert messages.count("collector works again") == 1
    assert rig.collector("b").calls > 15


def test_what_a_collector_refuses_to_read_is_told_as_a_counter(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rig.collector(), "junk", 2, raising=False)
    rig.step()
    assert metric_value(rig.metrics, "inputs_refused_total", collector="a") == 2
    monkeypatch.setattr(rig.collector(), "junk", 5)
    rig.step()
    rig.step()
    assert metric_value(rig.metrics, "inputs_refused_total", collector="a") == 5
    assert metric_value(rig.metrics, "inputs_refused_total", collector="b") is None


def test_any_exception_of_a_plugin_is_only_that_plugins(rig: Rig) -> None:
    rig.collector().error = ZeroDivisionError("a bug")
    rig.step()
    rig.step()
    assert rig.collector("b").calls == 1


def test_absent_hardware_is_skipped_with_one_line_and_one_event(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="trainwarden.agent")
    rig.collector().absent = "there is no such device"
    for _ in range(300):
        rig.step()
    events = rig.bus.records(EventRecord)
    assert [(event.kind, event.message) for event in events] == [("collector_unsupported", "there is no such device")]
    assert [record.message for record in caplog.records].count("collector skipped") == 1
    assert rig.collector().calls == 0
    rig.collector().absent = None
    for _ in range(61):
        rig.step()
    assert rig.collector().calls > 0


def test_it_publishes_its_own_cost(rig: Rig) -> None:
    for _ in range(12):
        rig.step()
    own = [record for record in rig.bus.records(MetricsRecord) if record.devices == ("agent",)]
    assert len(own) == 2
    values = dict(zip(own[-1].names, (row[0] for row in own[-1].values), strict=True))
    assert values["agent_resident_memory_bytes"] > 1e6
    assert {"agent_cpu_ratio", "agent_lag_seconds", "agent_spool_bytes", "agent_dropped_records_count"} <= values.keys()
    assert metric_value(rig.metrics, "resident_memory_bytes") == values["agent_resident_memory_bytes"]


def test_a_jump_of_the_wall_clock_is_an_event(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.step()
    monkeypatch.setattr(rig.clock, "now_s", lambda: rig.clock.monotonic_s() + 30.0)
    rig.step()
    rig.step()
    steps = [event for event in rig.bus.records(EventRecord) if event.kind == "clock_step"]
    assert [event.fields["step_s"] for event in steps] == [30.0]


@pytest.mark.thorough
def test_run_collects_once_more_when_told_to_stop_and_closes(rig: Rig) -> None:
    rig.collector("b").pending.append(log_record(7))
    turns = iter([False, True])
    rig.agent.run(lambda: next(turns))
    assert rig.lines() == [7]
    rig.agent.close()
    assert (rig.collector("a").closed, rig.bus.closed) == (1, 1)


@pytest.mark.parametrize(
    ("collectors", "sentence"),
    [
        ({"nope": {}}, "there is no collectors plug-in 'nope'; there are: a, b"),
        ({"nope": False}, "there is no collectors plug-in 'nope'; there are: a, b"),
        ({"a": {"colour": 1}}, "agent.collectors.a: unknown key `colour`"),
    ],
)
def test_mistakes_in_settings_are_one_sentence(
    rig: Rig, collectors: dict[str, dict[str, object]], sentence: str
) -> None:
    rig.agent_settings["collectors"] = collectors
    with pytest.raises(ConfigError) as caught:
        rig.start()
    assert str(caught.value).startswith(sentence)


def test_what_settings_say_of_one_leaves_the_others(rig: Rig, tmp_path: Path) -> None:
    rig.agent_settings["collectors"] = {"b": {"interval_s": 10.0}}
    rig.start()
    assert [(task.name, task.collector.interval_s) for task in rig.agent._tasks] == [("a", 1.0), ("b", 10.0)]
    rig.agent_settings["collectors"] = {"a": False}
    rig.start()
    assert [(task.name, task.collector.interval_s) for task in rig.agent._tasks] == [("b", 1.0)]


def test_a_position_that_means_nothing_to_the_collector_stops_it_once(rig: Rig, tmp_path: Path) -> None:
    (tmp_path / "state" / POSITIONS).write_text('{"a": {"from": "another version"}}')
    rig.start()
    rig.give(log_record(1))
    rig.step()
    assert metric_value(rig.metrics, "collector_errors_total", collector="a") == 1.0
    for _ in range(5):
        rig.step()
    assert rig.lines() == [1]


def test_damaged_positions_mean_a_fresh_start(rig: Rig, tmp_path: Path) -> None:
    (tmp_path / "state" / POSITIONS).write_text('{"a": 3, "b"')
    rig.start()
    rig.step()
    assert rig.collector().restored is None
