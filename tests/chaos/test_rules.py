"""Each rule of a chaos run can be broken: the product is made wrong in one place, and that rule says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest

from actions.brakes.brakes import Brakes
from actions.brakes.nodes import NodeLimits
from actions.engine.acting import Acting
from actions.engine.handler import EngineHandler
from actions.launchers.cluster import leader
from actions.launchers.cluster.leader import LeaderTable
from actions.launchers.leases.table import LeaseTable
from actions.launchers.restart_check.trials import Trials
from actions.remedies import planner, stopped_job
from actions.remedies.memory import Memory
from detectors.job.step_numbers import StepNumbers
from tests.chaos.history import RULES, broken
from tests.chaos.world import World
from trainwarden.metrics_http.strangers import Strangers

MOST_SEEDS: Final = 200  # as the product itself is tried with


def _unflushed(self: Acting, action: Any, now_s: float, why_not: Any, go_on: Any = Acting.go_on) -> None:
    self._recorded.add(action.id)
    go_on(self, action, now_s, why_not)


def _disowned(self: Acting, memory: Any, elsewhere: Any, take_over: Any = Acting.take_over) -> list[Any]:
    take_over(self, memory, elsewhere)
    self.mine = set()
    return []


def _at_once(self: LeaseTable, duration_s: float, now_s: float, begin: Any = LeaseTable.__init__) -> None:
    begin(self, duration_s, now_s)
    self._quiet_until_s = now_s


def _oldest(self: Strangers[str], origins: set[str], but: str | None = None) -> str | None:
    return next(iter(self._places))


def _by_label(self: StepNumbers, column: int, label: int, end_s: float) -> int | None:
    if label <= self.high[column]:
        return None
    self.high[column] = label
    return label


def _anybody(self: LeaderTable, now_s: float) -> list[Any]:
    free = [one for one in self.living(now_s) if not one.alive and one.over is None]
    return sorted(free, key=lambda one: one.node)


WRONG: Final[dict[str, tuple[str, Any, str, Callable[..., Any]]]] = {
    "a restart is due whatever was done": ("no action twice", stopped_job, "_down", lambda view, persist_s: True),
    "another incident's remedy is none": ("no action twice", stopped_job, "_after_opening", lambda view, action: False),
    "a suspicion is enough": ("no healthy node evicted", planner, "unproved", lambda view: set()),
    "the hour's budget is not kept": ("no budget broken", Brakes, "_budget", lambda self, now_s, asked: None),
    "any number of nodes may be taken out": ("no budget broken", NodeLimits, "hold", lambda self, now_s, asked: None),
    "started is not flushed": ("nothing asked for before it is recorded", Acting, "go_on", _unflushed),
    "a stop is not heard": ("nothing asked for against a stop", Memory, "stopped_by", lambda self, job: None),
    "nothing is planned": ("no job left stopped without a word", EngineHandler, "_planned", lambda self, view: None),
    "what was begun is not taken over": ("nothing begun and forgotten", Acting, "take_over", _disowned),
    "who is set aside takes part": ("no attempt beside another", LeaderTable, "free", _anybody),
    "a move is forgotten": ("no attempt beside another", leader, "order_after", lambda asked, before: ()),
    "an order is kept through the next": ("no attempt beside another", Trials, "cut", lambda self: None),
    "who is longest here goes": ("no launcher shut out by strangers", Strangers, "_first", _oldest),
    "a label is a number": ("no step lost to its number", StepNumbers, "of", _by_label),
    "a lease service does not wait at its start": ("no attempt beside another", LeaseTable, "__init__", _at_once),
}  # fmt: skip


def test_every_rule_is_broken_by_something_here() -> None:
    assert {rule for rule, *_ in WRONG.values()} == set(RULES)


@pytest.mark.thorough
@pytest.mark.parametrize("wrong", WRONG)
def test_a_rule_says_what_is_wrong(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rule, owner, name, by = WRONG[wrong]
    monkeypatch.setattr(owner, name, by)
    assert any(rule in broken(World(seed).run()) for seed in range(MOST_SEEDS))
