"""Others may write into a run folder that was named: nobody of ours waits for what lies there, or follows a link."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from tests.doubles import ManualClock
from tests.hook_doubles import write_header
from tests.unit.trainwarden.hook.test_planted_files import KINDS, in_time, plant
from trainwarden import rundir
from trainwarden.bus.embedded.store import file_lock
from trainwarden.cli.run.outcome.last_look import last_look
from trainwarden.cli.shared.kept_runs import _LOCK, OwnRun
from trainwarden.cli.shared.stack import LocalStack
from trainwarden.collectors.iterations.hook_source import HookSource
from trainwarden.collectors.processes.collector import ProcessesCollector
from trainwarden.hook import read_header
from trainwarden.launching.job_output import LogWriter
from trainwarden.protocols import Scope
from trainwarden.records import EventRecord
from trainwarden.state import load_json, save_json
from trainwarden.topics import EVENTS
from trainwarden.torchrun.files import read_part

ENDED = EventRecord(id="e", job="j", node="n", time_s=1000.0, kind="job_end", fields={"exit_code": 9})
TRACEBACK = """Traceback (most recent call last):
  File "train.py", line 3, in <module>
RuntimeError: CUDA error: out of memory
"""


@pytest.mark.parametrize("kind", KINDS)
def test_state_is_kept_beside_what_was_planted(tmp_path: Path, kind: str) -> None:
    elsewhere = plant(tmp_path / f".state.json.{os.getpid()}.part", kind)
    before = elsewhere.read_text()

    def keep() -> object:
        try:
            save_json(tmp_path / "state.json", {"a": 1})
        except OSError as error:
            return error
        return load_json(tmp_path / "state.json")

    assert (in_time(keep) == {"a": 1}) == (kind != "folder")
    assert elsewhere.read_text() == before


@pytest.mark.parametrize("kind", KINDS)
def test_state_is_read_from_files_alone(tmp_path: Path, kind: str) -> None:
    plant(tmp_path / "state.json", kind)

    def read() -> object:
        with pytest.raises(OSError):
            load_json(tmp_path / "state.json")
        return True

    assert in_time(read)


def test_what_is_read_may_have_another_name_in_a_copy_of_the_folder(tmp_path: Path) -> None:
    """`cp -al`, and whoever stores equal files once, make hard links."""
    save_json(tmp_path / "state.json", {"a": 1})
    os.link(tmp_path / "state.json", tmp_path / "copy.json")
    assert load_json(tmp_path / "state.json") == {"a": 1}
    assert read_part(tmp_path / "copy.json", 0, 100) == (tmp_path / "state.json").read_bytes()


@pytest.mark.parametrize("kind", KINDS)
def test_a_jobs_output_goes_into_no_file_of_others(tmp_path: Path, kind: str) -> None:
    elsewhere = plant(tmp_path / "job.log", kind)
    before, logs = elsewhere.read_text(), LogWriter()
    logs.keep(tmp_path / "job.log", b"words\n")
    logs.keep(tmp_path / "rank-0.log", b"words\n")
    assert logs.flush(60.0), "it waits for what was planted"
    assert any("not kept" in said for said in logs.news())
    assert (tmp_path / "rank-0.log").read_bytes() == b"words\n"
    assert elsewhere.read_text() == before
    logs.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_failed_command_is_answered_for_whatever_lies_among_its_logs(tmp_path: Path, kind: str) -> None:
    (tmp_path / rundir.LOGS).mkdir()
    plant(tmp_path / rundir.EVENTS, kind)
    plant(tmp_path / rundir.LOGS / "rank-0.log", kind).write_text(TRACEBACK)
    (tmp_path / rundir.LOGS / "rank-1.log").write_text(TRACEBACK)
    found = in_time(lambda: last_look(tmp_path, ENDED))
    assert isinstance(found, list)
    assert {suspect.rank for one in found for suspect in one.suspects} == {1}


@pytest.mark.parametrize("kind", KINDS)
def test_ends_of_processes_are_told_whatever_lies_in_place_of_the_events(tmp_path: Path, kind: str) -> None:
    elsewhere = plant(tmp_path / rundir.EVENTS, kind)
    elsewhere.write_bytes(EVENTS.encode(ENDED) + b"\n")
    (tmp_path / rundir.HOOK).mkdir()
    collector = ProcessesCollector(
        ProcessesCollector.Config(), Scope(job="j", node="n", run_dir=str(tmp_path)), ManualClock(1000.0)
    )
    write_header(tmp_path / rundir.HOOK / "rank-0-4194303.hook", pid=4_194_303)
    found = [one for at_s in (2000.0, 2001.0) for one in in_time(lambda at_s=at_s: list(collector.collect(at_s)))]  # type: ignore[attr-defined]
    collector.close()
    assert {one.kind for one in found if isinstance(one, EventRecord)} == {"process_exit"}


def test_notes_and_last_words_are_read_through_no_link(tmp_path: Path) -> None:
    path = tmp_path / "rank-0-7.hook"
    write_header(path, pid=7)
    (tmp_path / "secret").write_text("Fatal Python error: Segmentation fault\n\n")
    for suffix in (".last", ".fault"):
        path.with_suffix(suffix).symlink_to("secret")
    source = HookSource(path, 0.0)
    assert list(source.new_notes()) == []
    assert source.fatal_signal() is None
    source.close()


def test_a_hook_file_is_read_through_no_link(tmp_path: Path) -> None:
    write_header(tmp_path / "rank-0-7.hook", pid=7)
    link = tmp_path / "rank-1-8.hook"
    link.symlink_to("rank-0-7.hook")
    assert (read_header(tmp_path / "rank-0-7.hook") is None, read_header(link)) == (False, None)
    with pytest.raises(OSError, match="symbolic"):
        HookSource(link, 0.0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_service_is_started_only_with_a_log_of_its_own(tmp_path: Path, kind: str) -> None:
    stack = LocalStack(tmp_path, {})
    elsewhere = plant(stack.log_path("agent"), kind)
    before = elsewhere.read_text()

    def start() -> object:
        with pytest.raises(OSError):
            stack.start("agent", "--help")
        return True

    assert in_time(start)
    stack._processes["agent"] = None  # type: ignore[assignment]
    in_time(lambda: stack.limit_logs(10))
    assert elsewhere.read_text() == before


def test_locks_are_put_on_no_file_elsewhere(tmp_path: Path) -> None:
    for name in (_LOCK, "bus.db-members"):
        (tmp_path / name).symlink_to(tmp_path / f"made-by-{name}")
    with pytest.raises(OSError, match="symbolic"):
        OwnRun(tmp_path, "j", ["true"])
    with file_lock(str(tmp_path / "bus.db"), fcntl.LOCK_EX):
        pass
    assert not list(tmp_path.glob("made-by-*"))
