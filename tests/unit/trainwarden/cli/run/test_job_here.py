"""How a job of one machine starts its ranks, shows what they write, and answers with their exit code."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from tests.unit.trainwarden.hook.test_planted_files import in_time
from trainwarden import rundir
from trainwarden.actions.remedies.policy import Mode
from trainwarden.cli.run import job_here, launch, leftovers
from trainwarden.cli.run.launch_node import Here
from trainwarden.cli.run.rank_output import RankOutput
from trainwarden.cli.run.torchrun_here import RANK, failed_rank_code, ranks_words
from trainwarden.cli.shared import orphans
from trainwarden.cli.shared.output import Voice
from trainwarden.errors import ConfigError
from trainwarden.records import EventRecord
from trainwarden.settings import LaunchSettings, Settings
from trainwarden.topics import EVENTS


def test_a_script_is_forked_and_everything_else_starts_by_itself(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.touch()
    forked = ["--start-method=fork", "--run-path", str(RANK), "fork", str(script), "--lr", "1"]
    assert ranks_words(["python", str(script), "--lr", "1"], devices=()) == forked
    assert ranks_words([sys.executable, str(script), "--lr", "1"], devices=()) == forked
    other = ["--no-python", sys.executable, "-I", "-S", str(RANK), "exec", "0"]
    assert ranks_words(["python", "-m", "train"], devices=()) == [*other, sys.executable, "-m", "train"]
    assert ranks_words(["/other/python", str(script)], devices=()) == [*other, "/other/python", str(script)]
    with_device = ranks_words(["python", str(script)], devices=(str(script),))
    assert with_device == [*other, sys.executable, str(script)]


@pytest.mark.parametrize(
    ("mode", "expected"), [("observe", {"max_failures=1", "renew=no"}), ("confirm", {"renew=no"}), ("auto", set())]
)
def test_only_in_auto_may_torchrun_start_a_rank_again_alone(mode: Mode, expected: set[str]) -> None:
    asked = job_here.JobHere(Settings(job="j"), 2, mode)._asked
    [conf] = [word for word in asked.torchrun("j", 2, LaunchSettings()) if word.startswith("--rdzv-conf=")]
    assert {"max_failures=1", "renew=no"}.intersection(conf.partition("=")[2].split(",")) == expected


def event(kind: str, **fields: object) -> bytes:
    made = EventRecord(id="e", job="j", node="n", time_s=1.0, kind=kind, fields=fields)  # type: ignore[arg-type]
    return EVENTS.encode(made) + b"\n"


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        ((), None),
        ((event("process_exit", code=0),), None),
        ((event("process_exit", code=7), event("process_exit", code=9)), 7),
        ((event("process_exit", signal="SIGTERM", asked=True), event("process_exit", signal="SIGKILL")), 137),
        ((event("process_exit", code=7), event("restart", stage="started"), event("process_exit", code=9)), 9),
        ((event("process_exit", code=7), b"nonsense\n", event("process_exit", signal="SIG40")), 7),
        ((event("process_exit", signal="SIG40"),), 168),
    ],
)
def test_the_first_rank_that_failed_in_the_last_attempt_gives_the_code(
    lines: tuple[bytes, ...], code: int | None, tmp_path: Path
) -> None:
    (tmp_path / rundir.EVENTS).write_bytes(b"".join(lines))
    assert failed_rank_code(tmp_path) == code


def test_events_that_were_planted_give_no_code_and_are_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / rundir.EVENTS)
    assert in_time(lambda: failed_rank_code(tmp_path)) is None


def test_a_log_that_cannot_be_read_costs_no_exit_code(tmp_path: Path) -> None:
    log = tmp_path / "torchrun.log"
    assert job_here._why(log) == ""
    log.write_text(f"first\n{job_here.OVER}rank 0 failed\nlast\n")
    assert job_here._why(log) == "trainwarden: rank 0 failed"
    log.write_text("first\nlast\n")
    assert job_here._why(log) == "first\nlast"


def test_checkpoints_go_to_a_folder_that_somebody_has_named() -> None:
    here = Here(nproc=1, checkpoints=None, job="j", keep=None, config=None)
    with pytest.raises(ConfigError, match="--checkpoints"):
        launch._launch_here(["train", "--to", "{checkpoints}"], Voice(None), here, mode="observe", validate=False)


def test_only_whoever_knows_of_a_measurement_buries_what_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    measures = subprocess.Popen([sys.executable, "-c", "raise SystemExit(5)"], start_new_session=True)
    monkeypatch.setattr(leftovers, "children_of_this_process", list)
    left = leftovers.Leftovers(lambda: {measures.pid})
    monkeypatch.setattr(orphans, "children_of_this_process", lambda: [measures.pid])
    os.waitid(os.P_PID, measures.pid, os.WEXITED | os.WNOWAIT)
    left.tend()
    assert measures.wait() == 5


def test_ranks_of_two_attempts_write_to_one_log_with_their_prefix(tmp_path: Path) -> None:
    (tmp_path / rundir.LOGS).mkdir()
    shown = tmp_path / "shown"
    with shown.open("wb") as file:
        output = RankOutput(tmp_path, 2, file.fileno(), 1 << 20)
        say = "import os, sys; print('rank', os.environ['LOCAL_RANK']); sys.stderr.write('attempt ' + sys.argv[1])"
        for attempt in ("0", "1"):
            for rank in ("0", "1"):
                environ = {**os.environ, "LOCAL_RANK": rank, "TRAINWARDEN_OUTPUT": str(output.folder)}
                words = [sys.executable, "-I", "-S", str(RANK), "exec", "0", sys.executable, "-c", say, attempt]
                subprocess.run(words, env=environ, check=True)
        output.close()
    assert (tmp_path / rundir.LOGS / "rank-1.log").read_text() == "rank 1\nattempt 0rank 1\nattempt 1\n"
    of_zero = [line for line in shown.read_text().splitlines() if line.startswith("[rank0]: ")]
    assert of_zero == ["[rank0]: rank 0", "[rank0]: attempt 0rank 0", "[rank0]: attempt 1"]
    assert not output.folder.exists()


SCRIPT = """
import multiprocessing, os, sys
import beside
assert __name__ == "__main__" and sys.modules["__main__"].__file__ == __file__
print(sys.argv[1:], os.path.basename(sys.argv[0]), multiprocessing.current_process().name)
if sys.argv[1] == "raises":
    1 / 0
