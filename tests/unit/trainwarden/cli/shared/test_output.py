"""Words and JSON of the command line."""

from __future__ import annotations

import io
import json
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
