"""Programs that end before they train: real ones with the file of PYTHONPATH, and what the collector tells of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import trainwarden
from tests.doubles import ManualClock
from tests.hook_doubles import write_header
from trainwarden import rundir
from trainwarden.collectors.processes.begun import FORGET_S, HOLD_S, NOTED_S, Begun, read_begun
from trainwarden.collectors.processes.collector import ProcessesCollector
from trainwarden.protocols import Scope
from trainwarden.records import EventRecord
from trainwarden.topics import EVENTS

INJECT = Path(trainwarden.__file__).parent / "inject"
RAISES = "raise ValueError('no lr')"
EXITS = "import sys; sys.exit(3)"
WAITS = "input()"
LAUNCHES = (
    "import os, subprocess, sys\n"
    "code = subprocess.call([sys.executable, *sys.argv[1:]], env={**os.environ, 'RANK': '1', 'WORLD_SIZE': '2'})\n"
    "sys.exit(code)"
)
STARTS = "import subprocess, sys\nsubprocess.run([sys.executable, *sys.argv[1:]], check='-' not in sys.argv)"


class Job:
    """A run folder whose collector has a clock that is moved by hand."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.run_dir = folder, folder / "run"
        (self.run_dir / "hook").mkdir(parents=True)
        self.clock = ManualClock(time.monotonic())
        scope = Scope(job="job", node="n0", run_dir=str(self.run_dir))
        self.collector = ProcessesCollector(ProcessesCollector.Config(), scope, self.clock)
        self.running: list[subprocess.Popen[str]] = []

    def start(self, program: str, name: str = "train.py", *more: str, **environ: str) -> subprocess.Popen[str]:
        (self.folder / name).write_text(program)
        clean = {key: value for key, value in os.environ.items() if key not in ("RANK", "SLURM_PROCID")}
        environ = {
            **clean, "TRAINWARDEN_HOOK_DIR": str(self.run_dir / "hook"), "PYTHONPATH": str(INJECT), **environ,
        }  # fmt: skip
        process = subprocess.Popen(
            [sys.executable, name, *more], cwd=self.folder, env=environ, stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        self.running.append(process)
        return process

    def run(self, program: str, name: str = "train.py", *more: str, **environ: str) -> None:
        self.start(program, name, *more, **environ).wait(60)

    def begun(self, name: str) -> Begun:
        """Wait for the file of the program `name`."""
        deadline = time.monotonic() + 60.0
        while time.monotonic() < deadline:
            for path in (self.run_dir / "hook").glob("*.begun"):
                found = read_begun(str(path))
                if found is not None and found[0].script == name:
                    return found[0]
        raise AssertionError(f"{name} has left no file")

    def command(self, kind: str, **fields: int | str) -> None:
        event = EventRecord(id=f"{kind}/1", job="job", node="n0", time_s=1.0, kind=kind, fields=fields)
        with (self.run_dir / "events.jsonl").open("ab") as file:
            file.write(EVENTS.encode(event) + b"\n")

    def reported(self, later_s: float = 0.0) -> list[tuple[str, int | None, str]]:
        """Kind, rank and message of what is reported now, the command's own facts left out."""
        self.clock.sleep(later_s)
        events = [one for one in self.collector.collect(time.time()) if isinstance(one, EventRecord)]
        return [(one.kind, one.rank, one.message) for one in events if not one.kind.startswith("job_")]


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    job = Job(tmp_path)
    yield job
    job.collector.close()
    for process in job.running:
        process.kill()
        process.communicate()


def test_the_last_word_of_a_job_is_told_with_its_exception_once_nothing_follows(job: Job) -> None:
    job.run(RAISES)
    assert job.reported() == []
    exception, ended = job.reported(HOLD_S)
    assert exception == ("exception", 0, "ValueError: no lr")
    assert ended[:2] == ("process_exit", 0)
    assert job.reported(HOLD_S) == []


@pytest.mark.parametrize("planted", ["x.hook", "a-b-c.hook", "x.begun", "rank-.begun", "rank-0-.hook"])
def test_files_of_other_names_in_the_folder_blind_nobody(job: Job, planted: str) -> None:
    (job.run_dir / "hook" / planted).touch()
    job.run(RAISES)
    job.reported()
    assert [kind for kind, _, _ in job.reported(HOLD_S)] == ["exception", "process_exit"]


def test_a_program_with_a_hook_file_of_its_own_has_trained(job: Job) -> None:
    process = job.start(RAISES)
    process.wait(60)
    (job.run_dir / "hook" / f"rank-0-{process.pid}.hook").touch()
    assert job.reported() == []
    assert [kind for kind, _, _ in job.reported(HOLD_S) if kind != "process_start"] == []


def test_a_rank_of_our_torchrun_is_reported_at_once(job: Job) -> None:
    """That torchrun leaves no file of its own; it says who it is."""
    (job.run_dir / rundir.TORCHRUN).write_text(json.dumps({"pid": os.getpid()}))
    job.run(RAISES, RANK="2", WORLD_SIZE="4")
    assert [(kind, rank) for kind, rank, _ in job.reported()] == [("exception", 2)]


def test_a_fork_that_fails_is_not_the_program(job: Job) -> None:
    waits = "import os, sys\nif os.fork() == 0:\n    raise ValueError('no lr')\nos.wait()\nopen('waited', 'w')\ninput()"
    process = job.start(waits)
    deadline = time.monotonic() + 60.0
    while not (job.folder / "waited").exists():
        assert time.monotonic() < deadline
    (path,) = (job.run_dir / "hook").glob("*.begun")
    found = read_begun(str(path))
    assert found is not None
    assert found[1:] == (None, None)
    process.communicate("\n")
    assert job.reported() == job.reported(HOLD_S) == []


def test_a_file_goes_once_its_program_is_reported_and_torchrun_has_had_time_to_read_it(job: Job) -> None:
    job.run(RAISES)
    job.reported()
    job.reported(HOLD_S)
    (path,) = (job.run_dir / "hook").glob("*.begun")
    job.reported(FORGET_S - 1.0)
    assert path.exists()
    job.reported(1.0)
    assert not path.exists()


def test_where_no_agent_removes_the_files_a_program_leaves_no_more(job: Job) -> None:
    for number in range(4_097):
        (job.run_dir / "hook" / f"rank-0-{10**9 + number}.begun").touch()  # no process has these numbers
    process = job.start(RAISES)
    process.wait(60)
    assert not (job.run_dir / "hook" / f"rank-0-{process.pid}.begun").exists()


def test_the_exception_has_its_frame_and_says_that_nothing_was_trained(job: Job) -> None:
    job.run(RAISES)
    job.reported()
    job.clock.sleep(HOLD_S)
    event = next(one for one in job.collector.collect(time.time()) if isinstance(one, EventRecord))
    assert (event.fields["type"], event.fields["frame"]) == ("ValueError", "train.py:1 in <module>")
    assert (event.fields["untrained"], event.fields["script"]) == (True, "train.py")


def test_a_program_that_ends_well_leaves_nothing(job: Job) -> None:
    job.run("import sys; sys.exit(0)")
    assert not list((job.run_dir / "hook").iterdir())
    assert job.reported(HOLD_S) == []


def test_an_exit_code_of_a_script_is_told_where_no_command_is_watched(job: Job) -> None:
    job.run(EXITS)
    job.reported()
    assert job.reported(HOLD_S) == [("process_exit", 0, "rank 0 (train.py) ended before it trained: exit code 3")]


def test_an_exit_code_within_a_command_that_ends_well_accuses_nobody_but_is_named(job: Job) -> None:
    job.command("job_start")
    job.reported()
    job.run(EXITS)
    job.command("job_end", exit_code=0)
    assert job.reported() == [("process_exit", None, "train.py ended before it trained: exit code 3")]


def test_an_exception_within_a_command_that_ends_well_is_told_before_its_end(job: Job) -> None:
    job.command("job_start")
    job.reported()
    job.run(RAISES)
    job.command("job_end", exit_code=0)
    kinds = [one.kind for one in job.collector.collect(time.time()) if isinstance(one, EventRecord)]
    assert kinds == ["exception", "process_exit", "job_end"]


def test_a_command_that_fails_has_a_better_word_than_ours(job: Job) -> None:
    job.command("job_start")
    job.reported()
    job.run(RAISES)
    job.command("job_end", exit_code=1)
    assert job.reported() == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_signal_is_told(job: Job, number: signal.Signals) -> None:
    process = job.start(WAITS)
    job.begun("train.py")
    assert job.reported() == []
    process.send_signal(number)
    process.wait(60)
    job.reported()
    ends = job.reported(HOLD_S)
    if sys.platform == "linux" and not ends:
        pytest.skip("this kernel forgets how a process ended that its parent has reaped (before 6.15)")
    assert ends == [("process_exit", 0, f"rank 0 (train.py) ended before it trained: {number.name}")]


def test_who_was_stopped_has_not_failed(job: Job) -> None:
    process = job.start(WAITS)
    job.begun("train.py")
    job.reported()
    process.terminate()
    process.wait(60)
    job.reported()
    assert job.reported(HOLD_S) == []


def test_a_program_in_whose_place_another_starts_is_only_named(job: Job) -> None:
    job.run(RAISES, "probe.py")
    job.start(WAITS)
    job.begun("train.py")
    job.reported()
    assert job.reported(HOLD_S) == [("process_exit", None, "probe.py ended before it trained: ValueError: no lr")]


def test_one_that_was_over_before_anybody_looked_excuses_the_one_before_it_too(job: Job) -> None:
    job.run(RAISES, "probe.py")
    job.run("", "train.py")
    job.reported()
    assert [rank for _, rank, _ in job.reported(HOLD_S)] == [None]


def test_a_program_beside_one_that_trains_is_only_named(job: Job) -> None:
    trains = subprocess.Popen(["sleep", "60"], stdin=subprocess.PIPE, text=True)
    job.running.append(trains)
    write_header(job.run_dir / "hook" / f"rank-0-{trains.pid}.hook", trains.pid)
    process = job.start(WAITS + "\n" + RAISES, "eval.py")
    job.begun("eval.py")
    job.reported()
    job.reported(1.0)  # both are alive
    process.communicate("\n", 60)
    job.reported()
    assert [(kind, rank) for kind, rank, _ in job.reported(HOLD_S)] == [("process_exit", None)]


def test_what_a_program_starts_is_its_own_business(job: Job) -> None:
    (job.folder / "probe.py").write_text(RAISES)
    job.run(STARTS, "train.py", "probe.py", "-")
    job.reported()
    assert job.reported(HOLD_S) == []


def test_a_launcher_that_fails_by_its_child_is_told_by_the_childs_words(job: Job) -> None:
    (job.folder / "child.py").write_text(RAISES)
    job.run(STARTS, "launch.py", "child.py")
    job.reported()
    exception, ended = job.reported(HOLD_S)
    assert exception == ("exception", 0, "ValueError: no lr")
    assert ended[2].startswith("rank 0 (launch.py)")


def test_a_rank_of_a_launcher_is_told_at_once_and_its_launcher_not_at_all(job: Job) -> None:
    (job.folder / "train.py").write_text(EXITS)
    job.run(LAUNCHES, "launch.py", "train.py")
    assert job.reported() == [("process_exit", 1, "rank 1 (train.py) ended before it trained: exit code 3")]
    assert [(kind, rank) for kind, rank, _ in job.reported(HOLD_S)] == [("process_exit", None)]


def test_a_rank_that_its_launcher_killed_at_an_interruption_has_not_failed(job: Job) -> None:
    (job.folder / "train.py").write_text(WAITS)
    job.command("job_start")
    launcher = job.start(LAUNCHES, "launch.py", "train.py")
    rank = job.begun("train.py")
    job.reported()
    os.kill(rank.pid, signal.SIGKILL)
    launcher.wait(60)
    assert job.reported() == []
    job.command("job_end", exit_code=130, interrupted="SIGINT")
    assert job.reported() == []


@pytest.mark.parametrize(
    "words", [("-c", RAISES), ("-W", "ignore", "-c", RAISES), ("-uc", RAISES), ("-m", "unittest", "nothing")]
)
def test_a_one_liner_and_a_module_that_gives_no_reason_accuse_nobody(job: Job, words: tuple[str, ...]) -> None:
    environ = {**os.environ, "TRAINWARDEN_HOOK_DIR": str(job.run_dir / "hook"), "PYTHONPATH": str(INJECT)}
    subprocess.run([sys.executable, *words], env=environ, stderr=subprocess.DEVNULL, cwd=job.folder, check=False)
    job.reported()
    assert [rank for _, rank, _ in job.reported(HOLD_S)] == ([None] if words[0] == "-m" else [])


def test_a_program_that_lives_and_does_not_train_is_named_now_and_then(job: Job) -> None:
    process = job.start(WAITS)
    job.begun("train.py")
    assert job.reported() == []
    for before_s, seconds in zip((0.0, *NOTED_S), NOTED_S, strict=False):
        ((kind, rank, said),) = job.reported(seconds - before_s)
        assert (kind, rank) == ("process_begun", 0)
        assert said.startswith(f"rank 0 (train.py) has run for {seconds:.0f} s and not trained yet, 0.")
        assert job.reported(1.0) == []
    process.communicate("\n", 60)
    assert job.reported() == [("process_exit", None, "train.py ended before it trained: exit code 0")]


def test_what_was_told_is_not_told_again_after_a_restart_of_the_agent(job: Job) -> None:
    job.run(RAISES)
    job.reported()
    assert job.reported(HOLD_S)
    position = job.collector.position()
    job.collector.close()
    scope = Scope(job="job", node="n0", run_dir=str(job.run_dir))
    job.collector = ProcessesCollector(ProcessesCollector.Config(), scope, job.clock)
    job.collector.restore(position)
    job.reported()
    assert job.reported(HOLD_S) == []


def test_what_ended_on_another_day_is_not_told(job: Job) -> None:
    job.run(RAISES)
    (path,) = (job.run_dir / "hook").glob("*.begun")
    os.utime(path, (time.time() - 3600.0,) * 2)
    job.reported()
    assert job.reported(HOLD_S) == []


@pytest.mark.parametrize("data", [b"", b"{", b"[]\n", b'{"pid": -1}\n', b"\xff" * 100])
def test_a_file_that_is_not_ours_is_passed_over(job: Job, data: bytes) -> None:
    (job.run_dir / "hook" / "rank-0-4194303.begun").write_bytes(data)
    job.reported()
    assert job.reported(HOLD_S) == []
