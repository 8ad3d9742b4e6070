"""docs/papers.md: every file, name, test and command that its rows give is there, and each row says how far it runs."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from tests.places import ROOT
from trainwarden.cli.lazy import load
from trainwarden.cli.main import COMMANDS

TEXT = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
ROWS = [line.strip("| ").split(" | ") for line in TEXT.splitlines() if line.startswith("|") and line.count("|") == 6]
ROWS = [row for row in ROWS if not re.fullmatch(r"mechanism|---", row[0])]
QUOTED = sorted(set(re.findall(r"`([^`]+)`", TEXT)))
FOLDERS = ("actions/", "collectors/", "dashboards/", "detectors/", "trainer_offline/", "trainwarden/", "tests/")
FILES = [words for words in QUOTED if words.startswith(FOLDERS)]
CALLS = [words for words in QUOTED if words.startswith(("trainwarden ", "python "))]
BENCHES = "".join(f"{file.stem} {file.read_text()}" for file in (ROOT / "tests" / "benchmarks").glob("bench_*.py"))


def test_every_row_says_how_far_it_runs_and_names_code_and_test_or_why_there_is_none() -> None:
    """What is live names all three; what is absent gives a reason in their place."""
    assert len(ROWS) > 60
    for mechanism, here, shown, _, runs in ROWS:
        word = runs.split(" ")[0].rstrip(",")
        assert word in ("live", "setting", "offline", "absent"), mechanism
        if word == "absent":
            assert len(here.split()) > 1, mechanism
            assert shown == "-", mechanism
        else:
            code, _, test = here.partition("<br>")
            assert any(one in code for one in FILES), mechanism
            assert "`tests/" in test, mechanism
            assert shown.strip("`") in CALLS, mechanism


def test_the_page_stays_short() -> None:
    assert len(TEXT.split()) <= 1800


@cache
def names_in(file: str) -> set[str]:
    """Classes and functions of a Python file; none of another."""
    if not file.endswith(".py"):
        return set()
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    return {node.name for node in ast.walk(tree) if isinstance(node, kinds)}


@pytest.mark.parametrize("named", FILES)
def test_what_is_named_is_there(named: str) -> None:
    file, *name = re.split("::?", named)
    assert (ROOT / file).is_file()
    assert set(name) <= names_in(file)


@pytest.mark.parametrize("words", CALLS)
def test_what_is_to_be_typed_is_a_command_with_those_options(words: str) -> None:
    first, name, *rest = words.split()
    if first == "python":
        assert name == "-m"
        assert (ROOT / rest[0].replace(".", "/")).with_suffix(".py").is_file()
        return
    command = load(name, COMMANDS[name])
    known = {option for one in command.params for option in one.opts}
    assert {word for word in rest if word.startswith("--")} <= known
    if name == "bench":
        for word in rest:
            assert re.search(rf'bench_{word} |"[a-z0-9_]*{word}', BENCHES), word
