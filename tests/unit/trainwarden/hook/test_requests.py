"""The recorder of collective calls, on request."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.hook_doubles import set_everywhere
from trainwarden.hook import Hook
from trainwarden.hook.layout import AT_ERRORS


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What stands in for torch's module: `answer` is what its recorder says."""
    told = SimpleNamespace(answer=b'{"entries":[]}', asked=0)

    def dump() -> bytes:
        told.asked += 1
        if isinstance(told.answer, Exception):
            raise told.answer
        return told.answer

    told._dump_fr_trace_json = dump
    monkeypatch.setitem(sys.modules, "torch._C._distributed_c10d", told)
    return told


def ask(target: Hook, seconds: float = 5.0) -> bool:
    """Ask as the agent does; True if an answer comes."""
    answer = Path(target.memory.path + ".calls")
    descriptor = os.open(target.memory.path + ".ask", os.O_WRONLY | os.O_NONBLOCK)
    os.write(descriptor, b"?")
    os.close(descriptor)
    came = threading.Event()
    for _ in range(int(seconds / 0.01)):
        if answer.exists():
            return True
        came.wait(0.01)
    return False


def test_a_request_is_answered_while_the_training_thread_waits(
    make: Callable[..., Hook], recorder: SimpleNamespace
) -> None:
    target = make()
    target.waits.enter()  # stuck in a collective
    assert ask(target)
    assert Path(target.memory.path + ".calls").read_bytes() == recorder.answer
    assert not Path(target.memory.path + ".calls.tmp").exists()
    assert target.words[AT_ERRORS] == 0


def test_nothing_is_recorded_until_somebody_asks(make: Callable[..., Hook], recorder: SimpleNamespace) -> None:
    target = make()
    target.waits.leave(target.waits.enter())
    target._settle_rank()
    assert recorder.asked == 0
    assert {path.suffix for path in Path(target.memory.folder).iterdir()} - {".fault"} == {".ask", ".hook"}


def test_a_recorder_that_fails_says_nothing_or_far_too_much_leaves_no_file_and_the_next_request_is_heard(
    make: Callable[..., Hook], recorder: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = make()
    set_everywhere(monkeypatch, "_MAX_CALLS_BYTES", 1000)
    for answer in (RuntimeError("no"), b"{}", b'{"entries":[' + b"0," * 1000 + b"0]}"):
        recorder.answer = answer
        assert not ask(target, 0.1)
    assert target.words[AT_ERRORS] == 1
    recorder.answer = b'{"entries":[1]}'
    assert ask(target)


def test_a_rank_alone_has_no_pipe_and_no_thread(make: Callable[..., Hook], recorder: SimpleNamespace) -> None:
    target = make(world=1)
    assert target.requests.pipe == -1
    assert not Path(target.memory.path + ".ask").exists()


def test_a_pipe_that_cannot_be_made_is_counted_and_harms_nothing(
    make: Callable[..., Hook], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "mkfifo", refuse)
    target = make()
    assert target.live
    assert target.requests.pipe == -1
    assert target.words[AT_ERRORS] == 1
