"""The iterations collector on files that the hook itself has written and on a kernel folder made up for the test."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.doubles import ManualClock
from tests.hook_doubles import set_everywhere
from trainwarden import hook
from trainwarden.collectors.iterations.collector import IterationsCollector
from trainwarden.collectors.iterations.hook_source import decode_note
from trainwarden.hook import Hook
from trainwarden.hook.layout import (
    AT_ACCELERATOR,
    AT_OFFSET_NS,
    AT_RANK,
    AT_SOURCE,
    AT_START_NS,
    AT_TIMED,
    AT_TIMING,
    BY_HAND,
    CHECKPOINT,
    DATA,
    DEVICE_BEGINS,
    DEVICE_WORDS,
    NO_WAIT,
    POOL_STEPS,
    TIMINGS,
)
from trainwarden.hook.thread import clock
from trainwarden.protocols import Scope
from trainwarden.records import EventRecord, HeartbeatRecord, IterationRecord, MetricsRecord, Record
from trainwarden.topics import topic_of

TICKS = os.sysconf("SC_CLK_TCK")


class Node:
    """A run folder, a kernel folder and a collector over both."""

    def __init__(self, folder: Path) -> None:
        self.run_dir = folder / "run"
        self.hook_dir = self.run_dir / "hook"
        self.hook_dir.mkdir(parents=True)
        self.proc = folder / "proc"
        self.proc.mkdir()
        self.clock = ManualClock(1_000_000.0)
        self.collector = self.new_collector()

    def new_collector(self, **settings: Any) -> IterationsCollector:
        config = IterationsCollector.Config(proc=str(self.proc), **settings)
        return IterationsCollector(config, Scope(job="job", node="node", run_dir=str(self.run_dir)), self.clock)

    def process(self, pid: int, state: str = "S", cpu_s: float = 1.5, started_ticks: int = 0) -> None:
        folder = self.proc / str(pid)
        folder.mkdir(exist_ok=True)
        fields = ["0"] * 50
        fields[0], fields[11], fields[12] = state, str(int(cpu_s * TICKS)), "0"
        fields[19] = str(started_ticks)
        (folder / "stat").write_text(f"{pid} (python) odd) name) {' '.join(fields)}\n")

    def collect(self, collector: IterationsCollector | None = None) -> list[Record]:
        self.clock.sleep(0.2)
        found = list((collector or self.collector).collect(self.clock.now_s()))
        for record in found:
            topic = topic_of(record)
            assert topic.decode(topic.encode(record)) == record
        return found


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    made.collector.close()


@pytest.fixture
def rank(node: Node, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], Hook]]:
    """Makes the hook of a rank; its process runs by the made-up kernel folder."""
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(sys, "exit", sys.exit)
    made: list[Hook] = []

    def build(number: int) -> Hook:
        monkeypatch.setenv("RANK", str(number))
        monkeypatch.setenv("WORLD_SIZE", "4")
        built = Hook(str(node.hook_dir))
        built.missing = []
        monkeypatch.setattr(os, "getpid", lambda: 100 + number)
        assert built.activate()
        monkeypatch.undo()
        node.process(100 + number)
        os.utime(node.hook_dir, (node.clock.now_s(),) * 2)  # the folder's time is the node's, whose clock is made up
        made.append(built)
        return built

    yield build
    for built in made:
        built.memory.live = False


def steps(target: Hook, count: int = 1) -> None:
    for _ in range(count):
        target.backward.end(target.backward.begin(None))
        target.waits.leave(target.waits.enter())
        target.ends.optimizer_stepped()


def of(kind: type[Any], records: list[Record]) -> list[Any]:
    return [record for record in records if isinstance(record, kind)]


def events(records: list[Record], kind: str) -> list[EventRecord]:
    return [record for record in of(EventRecord, records) if record.kind == kind]


def test_new_steps_come_once_and_in_order(node: Node, rank: Callable[[int], Hook]) -> None:
    first, second = rank(0), rank(1)
    steps(first, 3)
    steps(second, 2)
    found = of(IterationRecord, node.collect())
    assert sorted((record.rank, record.steps) for record in found) == [(0, (0, 1, 2)), (1, (0, 1))]
    record = next(record for record in found if record.rank == 0)
    assert record.incarnation == hook.read_header(first.memory.path + ".hook").incarnation  # type: ignore[union-attr]
    assert record.basis == "host"
    assert record.role == "collective"
    assert record.micro_batches == (1, 1, 1)
    for place, duration_s in enumerate(record.duration_s):
        parts = (record.compute_s[place], record.wait_s[place], record.pause_s[place])
        assert sum(part or 0.0 for part in parts) == pytest.approx(duration_s, abs=1e-9)
    assert of(IterationRecord, node.collect()) == []
    steps(first)
    (record,) = of(IterationRecord, node.collect())
    assert record.steps == (3,)


def test_a_restarted_agent_goes_on_where_it_was(node: Node, rank: Callable[[int], Hook]) -> None:
    target = rank(0)
    steps(target, 3)
    node.collect()
    position = json.loads(json.dumps(node.collector.position()))
    steps(target, 2)
    node.collector.close()
    second = node.new_collector()
    second.restore(position)
    found = node.collect(second)
    assert [record.steps for record in of(IterationRecord, found)] == [(3, 4)]
    assert events(found, "process_start") == []
    second.close()


def test_positions_of_ranks_not_seen_yet_are_kept(node: Node) -> None:
    position = {"files": {"rank-0-100.hook": {"steps": 3}}}
    node.collector.restore(position)
    assert node.collector.position() == position


def test_who_waits_for_a_processor_does_not_sleep(node: Node, rank: Callable[[int], Hook]) -> None:
    rank(0)
    rank(2)
    node.process(102, cpu_s=7.25)
    (node.proc / "102" / "schedstat").write_text("7250000000 2500000000 901\n")
    (beat,) = of(HeartbeatRecord, node.collect())
    assert beat.cpu_s == (1.5, 9.75)


def test_heartbeats_tell_what_every_rank_is_doing(node: Node, rank: Callable[[int], Hook]) -> None:
    stuck, busy = rank(2), rank(0)
    steps(busy)
    stuck.waits.enter()
    node.process(102, state="T", cpu_s=7.25)
    (beat,) = of(HeartbeatRecord, node.collect())
    assert beat.ranks == (0, 2)
    assert beat.pids == (100, 102)
    assert beat.phases == ("compute", "wait")
    assert beat.states == ("S", "T")
    assert beat.cpu_s == (1.5, 7.25)
    assert beat.steps == (1, 0)
    assert beat.step_end_s[0] is not None
    assert beat.step_end_s[1] is None
    assert beat.time_s == node.clock.now_s()


def test_a_process_that_is_gone_is_told_as_such_for_a_while(node: Node, rank: Callable[[int], Hook]) -> None:
    steps(rank(0))
    node.collect()
    (node.proc / "100" / "stat").unlink()
    (beat,) = of(HeartbeatRecord, node.collect())
    assert (beat.states, beat.cpu_s) == (("X",), (None,))
    node.clock.sleep(60.0)
    assert of(HeartbeatRecord, node.collect()) == []


@pytest.mark.parametrize("by_s", [60.0, -60.0])
def test_a_step_of_the_wall_clock_ends_no_rank(node: Node, rank: Callable[[int], Hook], by_s: float) -> None:
    """What the hook wrote down before the clock was set stays as it is; the kernel reckons its boot time anew."""
    target = rank(0)
    with Path(target.memory.path + ".hook").open("r+b") as file:
        for place in (AT_START_NS, AT_OFFSET_NS):
            file.seek(8 * place)
            before = int.from_bytes(file.read(8), "little", signed=True)
            file.seek(8 * place)
            file.write((before - int(by_s * 1e9)).to_bytes(8, "little", signed=True))
    real = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime "))
    (node.proc / "stat").write_text(real + "\n")
    node.process(100, started_ticks=int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]))
    (beat,) = of(HeartbeatRecord, node.collect())
    assert beat.states == ("S",)


def test_another_process_with_the_same_pid_is_not_the_rank(node: Node, rank: Callable[[int], Hook]) -> None:
    target = rank(0)
    header = hook.read_header(target.memory.path + ".hook")
    assert header is not None
    ticks = int(header.start_monotonic_s * TICKS)
    node.process(100, started_ticks=ticks)
    (beat,) = of(HeartbeatRecord, node.collect())
    assert beat.states == ("S",)
    node.process(100, started_ticks=ticks + 1000 * TICKS)
    (beat,) = of(HeartbeatRecord, node.collect())
    assert beat.states == ("X",)


def test_the_first_look_at_a_process_is_an_event(node: Node, rank: Callable[[int], Hook]) -> None:
    rank(3)
    (event,) = events(node.collect(), "process_start")
    assert event.rank == 3
    assert event.fields["pid"] == 103
    assert event.fields["world_size"] == 4
    assert event.id == f"process_start/node/{event.fields['incarnation']}"
    assert events(node.collect(), "process_start") == []


def test_an_exception_is_told_once_by_datagram_or_file(node: Node, rank: Callable[[int], Hook]) -> None:
    heard, unheard = rank(0), rank(1)
    node.collect()  # binds the socket
    assert len(node.collector.wake_fds()) == 1
    error = UnicodeError("bad")
    error.__cause__ = MemoryError("full")
    heard.last_words.exception(UnicodeError, error, None)
    found = events(node.collect(), "exception")
    assert [(event.rank, event.message) for event in found] == [(0, "UnicodeError: bad")]
    assert found[0].fields["type"] == "UnicodeError"
    assert found[0].fields["types"] == "UnicodeError ValueError"
    assert found[0].fields["causes"] == "MemoryError: full"
    assert found[0].id == f"exception/node/{found[0].fields['incarnation']}"
    assert events(node.collect(), "exception") == []
    (node.hook_dir / "agent.sock").unlink()  # the agent is away
    unheard.last_words.exception(RuntimeError, RuntimeError("alone"), None)
    (event,) = events(node.collect(), "exception")
    assert (event.rank, event.message) == (1, "RuntimeError: alone")
    assert events(node.collect(), "exception") == []


def test_the_last_words_of_the_c_code_are_a_fatal_signal(node: Node, rank: Callable[[int], Hook]) -> None:
    target = rank(0)
    node.collect()
    text = (
        "Fatal Python error: Segmentation fault\n\nCurrent thread 0x00007f (most recent call first):\n"
        '  File "train.py", line 3 in main\n'
    )
    Path(target.memory.path + ".fault").write_text(text)
    (event,) = events(node.collect(), "fatal_signal")
    assert (event.rank, event.fields["signal"]) == (0, "SIGSEGV")
    assert event.fields["frame"] == 'File "train.py", line 3 in main'
    assert events(node.collect(), "fatal_signal") == []


def test_an_adopted_plan_is_an_event(node: Node, rank: Callable[[int], Hook], monkeypatch: pytest.MonkeyPatch) -> None:
    target = rank(1)
    monkeypatch.setenv("TRAINWARDEN_RUN_DIR", str(node.run_dir))
    monkeypatch.setitem(vars(sys), "_trainwarden_hook", target)
    (node.run_dir / "plan.json").write_text(json.dumps({"number": 4, "micro_batches": [3, 1]}))
    plan = hook.MicroBatchPlan(1, 2, 4)
    plan.adopt(plan.latest())
    steps(target)
    found = node.collect()
    (event,) = events(found, "microbatch_plan")
    assert event.fields["number"] == 4
    assert event.fields["micro_batches"] == "3,1"
    assert event.fields["step"] == 0
    assert of(IterationRecord, found)[0].micro_batches == (1,)


def test_long_pauses_are_events(node: Node, rank: Callable[[int], Hook], monkeypatch: pytest.MonkeyPatch) -> None:
    target = rank(0)
    steps(target)
    began = clock()
    times = iter([began, began + 700_000_000, began + 700_000_001, began + 700_000_002])
    set_everywhere(monkeypatch, "clock", lambda: next(times))
    for phase in (CHECKPOINT, DATA):
        token = target.begin_pause(phase)
        assert token is not None
        target.end_pause(token, phase)
    monkeypatch.undo()
    found = node.collect()
    (event,) = events(found, "checkpoint")
    assert (event.fields["phase"], event.fields["step"]) == ("checkpoint", 1)
    assert event.fields["duration_s"] == pytest.approx(0.7)
    assert events(found, "phase") == []  # the other one was short


def test_marks_of_a_framework_without_visible_waits_give_no_split(node: Node, rank: Callable[[int], Hook]) -> None:
    target = rank(0)
    target.marked(None)
    (record,) = of(IterationRecord, node.collect())
    assert record.basis == "marks"
    assert record.compute_s == ()
    assert record.wait_s == ()
    assert len(record.duration_s) == 1


def test_the_overhead_is_told_per_step(node: Node, rank: Callable[[int], Hook]) -> None:
    steps(rank(0), 10)
    (record,) = of(MetricsRecord, node.collect())
    assert record.devices == ("agent",)
    ((overhead_s,),) = record.values
    assert overhead_s is not None
    assert overhead_s > 0.0


def test_garbage_is_counted_and_passed_over(node: Node, rank: Callable[[int], Hook]) -> None:
    (node.hook_dir / "rank-9-999.hook").write_bytes(b"\xff" * 10_000)
    (node.hook_dir / "rank-8-998.hook").write_bytes(b"")
    (node.hook_dir / "rank-x-1.hook").write_bytes(b"")
    (node.hook_dir / "notes.txt").write_text("hello")
    target = rank(0)
    steps(target)
    Path(target.memory.path + ".last").write_bytes(b'not json\n{"type": "exception"}\n\xff\xfe\n{"unfinished')
    assert of(IterationRecord, node.collect())[0].rank == 0
    for _ in range(30):
        node.collect()
    assert node.collector.junk == 3 + 2
    (beat,) = of(HeartbeatRecord, node.collect())
    assert beat.ranks == (0,)


def test_junk_datagrams_are_counted(node: Node) -> None:
    node.collect()
    hook.send_datagram(str(node.hook_dir), b"\x00" * 100)
    hook.send_datagram(str(node.hook_dir), b'{"type":"exception","rank":-1}')
    node.collect()
    assert node.collector.junk == 2
    assert decode_note(b"[" * 100_000) is None
    assert decode_note(b"[" * 5_000) is None


def child_of(node: Node, child: Hook, parent: Hook) -> None:
    """Make the process of `child` one of `parent`'s rank, begun later."""
    child.words[AT_RANK] = parent.words[AT_RANK]
    child.words[AT_START_NS] = parent.words[AT_START_NS] + 10**9


