"""Words and JSON of the command line."""

from __future__ import annotations

import io
import json
import os
import re
from pathlib import Path

import pytest

from trainwarden.cli.shared.output import Voice, check_json_target, with_json_target, write_json
from trainwarden.errors import ConfigError


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (["demo", "--json"], ["demo", "--json", "-"]),
        (["demo", "--json", "--seed", "1"], ["demo", "--json", "-", "--seed", "1"]),
        (["watch", "--json", "o.json", "--", "x"], ["watch", "--json", "o.json", "--", "x"]),
        (["watch", "--", "x", "--json"], ["watch", "--", "x", "--json"]),
        (["watch", "--json", "--", "x"], ["watch", "--json", "-", "--", "x"]),
        (["demo", "--json", "-"], ["demo", "--json", "-"]),
    ],
)
def test_json_without_a_file_is_standard_output(given: list[str], wanted: list[str]) -> None:
    assert with_json_target(given) == wanted


def test_json_goes_to_the_file_whole(tmp_path: Path) -> None:
    target = tmp_path / "out.json"
    write_json({"a": None, "b": [1.5]}, str(target))
    assert json.loads(target.read_text()) == {"a": None, "b": [1.5]}
    assert list(tmp_path.iterdir()) == [target]


def test_json_to_what_is_no_file_goes_there_and_nothing_takes_its_place(tmp_path: Path) -> None:
    """As root `--json /dev/null` made a file of that name; and `--json >(jq .)` was refused."""
    nowhere, kept = tmp_path / "null", tmp_path / "kept"
    nowhere.symlink_to(os.devnull)
    kept.write_text("of before")
    (tmp_path / "link").symlink_to(kept)
    for name in ("null", "link"):
        check_json_target(str(tmp_path / name))
        write_json({"a": 1}, str(tmp_path / name))
        assert (tmp_path / name).is_symlink()
    assert json.loads(kept.read_text()) == {"a": 1}
    source, end = os.pipe()
    check_json_target(f"/dev/fd/{end}")
    write_json({"a": 2}, f"/dev/fd/{end}")
    os.close(end)
    with open(source) as read:
        assert json.load(read) == {"a": 2}


def test_a_link_into_a_folder_that_is_not_there_is_refused_before_the_work_starts(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "gone" / "out.json")
    with pytest.raises(ConfigError, match="does not exist"):
        check_json_target(str(tmp_path / "link"))
    (tmp_path / "gone").mkdir()
    check_json_target(str(tmp_path / "link"))
    write_json({"a": 1}, str(tmp_path / "link"))
    assert json.loads((tmp_path / "gone" / "out.json").read_text()) == {"a": 1}


def test_a_pipe_that_nobody_reads_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="cannot be written"):
        write_json({"a": 1}, str(tmp_path / "pipe"))


def test_an_answer_that_standard_output_does_not_take_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    said = io.StringIO()
    with open("/dev/full", "w") as full:
        monkeypatch.setattr("sys.stdout", full)
        Voice("-", stream=said).answer_if_possible({"a": 1})
    assert "standard output cannot be written (No space left on device)" in said.getvalue()


def test_a_folder_that_is_not_there_is_refused_before_the_work(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        check_json_target(str(tmp_path / "none" / "out.json"))


@pytest.mark.parametrize(
    ("terminal", "environ", "has_colour"),
    [
        (True, {"TERM": "xterm"}, True), (False, {"TERM": "xterm"}, False), (True, {"TERM": "dumb"}, False),
        (True, {"TERM": "xterm", "NO_COLOR": "1"}, False),
    ],
)  # fmt: skip
def test_colour_is_only_for_terminals_that_have_it(
    terminal: bool, environ: dict[str, str], has_colour: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TERM", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: terminal)
    Voice(stream=stream).say("[incident opened] hang sev2: rank 1 does not move")
    assert ("\x1b[" in stream.getvalue()) is has_colour
    assert re.sub(r"\x1b\[[0-9;]*m", "", stream.getvalue()) == "[incident opened] hang sev2: rank 1 does not move\n"
