"""A write that finds no space: the exception's note names path, file system and free bytes, and the incident does."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from trainwarden.collectors.iterations.hook_source import decode_note
from trainwarden.collectors.iterations.records import HookRecords
from trainwarden.hook import Hook
from trainwarden.hook.layout import CHECKPOINT
from trainwarden.hook.pauses import lack_of_space
from trainwarden.hook.watches.pausing import _pausing
from trainwarden.protocols import Scope

TORCH = "[enforce fail at inline_container.cc:862] . PytorchStreamWriter failed writing file data/0: file write failed"


def test_a_checkpoint_that_finds_no_space_is_told_with_its_file_system(
    make: Callable[..., Hook], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "excepthook", lambda *args: None)
    target, path = make(rank=2), tmp_path / "step-7" / "last.pt"

    def save(model: object, file: object) -> None:
        raise RuntimeError(TORCH)

    with pytest.raises(RuntimeError) as raised:
        _pausing(target.pauses, save, CHECKPOINT)({}, path)
    sys.excepthook(RuntimeError, raised.value, raised.value.__traceback__)
    note = decode_note(Path(target.memory.path + ".last").read_bytes())
    assert note is not None
    sizes = os.statvfs(tmp_path)
    event = HookRecords(Scope(job="j", node="n", run_dir=str(tmp_path))).note(note)
    assert event.fields["path"] == str(path)
    assert event.fields["size_bytes"] == sizes.f_blocks * sizes.f_frsize
    assert str(tmp_path).startswith(str(event.fields["mount"]))
    assert event.fields["file_system"]
    assert 0 <= int(event.fields["free_bytes"] or 0) < int(event.fields["size_bytes"] or 0)


def test_what_the_system_says_names_its_own_file() -> None:
    """/dev/full has no space for anybody."""
    try:
        os.write(os.open("/dev/full", os.O_WRONLY), b"x")
    except OSError as error:
        raised = OSError(error.errno, os.strerror(error.errno or 0), "/dev/full")
    assert raised.errno == errno.ENOSPC
    with pytest.raises(RuntimeError) as caught:
        raise RuntimeError("cannot save") from raised
    assert lack_of_space(caught.value, "")["path"] == "/dev/full"


@pytest.mark.parametrize(
    "error",
    [ValueError("x"), FileNotFoundError(errno.ENOENT, "No such file", "/a"), OSError(errno.EIO, "I/O error", "/a")],
)
def test_other_errors_ask_nothing_of_any_file_system(error: Exception) -> None:
    assert lack_of_space(error, "/tmp") == {}


def test_a_path_that_nobody_named_is_only_blamed_if_it_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    error = OSError(errno.ENOSPC, "No space left on device")
    assert lack_of_space(error, "") == {}
    full = os.statvfs_result((4096, 4096, 1000, 5, 5, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda path: full)
    assert lack_of_space(error, "")["free_bytes"] == 5 * 4096


def test_a_note_of_before_is_read_as_it_was() -> None:
    fact = {"type": "exception", "file": "f", "number": 1, "pid": 1, "rank": 0, "incarnation": "1-1", "time_s": 1.0}
    note = decode_note(json.dumps(fact).encode())
    assert note is not None
    assert "path" not in HookRecords(Scope(job="j", node="n", run_dir="/")).note(note).fields
