"""The hook's word of process groups: once, by name, and without a harm."""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.hook_doubles import HandClock, backward
from trainwarden.hook import Hook
from trainwarden.hook.watches.groups import watch_groups

PLACE = "torch.distributed.distributed_c10d"


def groups_of(target: Hook) -> dict[str, str] | None:
    path = Path(target.memory.path + ".groups")
    return json.loads(path.read_text())["groups"] if path.exists() else None


def torch(monkeypatch: pytest.MonkeyPatch, **groups: list[int]) -> None:
    made = {Group(name): dict.fromkeys(ranks, 0) for name, ranks in groups.items()}
    monkeypatch.setitem(sys.modules, PLACE, SimpleNamespace(_world=SimpleNamespace(pg_group_ranks=made)))  # type: ignore[arg-type]


class Group:
    """A process group: its name is all that is looked at."""

    def __init__(self, name: str) -> None:
        self.group_desc = name


def step(target: Hook, clock: HandClock) -> None:
    backward(target, clock, 5.0)
    target.marked(None)


@pytest.fixture
def watched(make: Callable[..., Hook]) -> Hook:
    target = make(rank=1, world=4)
    target.missing = [lambda: watch_groups(target.memory, target.steps)]
    return target


def test_named_groups_are_written_once_the_first_steps_are_over(
    watched: Hook, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch(monkeypatch, default_pg=[0, 1, 2, 3], undefined=[0, 1], mesh_tp=[0, 1], mesh_dp=[1, 3], odd=[0, 1, 3])
    step(watched, clock)
    step(watched, clock)
    assert groups_of(watched) is None
    step(watched, clock)
    assert groups_of(watched) == {"mesh_tp": "0-1", "mesh_dp": "1-3:2", "odd": "0,1,3"}
    assert watched.missing == []


@pytest.mark.parametrize("module", [None, SimpleNamespace(), SimpleNamespace(_world=None)])
def test_without_groups_there_is_no_file(
    watched: Hook, clock: HandClock, monkeypatch: pytest.MonkeyPatch, module: Any
) -> None:
    monkeypatch.setitem(sys.modules, PLACE, module)
    for _ in range(4):
        step(watched, clock)
    assert groups_of(watched) is None
    assert watched.missing == []


def test_a_folder_that_is_full_or_gone_stops_no_step(
    watched: Hook, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch(monkeypatch, mesh_tp=[0, 1])
    watched.memory.path = "/nonexistent/rank-1-1"
    for _ in range(4):
        step(watched, clock)
    assert watched.steps.count == 4
    assert watched.missing == []


def test_a_disk_that_fills_up_meanwhile_leaves_nothing(
    watched: Hook, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch(monkeypatch, mesh_tp=[rank + (rank > 9) for rank in range(2000)])
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    step(watched, clock)
    step(watched, clock)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, limits[1]))  # the rest of a longer text finds no room
    try:
        step(watched, clock)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert groups_of(watched) is None
    assert [path.name for path in Path(watched.memory.folder).glob("*.tmp")] == []
    assert watched.steps.count == 3
