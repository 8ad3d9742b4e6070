"""The processes collector without any process: the events file, ranks that are gone, wait statuses."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.doubles import ManualClock
from tests.hook_doubles import write_header
from trainwarden.collectors.processes.collector import ProcessesCollector
from trainwarden.collectors.processes.exit_status import ExitStatus, decode_status, read_stat
from trainwarden.collectors.ranks import rank_processes
from trainwarden.hook.memory import _start_ns, _start_ticks
from trainwarden.protocols import Scope
from trainwarden.records import EventRecord, MetricsRecord, Record
from trainwarden.topics import EVENTS

NO_PID = 4_194_303  # the largest that 64-bit Linux can give; never given in practice


class Rig:
    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.hook = run_dir / "hook"
        self.hook.mkdir()
        self.collector = self.new()

    def new(self) -> ProcessesCollector:
        scope = Scope(job="job", node="n0", run_dir=str(self.run_dir))
        return ProcessesCollector(ProcessesCollector.Config(), scope, ManualClock(1000.0))

    def restart(self) -> None:
        position = self.collector.position()
        self.collector.close()
        self.collector = self.new()
        self.collector.restore(position)

    def write(self, data: bytes) -> None:
        with (self.run_dir / "events.jsonl").open("ab") as file:
            file.write(data)

    def collect(self) -> list[Record]:
        return list(self.collector.collect(2000.0))

    def ids(self) -> list[str]:
        return [record.id for record in self.collect() if isinstance(record, EventRecord)]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path)
    yield rig
    rig.collector.close()


def line(name: str) -> bytes:
    return EVENTS.encode(EventRecord(id=name, job="job", node="n0", time_s=1.0, kind="restart")) + b"\n"


def test_events_of_launchers_are_forwarded_once_and_in_order(rig: Rig) -> None:
    rig.write(line("a") + line("b"))
    assert rig.ids() == ["a", "b"]
    rig.write(line("c"))
    assert rig.ids() == ["c"]
    assert rig.ids() == []


def test_half_an_event_waits_for_its_end(rig: Rig) -> None:
    whole = line("a")
    rig.write(whole[:20])
    assert rig.ids() == []
    rig.write(whole[20:])
    assert rig.ids() == ["a"]


def test_a_restart_goes_on_behind_the_last_event(rig: Rig) -> None:
    rig.write(line("a") + line("b")[:10])
    assert rig.ids() == ["a"]
    rig.write(line("b")[10:])
    rig.restart()
    assert rig.ids() == ["b"]


def test_junk_is_counted_and_passed_over(rig: Rig) -> None:
    rig.write(b"\xff\xfe\n{}\n[1]\n\n" + line("a") + b'{"type": "log"}\n' + b"{" * 5000 + b"\n")
    records = rig.collect()
    assert [record.id for record in records if isinstance(record, EventRecord)] == ["a"]
    (metrics,) = [record for record in records if isinstance(record, MetricsRecord)]
    assert (metrics.names, metrics.values) == (("agent_junk_events_count",), ((5.0,),))


def test_an_endless_line_does_not_stop_the_events_behind_it(rig: Rig) -> None:
    rig.write(b"x" * 3_000_000 + b"\n" + line("a"))
    assert [name for _ in range(5) for name in rig.ids()] == ["a"]


def test_an_events_file_begun_anew_is_read_from_its_start(rig: Rig) -> None:
    rig.write(line("a") + line("b"))
    rig.ids()
    (rig.run_dir / "events.jsonl").write_bytes(line("c"))
    assert rig.ids() == ["c"]


def test_a_rank_that_was_gone_before_the_first_look_has_ended_somehow(rig: Rig) -> None:
    write_header(rig.hook / f"rank-5-{NO_PID}.hook", NO_PID)
    (event,) = rig.collect()
    assert isinstance(event, EventRecord)
    assert (event.kind, event.rank, event.fields["pid"]) == ("process_exit", 5, NO_PID)
    assert "code" not in event.fields
    assert "signal" not in event.fields
    assert rig.collect() == []


def test_an_end_is_told_once_over_restarts(rig: Rig) -> None:
    write_header(rig.hook / f"rank-5-{NO_PID}.hook", NO_PID)
    assert len(rig.ids()) == 1
    rig.restart()
    assert rig.ids() == []


def test_a_pid_that_now_belongs_to_a_younger_process_is_a_rank_that_ended(rig: Rig) -> None:
    path = rig.hook / f"rank-0-{os.getpid()}.hook"
    write_header(path, os.getpid(), start_ticks=1)
    assert len(rig.ids()) == 1


def test_a_living_rank_is_watched_and_not_reported(rig: Rig) -> None:
    write_header(rig.hook / f"rank-0-{os.getpid()}.hook", os.getpid())
    before = set(rig.collector.wake_fds())
    assert rig.collect() == []
    assert len(set(rig.collector.wake_fds()) - before) == 1
    rig.collector.close()
    rig.collector.close()
    assert rig.collector.wake_fds() == []


@pytest.mark.parametrize("by_s", [60.0, -60.0])
@pytest.mark.parametrize("told", [True, False])
def test_a_step_of_the_wall_clock_ends_no_living_rank(rig: Rig, by_s: float, *, told: bool) -> None:
    """The clock was set by `by_s` after the hook had written its file and the file had its time.

    Hooks of the first days do not tell their start in ticks nor their namespace.
    """
    path = rig.hook / f"rank-0-{os.getpid()}.hook"
    wall_ns, by_ns = time.time_ns(), int(by_s * 1e9)
    start_ns = _start_ns(_start_ticks(), wall_ns) - by_ns
    write_header(
        path, os.getpid(), start_ns=start_ns, offset_ns=wall_ns - time.monotonic_ns() - by_ns,
        **({} if told else {"start_ticks": 0, "pid_namespace": 0}),
    )  # fmt: skip
    os.utime(path, (start_ns / 1e9 + 1.0,) * 2)
    assert rig.collect() == []
    assert len(rig.collector._watched) == 1
    rig.restart()
    assert rig.collect() == []
    assert len(rig.collector._watched) == 1


def test_our_own_launcher_reports_ends_itself(rig: Rig) -> None:
    (rig.run_dir / "torchrun.json").write_text("{}")
    write_header(rig.hook / f"rank-5-{NO_PID}.hook", NO_PID)
    assert rig.collect() == []


def test_foreign_names_in_the_hook_folder_are_no_ranks(rig: Rig) -> None:
    for name in ("agent.sock", "rank-1-2.hook.part", "rank--1-2.hook", "rank-1-x.hook", "rank-7-9.hook"):
        (rig.hook / name).touch()
    assert [(process.rank, process.pid) for process in rank_processes(rig.run_dir)] == [(7, 9)]


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (0, ExitStatus(code=0)),
        (1 << 8, ExitStatus(code=1)),
        (11 | 0x80, ExitStatus(signal="SIGSEGV")),
        (15, ExitStatus(signal="SIGTERM")),
        (35, ExitStatus(signal="SIG35")),
    ],
)
def test_wait_statuses(status: int, expected: ExitStatus) -> None:
    assert decode_status(status) == expected


def test_a_process_name_full_of_brackets_is_no_trap(tmp_path: Path) -> None:
    folder = tmp_path / "7"
    folder.mkdir()
    fields = ["Z", *("0" for _ in range(18)), "4242", *("0" for _ in range(29)), "9"]
    (folder / "stat").write_text(f"7 (a) b) (c)) {' '.join(fields)}\n")
    stat = read_stat(7, str(tmp_path))
    assert stat is not None
    assert (stat.state, stat.start_ticks, stat.status) == ("Z", 4242, 9)
    assert read_stat(8, str(tmp_path)) is None


def test_another_run_folder_in_the_place_of_the_watched_one_is_watched_within_ten_turns(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    rig = Rig(run_dir)
    rig.collect()
    rig.collect()
    run_dir.rename(tmp_path / "old")
    (run_dir / "hook").mkdir(parents=True)
    for _ in range(10):
        rig.collect()
    fds = rig.collector.wake_fds()
    assert not select.select(fds, [], [], 0.0)[0]
    rig.write(line("a"))
    assert select.select(fds, [], [], 0.0)[0]
    assert rig.ids() == ["a"]
    rig.collector.close()
