"""Each rule of a chaos run can be broken: the product is made wrong in one place, and that rule says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
import pytest

from tests.chaos.history import RULES, broken
from tests.chaos.world import World
from trainwarden.actions.brakes.brakes import Brakes
from trainwarden.actions.brakes.nodes import NodeLimits
from trainwarden.actions.engine.action_executor import ActionExecutor
from trainwarden.actions.engine.handler import EngineHandler
from trainwarden.actions.launchers.torchrun.table import JobTable
from trainwarden.actions.remedies import planner, stopped_job
from trainwarden.actions.remedies.engine_state import EngineState
from trainwarden.detectors.job.step_numbers import StepNumbers

MOST_SEEDS: Final = 200  # as the product itself is tried with


def _unflushed(
    self: ActionExecutor, action: Any, now_s: float, why_not: Any, go_on: Any = ActionExecutor.go_on
) -> None:
    self._recorded.add(action.id)
    go_on(self, action, now_s, why_not)


def _disowned(
    self: ActionExecutor, memory: Any, elsewhere: Any, take_over: Any = ActionExecutor.take_over
) -> list[Any]:
    take_over(self, memory, elsewhere)
    self.mine = set()
    return []


def _anybody(self: JobTable, now_s: float) -> list[Any]:
    return [one for one in self.members.living(now_s) if one.beat.waits]


def _no_order(self: JobTable, waiting: Any, seats: Any = JobTable._seats) -> Any:
    self.memory = msgspec.structs.replace(self.memory, order=())
    return seats(self, waiting)


def _by_label(self: StepNumbers, column: int, label: int, end_s: float) -> int | None:
    if label <= self.high[column]:
        return None
    self.high[column] = label
    return label


WRONG: Final[dict[str, tuple[str, Any, str, Callable[..., Any]]]] = {
    "a restart is due whatever was done": ("no action twice", stopped_job, "_down", lambda view, persist_s: True),
    "another incident's remedy is none": ("no action twice", stopped_job, "_after_opening", lambda view, action: False),
    "a suspicion is enough": ("no healthy node evicted", planner, "unproved", lambda view: set()),
    "the hour's budget is not kept": ("no budget broken", Brakes, "_budget", lambda self, now_s, asked: None),
    "any number of nodes may be taken out": ("no budget broken", NodeLimits, "hold", lambda self, now_s, asked: None),
    "started is not flushed": ("nothing asked for before it is recorded", ActionExecutor, "go_on", _unflushed),
    "a stop is not heard": ("nothing asked for against a stop", EngineState, "stopped_by", lambda self, job: None),
    "nothing is planned": ("no job left stopped without a word", EngineHandler, "_planned", lambda self, view: None),
    "what was begun is not taken over": ("nothing begun and forgotten", ActionExecutor, "take_over", _disowned),
    "who is set aside takes part": ("no attempt beside another", JobTable, "_waiting", _anybody),
    "a move is forgotten": ("no attempt beside another", JobTable, "_seats", _no_order),
    "a label is a number": ("no step lost to its number", StepNumbers, "of", _by_label),
}  # fmt: skip


def test_every_rule_is_broken_by_something_here() -> None:
    assert {rule for rule, *_ in WRONG.values()} == set(RULES)


@pytest.mark.thorough
@pytest.mark.parametrize("wrong", WRONG)
def test_a_rule_says_what_is_wrong(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rule, owner, name, by = WRONG[wrong]
    monkeypatch.setattr(owner, name, by)
    assert any(rule in broken(World(seed).run()) for seed in range(MOST_SEEDS))
