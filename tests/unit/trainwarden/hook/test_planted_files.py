"""Others may write into the folder that the hook writes to: no rank waits for what lies there, or writes into it."""

from __future__ import annotations

import faulthandler
import json
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.hook_doubles import header_of
from trainwarden.hook import Hook, MicroBatchPlan
from trainwarden.hook.memory import checked, read_beside
from trainwarden.hook.standing import PauseFile

KINDS = ("pipe", "link", "folder")


def plant(path: Path, kind: str) -> Path:
    """Put a pipe, a link to another file or a folder where `path` is; what a link leads to."""
    elsewhere = path.with_name("elsewhere")
    elsewhere.write_text('{"number": 7, "until_s": 9e9}')
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to(elsewhere)
    else:
        path.mkdir()
    return elsewhere


def in_time(work: Callable[[], object]) -> object:
    """What `work` returns; an assertion fails where it waits for ever."""
    answer: list[object] = []
    thread = threading.Thread(target=lambda: answer.append(work()), daemon=True)
    thread.start()
    thread.join(60.0)
    assert not thread.is_alive(), "it waits for what was planted"
    return answer[0] if answer else None


@pytest.mark.parametrize("kind", KINDS)
def test_fatal_words_are_kept_beside_what_was_planted_and_nothing_waits(
    make: Callable[..., Hook], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(faulthandler, "is_enabled", lambda: False)  # pytest has them
    monkeypatch.setattr(faulthandler, "enable", lambda *_args, **_options: None)
    elsewhere = plant(tmp_path / f"rank-0-{os.getpid()}.fault", kind)
    before = elsewhere.read_text()
    target = in_time(make)
    assert isinstance(target, Hook)
    assert target.live, "the rank is watched all the same"
    assert (target.last_words.fault_file is None) == (kind == "folder")
    assert elsewhere.read_text() == before


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("suffix", [".last", ".calls.tmp"])
def test_notes_and_calls_neither_wait_nor_go_where_a_link_leads(
    make: Callable[..., Hook], kind: str, suffix: str
) -> None:
    target = make()
    elsewhere = plant(Path(target.memory.path + suffix), kind)
    before = elsewhere.read_text()

    def write() -> object:
        try:
            if suffix == ".last":
                return target.note({"type": "plan"})
            return target.memory.leave(".calls", b"{}")
        except OSError as error:
            return error

    refused = in_time(write)
    assert elsewhere.read_text() == before
    assert isinstance(refused, OSError) == (suffix == ".last" or kind == "folder")
    assert header_of(target).rank == 0


@pytest.mark.parametrize("suffix", [".hook", ".fault"])
def test_a_link_that_is_planted_anew_after_each_removal_is_not_followed(
    make: Callable[..., Hook], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    monkeypatch.setattr(faulthandler, "is_enabled", lambda: False)  # pytest has them
    monkeypatch.setattr(faulthandler, "enable", lambda *_args, **_options: None)
    elsewhere, remove = tmp_path / "elsewhere", os.unlink
    elsewhere.touch()

    def planting(path: str) -> None:
        with suppress(FileNotFoundError):
            remove(path)
        if path.endswith(suffix):
            Path(path).symlink_to(elsewhere)

    monkeypatch.setattr(os, "unlink", planting)
    target = make()
    assert elsewhere.read_bytes() == b""
    assert target.live == (suffix != ".hook")


def test_what_takes_the_place_of_the_pipe_for_requests_is_not_read(
    make: Callable[..., Hook], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "mkfifo", lambda path, _mode: Path(path).touch())
    target = make()
    assert target.live
    assert target.requests.pipe == -1


@pytest.mark.parametrize("kind", KINDS)
def test_plans_and_pauses_are_read_from_files_alone(
    make: Callable[..., Hook], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setenv("TRAINWARDEN_RUN_DIR", str(tmp_path))
    make()
    plant(tmp_path / "plan.json", kind)
    plant(tmp_path / "pause.json", kind)
    assert in_time(MicroBatchPlan(0, 2, 6).latest) == 0
    assert in_time(PauseFile(str(tmp_path / "pause.json")).newest) == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="giving a file away takes root")
def test_a_file_of_somebody_else_is_not_ours(make: Callable[..., Hook], tmp_path: Path) -> None:
    target = make()
    notes = Path(target.memory.path + ".last")
    notes.touch()
    os.chown(notes, 12345, 12345)
    with pytest.raises(OSError, match="no file of ours"):
        target.note({"type": "plan"})
    assert notes.read_bytes() == b""
    (tmp_path / "plan.json").write_text("{}")
    os.chown(tmp_path / "plan.json", 12345, 12345)
    with pytest.raises(OSError, match="no file of ours"):
        read_beside(str(tmp_path / "plan.json"), 1000)


def test_what_is_read_beside_is_whole(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(json.dumps({"number": 1}))
    assert json.loads(read_beside(str(tmp_path / "plan.json"), 1000)) == {"number": 1}
    other = os.open(tmp_path / "plan.json", os.O_RDONLY)
    with pytest.raises(OSError, match="no file of ours"):
        checked(other, 0o100000, (12345,))
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(other)