def test_a_child_with_the_ranks_name_is_shown_beside_it_and_its_steps_are_not_the_ranks(
    node: Node, rank: Callable[[int], Hook]
) -> None:
    parent, child = rank(0), rank(1)
    child_of(node, child, parent)
    steps(parent, 2)
    steps(child, 3)
    found = node.collect()
    assert [(record.incarnation[:4], record.steps) for record in of(IterationRecord, found)] == [("100-", (0, 1))]
    (beat,) = of(HeartbeatRecord, found)
    assert (beat.ranks, beat.pids) == ((0,), (100,))
    trains, beside = events(found, "process_start")
    assert trains.message == "rank 0 trains as process 100"
    assert beside.message == "process 101 runs beside process 100, which trains as rank 0"
    assert beside.fields["beside"] == trains.fields["incarnation"]
    for _ in range(20):
        steps(parent)
        steps(child, 5)
        (record,) = of(IterationRecord, node.collect())
        assert record.incarnation == trains.fields["incarnation"]


def test_a_restart_takes_over_with_all_its_steps(node: Node, rank: Callable[[int], Hook]) -> None:
    old = rank(0)
    steps(old, 3)
    node.collect()
    steps(old)
    young = rank(1)
    child_of(node, young, old)
    young.words[AT_START_NS] += 10**15  # days: this process may be hours old
    steps(young, 2)
    (node.proc / "100" / "stat").unlink()
    found = node.collect()
    assert [(record.incarnation[:4], record.steps) for record in of(IterationRecord, found)] == [
        ("100-", (3,)), ("101-", (0, 1)),
    ]  # fmt: skip
    assert [event.message for event in events(found, "process_start")] == ["rank 0 trains as process 101"]
    (beat,) = of(HeartbeatRecord, found)
    assert beat.pids == (101,)


