"""A lane of collectors one of which does not come back; the clock is turned by hand, the threads are real."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator

import pytest

from tests.doubles import SCOPE, ManualClock, MemoryBus, ScriptedCollector, log_record, metric_value
from trainwarden.collectors.agent.collector_runner import Batch, CollectorRunner
from trainwarden.collectors.agent.collector_thread import CollectorThread
from trainwarden.collectors.agent.delivery import Delivery
from trainwarden.collectors.agent.schedule import Task
from trainwarden.collectors.agent.spool import Spool
from trainwarden.records import HeartbeatRecord, Record
from trainwarden.self_metrics import SelfMetrics

LONG_S = 10.0  # no step of these tests takes a noticeable part of it


class Stuck(ScriptedCollector):
    """Comes back from its source when the test lets it."""

    def __init__(self) -> None:
        super().__init__(self.Config())
        self.called, self.let_go = threading.Event(), threading.Event()

    def collect(self, now_s: float) -> Iterable[Record]:
        self.called.set()
        assert self.let_go.wait(LONG_S)
        return super().collect(now_s)


class Rig:
    """A lane of a stuck collector and, after it, one that works."""

    def __init__(self) -> None:
        self.clock, self.metrics = ManualClock(1000.0), SelfMetrics("agent")
        self.stuck, self.other = Stuck(), ScriptedCollector(ScriptedCollector.Config())
        self.tasks = [Task("stuck", self.stuck, 0.0), Task("other", self.other, 0.0)]
        self.batches: list[Batch] = []
        self.came = threading.Condition()
        turn = CollectorRunner(SCOPE, self.clock, self.metrics, {})
        self.lane = CollectorThread("lane", self.tasks, turn, self.take, clock=self.clock, metrics=self.metrics)

    def take(self, batch: Batch) -> None:
        with self.came:
            self.batches.append(batch)
            self.came.notify_all()

    def wait_for(self, collector: str, number: int = 1) -> list[Batch]:
        """The batches of `collector` once there are `number`."""
        with self.came:
            assert self.came.wait_for(
                lambda: [one.collector for one in self.batches].count(collector) >= number, LONG_S
            )
            return [one for one in self.batches if one.collector == collector]


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    made.lane.start()
    assert made.stuck.called.wait(LONG_S)
    yield made
    made.stuck.let_go.set()
    made.lane.finish()


def test_a_collector_over_its_deadline_is_skipped_and_counted_and_the_others_go_on(rig: Rig) -> None:
    rig.clock.sleep(1.9)
    rig.lane.look_after(2.0)
    assert metric_value(rig.metrics, "collectors_stuck_total", collector="stuck") is None
    rig.clock.sleep(0.2)
    rig.lane.look_after(2.0)
    rig.lane.look_after(2.0)
    assert metric_value(rig.metrics, "collectors_stuck_total", collector="stuck") == 1.0
    rig.wait_for("other")
    assert [task.stuck for task in rig.tasks] == [True, False]
    rig.clock.sleep(5.0)
    rig.lane.wait.wake()
    rig.wait_for("other", 2)
    assert rig.batches[0].collector == "other"


def test_what_comes_back_late_is_taken_and_its_turns_go_on(rig: Rig) -> None:
    rig.clock.sleep(3.0)
    rig.lane.look_after(2.0)
    rig.wait_for("other")
    rig.stuck.pending.append(log_record(1))
    rig.stuck.let_go.set()
    (late,) = rig.wait_for("stuck")
    assert (late.records, late.position) == ([log_record(1)], {"read": 1})
    rig.clock.sleep(2.0)
    rig.lane.wait.wake()
    rig.wait_for("stuck", 2)
    assert not rig.tasks[0].stuck


def test_the_end_waits_for_nobody_who_hangs(rig: Rig) -> None:
    rig.clock.sleep(3.0)
    rig.lane.look_after(2.0)
    rig.wait_for("other")
    rig.lane.finish()
    rig.wait_for("other", 2)
    assert not rig.lane.join(LONG_S)
    rig.lane.close()
    assert (rig.stuck.closed, rig.other.closed) == (0, 1)


class Overtaken(MemoryBus):
    """A bus whose flush takes long; meanwhile a lane has a heartbeat."""

    def flush(self, timeout_s: float = 30.0) -> None:
        self.overtook = [self.delivery.overtake(BEAT)]
        assert self._clock is not None
        self._clock.sleep(1.0)
        self.overtook.append(self.delivery.overtake(BEAT))
        super().flush(timeout_s)

    delivery: Delivery
    overtook: list[bool]


BEAT = HeartbeatRecord(job="job", node="node0", time_s=1.0)


def test_a_heartbeat_overtakes_a_flush_that_does_not_come_back(tmp_path: object) -> None:
    clock = ManualClock(1000.0)
    bus, spool = Overtaken(clock), Spool(tmp_path / "spool", 65_536)  # type: ignore[operator]
    bus.delivery = Delivery(lambda: bus, spool, clock, SelfMetrics("agent"), key="job", flush_timeout_s=5.0)
    assert not bus.delivery.overtake(BEAT)  # there is no bus yet
    bus.delivery.send([log_record(1)])
    assert bus.overtook == [False, True]
    assert not bus.delivery.overtake(BEAT)  # the bus confirms again: order holds
    bus.away = True
    bus.delivery.send([log_record(2)])
    assert bus.delivery.overtake(BEAT)
    assert [type(record).__name__ for _, _, record in bus.queued] == ["LogRecord"] + ["HeartbeatRecord"] * 2
