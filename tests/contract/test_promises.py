"""docs/promises.md: every promise names tests that are there."""

from __future__ import annotations

import ast
import re

import pytest

from tests.places import ROOT

TEXT = (ROOT / "docs" / "promises.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`((?:tests|trainwarden)/[^`\s]+\.py(?:::[^`\s]+)?)`", TEXT)))


def test_every_row_names_what_holds_it() -> None:
    rows = [line for line in TEXT.splitlines() if line.startswith("|") and not re.match(r"\| ?(Promise|---)", line)]
    assert len(rows) > 60
    assert [row for row in rows if "tests/" not in row and "doctest" not in row] == []


@pytest.mark.parametrize("name", NAMED)
def test_what_is_named_is_there(name: str) -> None:
    file, _, test = name.partition("::")
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    names = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    assert not test or set(test.partition("[")[0].split("::")) <= names
