"""Exceptions and exits."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.hook_doubles import header_of
from trainwarden.hook import Hook
from trainwarden.hook.last_words import user_frame


def test_an_exception_goes_out_by_datagram_and_file(
    make: Callable[..., Hook], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    previous: list[object] = []
    monkeypatch.setattr(sys, "excepthook", lambda *args: previous.append(args))
    target = make(rank=2)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as agent:
        folder = os.open(tmp_path, os.O_RDONLY)
        agent.bind(f"/proc/self/fd/{folder}/agent.sock")
        os.close(folder)
        agent.settimeout(5.0)
        try:
            raise ValueError("x" * 5000)
        except ValueError as error:
            sys.excepthook(type(error), error, error.__traceback__)
        told = json.loads(agent.recv(65536))
    assert told == json.loads(Path(target.memory.path + ".last").read_bytes())
    assert told["type"] == "exception"
    assert told["exception"] == "ValueError"
    assert told["message"].startswith("ValueError: xxx")
    assert len(told["message"]) == 2000
    assert "test_last_words.py" in told["frame"]
    assert told["incarnation"] == header_of(target).incarnation
    assert len(previous) == 1
    target.last_words.at_exit()
    assert header_of(target).exit_code == 1


def test_the_frame_is_the_innermost_one_of_the_person() -> None:
    try:
        json.loads("{")
    except ValueError as error:
        frame = user_frame(error.__traceback__)
    assert frame.startswith("test_last_words.py:")
    assert frame.endswith("in test_the_frame_is_the_innermost_one_of_the_person")


def test_sys_exit_keeps_its_code(make: Callable[..., Hook]) -> None:
    target = make()
    with pytest.raises(SystemExit) as ended:
        sys.exit(3)
    assert ended.value.code == 3
    target.last_words.at_exit()
    assert header_of(target).exit_code == 3
