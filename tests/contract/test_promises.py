"""tests/promises.md and the table of docs/gpu.md: what they promise names tests that are there."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from tests.places import ROOT

TEXT = (ROOT / "tests" / "promises.md").read_text(encoding="utf-8")
GPU = (ROOT / "docs" / "gpu.md").read_text(encoding="utf-8")
# What begins with `::` is of the file that was named last.
WHOLE = re.sub(r"`(tests/[^`:]+)(::[^`]+)?`((?:[^`\n]*`::[^`]+`)+)", lambda m: m[0].replace("`::", f"`{m[1]}::"), GPU)
NAMED = sorted(set(re.findall(r"`((?:tests|trainwarden)/[^`\s]+\.py(?:::[^`\s]+)?)`", TEXT + WHOLE)))


def test_every_row_names_what_holds_it() -> None:
    rows = [line for line in TEXT.splitlines() if line.startswith("|") and not re.match(r"\| ?(Promise|---)", line)]
    assert len(rows) > 60
    assert [row for row in rows if "tests/" not in row and "doctest" not in row] == []
    assert [row for row in rows if rows.count(row) > 1] == []  # both sides of a merge keep a row that one has moved


def test_every_letter_of_the_table_names_a_test() -> None:
    """docs/gpu.md: what a cell says has a letter, and the letter a test."""
    table = GPU[GPU.index("| torch (") : GPU.index("| | test |")].splitlines()[2:]
    named = dict(re.findall(r"^\| ([a-z]) \| (.*tests/.*) \|$", GPU, re.MULTILINE))
    used = {letter for row in table for letter in re.findall(r" ([a-z])(?=[,; ]|$)", row)}
    assert len(table) > 8
    assert used == set(named)


@cache
def names_in(file: str) -> set[str]:
    """Classes and functions of a file, which has to be there."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}


@pytest.mark.parametrize("name", NAMED)
def test_what_is_named_is_there(name: str) -> None:
    file, _, test = name.partition("::")
    assert set(test.partition("[")[0].split("::")) - {""} <= names_in(file)
