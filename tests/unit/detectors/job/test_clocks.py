"""One clock for a job: what nodes and services say, by the clock of the bus."""

from __future__ import annotations

import msgspec
import pytest

from tests.doubles import ManualClock
from trainwarden.detectors.job import clocks as clocks_module
from trainwarden.detectors.job.clocks import LATE_S, SPAN_S, BusClock, ClockOffsets, NodeClocks
from trainwarden.detectors.testing.streams import event, log_lines
from trainwarden.protocols import Message
from trainwarden.records import CollectivesRecord, EventRecord, HeartbeatRecord, IterationRecord, MetricsRecord, Record

A = ("a", "")


def beat(
    time_s: float, node: str = "node0", *, rank: int = 0, monotonic_s: float | None = 7.0, boot: str = ""
) -> HeartbeatRecord:
    return HeartbeatRecord(
        job="j", node=node, time_s=time_s, ranks=(rank,), phase_since_s=(time_s - 1.0,), step_end_s=(None,),
        monotonic_s=monotonic_s, boot=boot,
    )  # fmt: skip


def heard(ahead: ClockOffsets, off_s: float, *delays_s: float, from_s: float = 1000.0) -> float:
    for place, delay_s in enumerate(delays_s):
        at_s = from_s + place
        ahead.observe(A, at_s - delay_s + off_s, at_s)
    return ahead.of(A)


def time_of(record: Record) -> float:
    assert isinstance(record, EventRecord | HeartbeatRecord)
    return record.time_s


@pytest.mark.parametrize("off_s", [-90.0, -5.0, 5.0, 90.0])
def test_a_clock_that_is_off_is_known_by_what_came_fastest(off_s: float) -> None:
    assert heard(ClockOffsets(), off_s, 0.3, 0.9, 0.3, 0.8, 0.5, 0.4, 0.3) == pytest.approx(off_s - 0.3, abs=0.7)


def test_a_clock_that_is_right_is_left_alone_however_late_it_is_heard() -> None:
    ahead = ClockOffsets()
    assert heard(ahead, 0.0, 60.0, 59.0, 58.0, 3.0, 0.1) == 0.0  # a spool comes first
    assert heard(ahead, 0.0, *range(20), from_s=1010.0) == 0.0
    assert heard(ahead, 0.0, 600.0, 599.0, 0.2, from_s=2000.0) == 0.0  # ten minutes without a bus


@pytest.mark.parametrize("drained_in_s", [20, 60, 300])
def test_a_spool_that_takes_its_time_is_no_clock_that_is_behind(drained_in_s: int) -> None:
    """An hour without a bus, and all nodes have something to say at once."""
    ahead = ClockOffsets()
    heard(ahead, 0.0, *[0.1] * 100)
    late_s = [3600.0 * (1.0 - second / drained_in_s) for second in range(drained_in_s)]
    for place, delay_s in enumerate(late_s):
        assert heard(ahead, 0.0, delay_s, from_s=5000.0 + place) == 0.0
    assert heard(ahead, 0.0, *[0.1] * 100, from_s=5000.0 + drained_in_s) == 0.0


@pytest.mark.parametrize("to_s", [-90.0, 90.0])
def test_a_clock_that_is_set_is_followed_at_once_where_it_is_told_and_in_a_while_where_not(to_s: float) -> None:
    ahead = ClockOffsets()
    heard(ahead, 0.0, *[0.1] * 10)
    ahead.set(A, to_s)
    assert ahead.of(A) == to_s
    assert heard(ahead, to_s, *[0.1] * (3 * int(SPAN_S)), from_s=1010.0) == pytest.approx(to_s, abs=0.2)
    ahead = ClockOffsets()
    heard(ahead, 0.0, *[0.1] * 10)
    beats = 2 * int(SPAN_S) + int(LATE_S) + 2
    assert heard(ahead, to_s, *[0.1] * beats, from_s=1010.0) == pytest.approx(to_s - 0.1)


