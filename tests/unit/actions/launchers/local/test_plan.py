"""The plan file: numbered, the last few readable, whole or not there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainwarden.actions.launchers.local.microbatch_plan import KEPT_PLANS, PlanFile


def test_plans_are_numbered_and_the_last_few_stay_readable(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    plan = PlanFile(path)
    assert (plan.number, plan.micro_batches) == (0, ())
    for number in range(1, 21):
        plan.put((number, 24 - number), "why", f"op-{number}")
    kept = json.loads(path.read_bytes())
    assert (kept["number"], kept["micro_batches"], kept["why"]) == (20, [20, 4], "why")
    assert [old["number"] for old in kept["history"]] == list(range(20 - KEPT_PLANS, 20))
    again = PlanFile(path)
    again.put((1, 23), "repeat", "op-20")  # the launcher was killed before it noted op-20
    assert (again.number, again.micro_batches) == (20, (20, 4))


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"number": 3'])
def test_a_damaged_plan_file_is_no_plan(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(content)
    assert PlanFile(path).number == 0


def test_a_plan_must_fit_ranks_and_total(tmp_path: Path) -> None:
    plan = PlanFile(tmp_path / "plan.json")
    assert plan.refusal((5, 3), 2) is None
    assert "3 ranks" in str(plan.refusal((5, 3), 3))
    plan.put((5, 3), "", "op")
    assert "8" in str(plan.refusal((5, 4), 2))
