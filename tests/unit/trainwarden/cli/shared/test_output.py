"""Words and JSON of the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainwarden.cli.shared.output import check_json_target, with_json_target, write_json
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