sys.exit(int(sys.argv[1]))
"""
AS_TORCHRUN = "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"


@pytest.mark.parametrize(("word", "code", "returns"), [("0", 0, True), ("5", 5, False), ("raises", 1, False)])
def test_a_forked_script_runs_as_by_itself_and_comes_back_where_it_ends_well(
    word: str, code: int, returns: bool, tmp_path: Path
) -> None:
    """torchrun waits for ever for a script that ends its process with code 0."""
    (tmp_path / "beside.py").touch()
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    torchrun = f"{AS_TORCHRUN}; print('came back', flush=True)"
    words = [sys.executable, "-P", "-c", torchrun, str(RANK), "fork", str(script), word]
    ended = subprocess.run(words, capture_output=True, text=True, check=False, cwd="/")
    assert (ended.returncode, "came back" in ended.stdout) == (code, returns), ended.stderr
    assert f"['{word}'] train.py MainProcess" in ended.stdout
    if word == "raises":
        first, where, *_ = ended.stderr.splitlines()
        assert first == "Traceback (most recent call last):"
        assert where.split(",")[0] == f'  File "{script}"'
        assert ended.stderr.endswith("ZeroDivisionError: division by zero\n")


@pytest.mark.parametrize(("torch", "told"), [("2.8.0+cu128", True), ("2.9.1", False), ("2.15.0", False), (None, True)])
def test_only_older_torch_is_told_to_record_its_calls(torch: str | None, told: bool) -> None:
    """Newer ones do by themselves, and warn of the name in every rank."""

    def version(_: str) -> str:
        if torch is None:
            raise PackageNotFoundError
        return torch

    job_here.call_recording.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(job_here, "version", version)
        made = job_here.call_recording()
    job_here.call_recording.cache_clear()
    assert ("TORCH_NCCL_TRACE_BUFFER_SIZE" in made) is told
