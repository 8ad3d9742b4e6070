"""Situations of the first hour that no other test has; `python -m tests.first_hour` runs the whole table."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.first_hour.situations import SHELL, SITUATIONS, Situation, run

pytestmark = [pytest.mark.system, pytest.mark.timeout(280)]

ALONE = {"division", "killed", "ctrl-c", "sigterm", "detector-killed", "shell-script"}


CHOSEN = [one for one in (*SITUATIONS, *SHELL) if one.name in ALONE]


@pytest.mark.parametrize("situation", CHOSEN, ids=lambda one: one.name)
def test_the_answer_is_the_one_that_is_due(situation: Situation, tmp_path: Path) -> None:
    cell = run(situation, "python", tmp_path / "run")
    assert cell.wrong is None, cell.log