def test_all_that_a_node_says_is_put_on_the_clock_of_the_bus_and_what_others_say_is_not() -> None:
    clocks = NodeClocks()
    told = clocks.on_bus(beat(1090.0), 1000.0)
    assert isinstance(told, HeartbeatRecord)
    assert (told.time_s, told.phase_since_s, told.step_end_s, told.monotonic_s) == (1000.0, (999.0,), (None,), 7.0)
    steps = IterationRecord(job="j", node="node0", rank=0, incarnation="1", steps=(1,), end_s=(1091.0,),
                            duration_s=(0.5,))  # fmt: skip
    samples = MetricsRecord(job="j", node="node0", time_s=1091.0, devices=(), names=(), values=())
    said: list[tuple[Record, object]] = [
        (steps, (1001.0,)), (samples, 1001.0), (event("xid", 1091.0), 1001.0),
        (log_lines(0, [(1091.0, "a"), (1091.5, "b")]), (1001.0, 1001.5)),
    ]  # fmt: skip
    for record, expected in said:
        moved = clocks.on_bus(record, 1002.0)
        assert expected in {getattr(moved, name, None) for name in ("end_s", "time_s", "times_s")}
    other = event("xid", 1001.0, node="node1")
    assert clocks.on_bus(other, 1002.0) is other


@pytest.mark.parametrize("to_s", [-90.0, 90.0])
@pytest.mark.parametrize("from_s", [0.0, 90.0])
def test_a_heartbeat_tells_by_its_other_clock_that_one_was_set(from_s: float, to_s: float) -> None:
    clocks = NodeClocks()
    for second in range(10):
        clocks.on_bus(beat(1000.0 + second + from_s, monotonic_s=7.0 + second), 1000.0 + second)
    for second in range(10, 20):
        told = clocks.on_bus(beat(1000.0 + second + to_s, monotonic_s=7.0 + second), 1000.3 + second)
        assert time_of(told) == pytest.approx(1000.0 + second, abs=0.4)
        overtaken = beat(1000.0 + 9 + from_s, monotonic_s=7.0 + 9)
        clocks.on_bus(overtaken, 1000.4 + second)


def test_a_clock_begins_anew_where_a_machine_does() -> None:
    """Nobody says which boot it is."""
    clocks = NodeClocks()
    clocks.on_bus(beat(1000.0, monotonic_s=9000.0), 1000.0)
    for second in range(3):
        told = clocks.on_bus(beat(1590.0 + second, monotonic_s=10.0 + second), 1500.0 + second)
        assert time_of(told) == 1500.0 + second


@pytest.mark.parametrize("off_s", [-90.0, 90.0])
def test_machines_under_one_name_keep_a_clock_each(off_s: float) -> None:
    clocks = NodeClocks()
    for second in range(10):
        for rank, off in ((0, 0.0), (1, off_s)):
            said_s = 1000.0 + second + off
            clocks.on_bus(beat(said_s, rank=rank, monotonic_s=1.0 + second, boot=f"boot{rank}"), 1000.0 + second)
    for rank, off in ((0, 0.0), (1, off_s)):
        exits = event("process_exit", 1010.0 + off, rank)
        assert time_of(clocks.on_bus(exits, 1010.1)) == pytest.approx(1010.0)


def test_a_bus_full_of_made_up_nodes_leaves_those_that_go_on_known_and_no_more(monkeypatch) -> None:
    monkeypatch.setattr(clocks_module, "MAX_NODES", 8)
    clocks = NodeClocks()
    for number in range(1000):
        if number % 5 == 0:
            clocks.on_bus(beat(1090.0 + number, monotonic_s=7.0 + number), 1000.0 + number)
        made_up = beat(2000.0 + number, f"made-up-{number // 2}", rank=1 + number, boot=str(number % 2))
        clocks.on_bus(msgspec.structs.replace(made_up, ranks=(1 + number,) * 2), 1000.0 + number)
    assert time_of(clocks.on_bus(event("xid", 2090.0), 2000.0)) == 2000.0
    held = (clocks._of_node, clocks._of_rank, clocks._ranks, clocks._newest, *vars(clocks._ahead).values())
    assert max(len(table) for table in held) <= 8


