"""Files that are renamed while a tail looks for its place: no line is lost, and positions only grow."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from trainwarden.collectors.logs.tail import Line, Tail


def rotate(path: Path) -> None:
    for old in sorted(path.parent.glob(f"{path.name}.*"), key=lambda file: -int(file.suffix[1:])):
        old.rename(old.with_suffix(f".{int(old.suffix[1:]) + 1}"))
    if path.exists():
        path.rename(path.with_name(f"{path.name}.1"))


def write(path: Path, *lines: str) -> None:
    with path.open("a") as file:
        file.writelines(f"{line}\n" for line in lines)


def reader(path: Path, state: Any = None) -> Tail:
    tail = Tail(path, rotate_wait_s=0.0, rotated_too=True)
    if state is not None:
        tail.restore(state)
    return tail


def read_all(tail: Tail, reads: int = 6) -> list[Line]:
    lines: list[Line] = []
    for turn in range(reads):
        lines += tail.read(float(turn), 1 << 20)
    return lines


def read_while_renamed(
    tail: Tail, path: Path, monkeypatch: pytest.MonkeyPatch, function: str, call: int
) -> tuple[list[Line], int]:
    """What `tail` reads if the log is rotated just before its `call`-th call of `function`; how many calls it made."""
    real, calls = getattr(os, function), 0

    def renaming(*arguments: Any, **keywords: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            rotate(path)
            write(path, "c1")
        return real(*arguments, **keywords)

    with monkeypatch.context() as patch:
        patch.setattr(os, function, renaming)
        return tail.read(0.0, 1 << 20), calls


@pytest.mark.parametrize("call", range(1, 8))
@pytest.mark.parametrize("function", ["open", "stat", "listdir"])
def test_a_rename_at_any_moment_of_a_resume_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, call: int
) -> None:
    path = tmp_path / "rank-1.log"
    write(path, "a1", "a2")
    first = reader(path)
    before = read_all(first, 1)
    state = msgspec.to_builtins(first.state)
    first.close()
    write(path, "a3")
    rotate(path)
    write(path, "b1")
    again = reader(path, state)
    after, calls = read_while_renamed(again, path, monkeypatch, function, call)
    after += read_all(again)
    again.close()
    lines = [line.decode() for _, line in before + after]
    assert lines == ["a1", "a2", "a3", "b1"] + (["c1"] if calls >= call else [])
    ends = [end for end, _ in before + after]
    assert ends == sorted(set(ends))


def test_killed_between_two_files_the_next_start_reads_both(tmp_path: Path) -> None:
    path = tmp_path / "rank-1.log"
    write(path, "a1")
    first = reader(path)
    assert [line for _, line in read_all(first, 2)] == [b"a1"]
    rotate(path)  # and the writer has not begun a new file yet
    assert read_all(first, 3) == []
    state = msgspec.to_builtins(first.state)
    first.close()
    write(path, "b1")
    rotate(path)
    write(path, "c1")
    again = reader(path, state)
    assert [line for _, line in read_all(again)] == [b"b1", b"c1"]
    again.close()


@pytest.mark.parametrize("known", [True, False])
def test_a_file_that_is_left_under_its_rotated_name_alone_is_read(tmp_path: Path, known: bool) -> None:
    path = tmp_path / "rank-1.log"
    write(path, "a1")
    state = None
    if known:
        first = reader(path)
        assert [line for _, line in read_all(first, 1)] == [b"a1"]
        state = msgspec.to_builtins(first.state)
        first.close()
    write(path, "a2")
    rotate(path)  # and the writer is gone: no new file begins
    again = reader(path, state)
    assert [line for _, line in read_all(again)] == ([b"a2"] if known else [b"a1", b"a2"])
    again.close()


@pytest.mark.parametrize("call", range(1, 8))
@pytest.mark.parametrize("function", ["open", "stat", "listdir"])
def test_a_rename_at_any_moment_of_the_first_look_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, call: int
) -> None:
    path = tmp_path / "rank-1.log"
    write(path, "a1")
    rotate(path)
    write(path, "b1")
    tail = reader(path)
    lines, calls = read_while_renamed(tail, path, monkeypatch, function, call)
    lines += read_all(tail)
    tail.close()
    assert [line.decode() for _, line in lines] == ["a1", "b1"] + (["c1"] if calls >= call else [])
