"""Exceptions and exits."""

from __future__ import annotations

import itertools
import json
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.hook_doubles import header_of
from trainwarden.collectors.iterations.hook_source import decode_note
from trainwarden.hook import Hook
from trainwarden.hook.last_words import causes_of, type_names, user_frame


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


class StepFailed(OSError):
    pass


class Unprintable(RuntimeError):
    def __str__(self) -> str:
        raise ValueError


def chain(*errors: BaseException, during: bool = False) -> BaseException:
    """The last of `errors`, each raised from the one before."""
    for before, error in itertools.pairwise(errors):
        if during:
            error.__context__ = before
        else:
            error.__cause__ = before
    return errors[-1]


def test_the_causes_of_an_exception_are_told_one_line_each_nearest_first() -> None:
    assert causes_of(ValueError("alone")) == []
    assert causes_of(chain(MemoryError("a\nb"), Exception("c"), ValueError("d"))) == [
        "Exception: c",
        "MemoryError: a\vb",
    ]
    assert causes_of(chain(KeyError("k"), ValueError("d"), during=True)) == ["during KeyError: 'k'"]
    hidden = chain(KeyError("k"), ValueError("d"), during=True)
    hidden.__suppress_context__ = True  # raise ... from None
    assert causes_of(hidden) == []


def test_causes_are_bounded_whatever_the_exceptions_are() -> None:
    ring = ValueError("ring")
    ring.__cause__ = KeyError("k")
    ring.__cause__.__cause__ = ring
    assert causes_of(ring) == ["KeyError: 'k'"]
    long = causes_of(chain(*(ValueError("x" * 100_000) for _ in range(100))))
    assert len(long) == 8
    assert max(map(len, long)) <= 1100
    assert causes_of(chain(Unprintable(), ValueError("d"))) == [f"{__name__}.Unprintable: "]


def test_the_types_of_an_exception_are_named_with_their_modules() -> None:
    assert type_names(StepFailed) == [f"{__name__}.StepFailed", "OSError"]
    assert type_names(Exception) == []


def test_an_exception_that_cannot_be_printed_or_encoded_is_told_all_the_same(make: Callable[..., Hook]) -> None:
    target = make(rank=1)
    for error in (Unprintable(), FileNotFoundError("/data/\udcff")):
        target.last_words.exception(type(error), chain(MemoryError("\udcfe"), error), None)
    lines = Path(target.memory.path + ".last").read_bytes().splitlines()
    notes = [decode_note(line) for line in lines]
    assert [note and note.message for note in notes] == ["Unprintable: ", "FileNotFoundError: /data/\\udcff"]
    assert [note and note.causes for note in notes] == ["MemoryError: \\udcfe"] * 2