def test_nothing_is_from_the_future_though_its_clock_is_not_known_yet() -> None:
    clocks = NodeClocks()
    calls = CollectivesRecord(job="j", node="node0", rank=0, incarnation="1", time_s=1090.0)
    for record in (event("xid", 1090.0), calls, log_lines(0, [(1089.0, "a"), (1090.0, "b")])):
        moved = clocks.on_bus(record, 1000.0)
        assert {getattr(moved, "time_s", None), getattr(moved, "times_s", None)} & {1000.0, (999.0, 1000.0)}
    damaged = event("xid", 1e12)
    assert clocks.on_bus(damaged, 1000.0) is damaged  # for whoever counts what is odd


@pytest.mark.parametrize("off_s", [-90.0, 90.0])
def test_a_service_goes_by_the_clock_of_the_bus(off_s: float) -> None:
    own = ManualClock(1000.0)
    clock = BusClock(own)
    for _ in range(10):
        own.sleep(1.0)
        clock.observe(Message("topic", 0, 0, own.now_s() + off_s - 0.1, "j", beat(0.0)))
    assert clock.now_s() == pytest.approx(own.now_s() + off_s, abs=0.2)
    assert clock.monotonic_s() == own.monotonic_s()


@pytest.mark.parametrize("logs", [1, 3])
@pytest.mark.parametrize("off_s", [-90.0, 90.0])
def test_a_service_goes_on_though_the_bus_is_set_and_set_back(off_s: float, logs: int) -> None:
    own = ManualClock(1000.0)
    clock = BusClock(own)
    forward_s = []
    for second in range(60):
        own.sleep(1.0)
        bus_s = own.now_s() + (off_s if 20 <= second < 40 else 0.0)
        at_s, more_s = clock.observe(Message("topic", second % logs, second, bus_s - 0.1, "j", beat(0.0)))
        forward_s += [more_s] if more_s else []
        ahead_s = 90.0 if off_s > 0.0 and second >= 20 else 0.0  # it does not go back
        assert (at_s, clock.now_s()) == (pytest.approx(own.now_s() + ahead_s, abs=1.2),) * 2
    assert forward_s == ([pytest.approx(90.0)] if off_s > 0.0 else [])


def test_what_comes_late_or_again_is_no_bus_that_was_set() -> None:
    own = ManualClock(1000.0)
    clock = BusClock(own)
    for offset in (*range(50), *range(20, 74)):
        own.sleep(1.5 if own.now_s() < 1075.0 else 0.01)  # it falls behind, begins again, and catches up
        stamp_s = 1000.0 + offset
        assert clock.observe(Message("topic", 0, offset, stamp_s, "j", beat(0.0))) == (stamp_s, 0.0)


class TwoClocks:
    """A wall clock that can be set, and another one that cannot."""

    def __init__(self) -> None:
        self.steady_s = self.set_s = 0.0

    def now_s(self) -> float:
        return 1000.0 + self.steady_s + self.set_s

    def monotonic_s(self) -> float:
        return self.steady_s

    def sleep(self, seconds: float) -> None:
        self.steady_s += seconds


@pytest.mark.parametrize("set_s", [-90.0, 90.0, 4000.0])
@pytest.mark.parametrize("same", [False, True])
def test_a_service_whose_clock_is_set_goes_on_by_that_of_the_bus(set_s: float, *, same: bool) -> None:
    """The bus may go by the same clock, which was set for both."""
    own = TwoClocks()
    clock = BusClock(own)
    for second in range(30):
        own.sleep(1.0)
        own.set_s = set_s if second >= 10 else 0.0
        bus_s = 1000.0 + own.steady_s + (own.set_s if same else 0.0)
        clock.observe(Message("topic", 0, 0, bus_s - 0.1, "j", beat(0.0)))
        assert clock.now_s() == pytest.approx(bus_s, abs=0.2)