def test_files_of_the_long_dead_are_deleted_after_they_were_read(node: Node, rank: Callable[[int], Hook]) -> None:
    node.collector.close()
    collector = node.new_collector(forget_after_s=100.0)
    target = rank(0)
    steps(target, 2)
    (node.proc / "100" / "stat").unlink()
    found = node.collect(collector)
    assert len(of(IterationRecord, found)) == 1
    node.clock.sleep(200.0)
    node.collect(collector)
    node.clock.sleep(10.0)
    assert node.collect(collector) == []
    assert not Path(target.memory.path + ".hook").exists()
    collector.close()
    collector.close()


def test_unsupported_without_the_folder(tmp_path: Path) -> None:
    scope = Scope(job="job", node="node", run_dir=str(tmp_path / "nowhere"))
    collector = IterationsCollector(IterationsCollector.Config(), scope, ManualClock())
    assert "no folder" in (collector.supported() or "")
    assert list(collector.collect(1.0)) == []
    assert collector.wake_fds() == ()
    collector.close()


def test_what_the_host_sees_of_a_device_behind_its_back_is_no_split(
    node: Node, rank: Callable[[int], Hook], monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, marks in enumerate((False, True)):
        target = rank(number)
        target.memory.words[AT_ACCELERATOR] = 1
        for _ in range(2):
            target.marked(None) if marks else steps(target)
    found = [one for one in node.collect() if isinstance(one, IterationRecord)]
    assert [(one.accelerator, one.basis, one.compute_s, one.wait_s) for one in found] == [("cuda", "host", (), ())] * 2
    assert [len(one.duration_s) for one in found] == [2, 2]


def timed(target: Hook, serial: int, took_ms: int, wait_ms: int = 0) -> None:
    """What the device says of step `serial`."""
    at = DEVICE_BEGINS + (serial - 1) * DEVICE_WORDS.size
    wait_ns = wait_ms * 1_000_000 if wait_ms else NO_WAIT
    DEVICE_WORDS.pack_into(target.memory.buffer, at, serial, took_ms * 1_000_000, wait_ns, serial)
    target.memory.words[AT_TIMED] = serial


def on_a_device(rank: Callable[[int], Hook]) -> Hook:
    target = rank(0)
    target.memory.words[AT_ACCELERATOR] = target.memory.words[AT_TIMING] = 1
    return target


def test_what_the_device_says_of_a_step_is_waited_for(node: Node, rank: Callable[[int], Hook]) -> None:
    target = on_a_device(rank)
    steps(target, 5)
    for after_s in (0.0, 29.0):
        node.clock.set_s(time.time() + after_s)
        assert of(IterationRecord, node.collect()) == []
    timed(target, 2, 20_000, 5_000)
    timed(target, 3, 30_000)
    first, second = of(IterationRecord, node.collect())
    assert (first.steps, first.basis, first.compute_s, first.wait_s) == ((0,), "host", (), ())
    assert (second.steps, second.basis, second.duration_s) == ((1, 2), "device_step", (20.0, 30.0))
    assert second.wait_s == (5.0, None)
    assert second.compute_s[0] == pytest.approx(15.0, abs=0.1)
    assert second.compute_s[1] is None
    assert second.accelerator == "cuda"
    assert of(IterationRecord, node.collect()) == []
    steps(target, POOL_STEPS)
    (record,) = of(IterationRecord, node.collect())
    assert record.steps == (3, 4)  # the device cannot be further behind than its pool of events
    assert node.collector.position()["files"]["rank-0-100.hook"]["steps"] == 5


@pytest.mark.parametrize("why", ["gone", "stuck", "given up", "seen in hindsight"])
def test_nobody_waits_for_a_device_that_will_say_no_more(node: Node, rank: Callable[[int], Hook], why: str) -> None:
    target = on_a_device(rank)
    steps(target, 3)
    timed(target, 2, 20)
    (record, _) = of(IterationRecord, node.collect())
    assert record.steps == (0,)
    if why == "gone":
        (node.proc / "100" / "stat").unlink()
    elif why == "stuck":
        node.clock.set_s(time.time() + 31.0)
    elif why == "seen in hindsight":  # the ends of steps that nothing announces
        target.memory.words[AT_SOURCE] = BY_HAND
    else:
        target.memory.words[AT_TIMING] = TIMINGS.index("failed")
    (record,) = of(IterationRecord, node.collect())
    assert (record.steps, record.basis) == ((2,), "host")


@pytest.mark.parametrize("why", ["open_capture", "failed"])
def test_why_a_device_times_no_steps_is_said_once(
    why: str, node: Node, rank: Callable[[int], Hook], caplog: pytest.LogCaptureFixture
) -> None:
    target = on_a_device(rank)
    node.collect()
    assert caplog.messages == []
    target.memory.words[AT_TIMING] = TIMINGS.index(why)
    for _ in range(3):
        node.collect()
    (said,) = caplog.messages
    assert said.endswith("not timed on its device" if why == "open_capture" else "not timed there")


def test_what_the_device_says_of_long_steps_is_waited_for_too(node: Node, rank: Callable[[int], Hook]) -> None:
    """It is asked two steps later, which is after more than half a minute then; and no step overtakes another."""
    target = on_a_device(rank)
    target.steps.mark = (clock() - 20_000_000_000, *target.steps.mark[1:])
    steps(target, 3)  # the first one of 20 s
    for after_s in (31.0, 75.0):
        node.clock.set_s(time.time() + after_s)
        assert of(IterationRecord, node.collect()) == []
    timed(target, 1, 20_000)
    (record,) = of(IterationRecord, node.collect())[:1]
    assert (record.steps, record.basis, record.duration_s) == ((0,), "device_step", (20.0,))


def test_a_long_step_of_a_device_that_stands_still_is_told_in_the_end(node: Node, rank: Callable[[int], Hook]) -> None:
    target = on_a_device(rank)
    target.steps.mark = (clock() - 20_000_000_000, *target.steps.mark[1:])
    steps(target, 2)
    node.clock.set_s(time.time() + 85.0)
    (record,) = of(IterationRecord, node.collect())
    assert (record.steps, record.basis) == ((0, 1), "host")


def test_a_long_pause_is_no_reason_to_wait_for_a_device(node: Node, rank: Callable[[int], Hook]) -> None:
    target = on_a_device(rank)
    target.steps.mark = (clock() - 20_000_000_000, *target.steps.mark[1:])
    target.tally.pause_ns += 20_000_000_000
    steps(target)
    node.clock.set_s(time.time() + 31.0)
    (record,) = of(IterationRecord, node.collect())
    assert (record.steps, record.basis) == ((0,), "host")


def test_a_pause_is_no_computing_of_the_device(node: Node, rank: Callable[[int], Hook]) -> None:
    target = on_a_device(rank)
    pause_s = iter((0.004, 10.0))
    for serial in (1, 2):
        target.tally.pause_ns += int(next(pause_s) * 1e9)
        steps(target)
        timed(target, serial, 20, 6)
    (record,) = of(IterationRecord, node.collect())
    assert record.pause_s == pytest.approx((0.004, 0.020))
    assert record.compute_s == pytest.approx((0.010, 0.0))
