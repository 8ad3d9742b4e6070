"""Plans of micro-batches."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.hook_doubles import HandClock, header_of
from trainwarden.hook import Hook, MicroBatchPlan


@pytest.fixture
def plan_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRAINWARDEN_RUN_DIR", str(tmp_path))
    return tmp_path / "plan.json"


def write_plan(path: Path, plan: object) -> None:
    part = path.with_suffix(".part")
    part.write_text(json.dumps(plan))
    part.replace(path)


def test_plans_are_read_and_adopted(plan_file: Path, make: Callable[..., Hook], clock: HandClock) -> None:
    target = make(rank=1)
    plan = MicroBatchPlan(1, 2, 6)
    assert (plan.latest(), plan.adopt(0)) == (0, (3, 3))
    write_plan(plan_file, {"number": 1, "micro_batches": [4, 2], "why": "rank 1 is slow"})
    assert plan.latest() == 1
    write_plan(plan_file, {"number": 2, "micro_batches": [5, 1]})
    assert plan.latest() == 2
    assert plan.adopt(1) == (4, 2)  # another rank had not read the second one yet
    header = header_of(target)
    assert (header.plan, header.micro_batches) == (1, 2)
    told = json.loads(Path(target.memory.path + ".last").read_text().splitlines()[-1])
    assert (told["type"], told["plan"], told["micro_batches"]) == ("plan", 1, "4,2")


def test_a_plan_that_was_missed_is_in_the_history(plan_file: Path) -> None:
    old = {"number": 1, "micro_batches": [4, 2]}
    write_plan(plan_file, {"number": 2, "micro_batches": [5, 1], "history": [old, "junk"]})
    plan = MicroBatchPlan(0, 2, 6)
    assert plan.latest() == 2
    assert plan.adopt(1) == (4, 2)


def test_ranks_of_a_replica_take_their_number_from_the_plan_of_all_ranks(
    plan_file: Path, make: Callable[..., Hook]
) -> None:
    target = make(rank=5, world=8)
    plan = MicroBatchPlan(5, 8, 6, group=(1, 5))
    write_plan(plan_file, {"number": 1, "micro_batches": [2, 2, 2, 2, 4, 4, 4, 4]})
    assert plan.latest() == 1
    assert plan.adopt(1) == (2, 4)
    assert header_of(target).micro_batches == 4
    told = json.loads(Path(target.memory.path + ".last").read_text().splitlines()[-1])
    assert told["micro_batches"] == "2,2,2,2,4,4,4,4"
    write_plan(plan_file, {"number": 2, "micro_batches": [2, 3, 2, 2, 4, 4, 4, 4]})
    assert plan.latest() == 1


@pytest.mark.parametrize(
    "plan",
    [
        {"number": 1, "micro_batches": [6]},
        {"number": 1, "micro_batches": [6, 0]},
        {"number": 1, "micro_batches": [4, 3]},
        {"number": 1, "micro_batches": [4.0, 2.0]},
        {"number": 1, "micro_batches": [True, 5]},
        {"number": 1, "micro_batches": "42"},
        {"number": 0, "micro_batches": [4, 2]},
        {"number": "1", "micro_batches": [4, 2]},
        {"micro_batches": [4, 2]},
        [1, 2],
        7,
    ],
)
def test_impossible_plans_are_passed_over(plan: object, plan_file: Path) -> None:
    write_plan(plan_file, plan)
    reader = MicroBatchPlan(0, 2, 6)
    assert reader.latest() == 0
    assert reader.adopt(1) == (3, 3)


@given(text=st.binary(max_size=200))
@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_as_plan_are_survived(text: bytes, plan_file: Path) -> None:
    plan_file.write_bytes(text)
    assert MicroBatchPlan(0, 2, 6).latest() == 0


@given(world=st.integers(1, 50), extra=st.integers(0, 100))
def test_the_even_split_is_even(world: int, extra: int) -> None:
    shares = MicroBatchPlan(0, world, world + extra).adopt(0)
    assert sum(shares) == world + extra
    assert max(shares) - min(shares) <= 1
