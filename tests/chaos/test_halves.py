"""A network that is cut in two, a rendezvous in each half: never do two rounds train beside each other."""

from __future__ import annotations

from random import Random

import pytest

from tests.chaos.grid import Grid, Shape
from tests.chaos.history import History, Limits, attempts_mixed
from trainwarden.actions.launchers.torchrun.messages import Memory
from trainwarden.actions.launchers.torchrun.table import JobTable

AFTER_S = 90
SHAPES = {"one trains": Shape(1, 1), "two train": Shape(1, 2), "two at least": Shape(2, 2)}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", range(3))
def test_all_that_train_are_cut_off_from_the_spares_and_nothing_trains_twice(
    seed: int, shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_in_halves(seed, SHAPES[shape], monkeypatch)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_rendezvous_that_asks_for_no_majority_trains_twice(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(JobTable, "majority", lambda self, now_s: True)
    with pytest.raises(AssertionError, match="trains twice"):
        train_in_halves(0, SHAPES[shape], monkeypatch)


def train_in_halves(seed: int, shape: Shape, monkeypatch: pytest.MonkeyPatch) -> None:
    grid = Grid("g", Random(seed), History(seed, Limits(1, 1, 1.0)), 1000.0, shape)
    grid.calm = True
    for _ in range(40):
        grid.tick(grid.now_s + 1.0)
    half = [one for one in grid.machines if one.runs]
    assert len(half) == shape.most < len(grid.machines)
    before, reaches = grid._whole(), grid.reaches

    def cut(node, service):  # type: ignore[no-untyped-def]
        return reaches(node, service) and (node in half) == (service is grid.services[0])

    monkeypatch.setattr(grid, "reaches", cut)
    for _ in range(AFTER_S):
        grid.tick(grid.now_s + 1.0)
        assert len(grid._whole()) <= 1, "it trains twice"
        assert {one.name for one in grid.machines if one.runs} <= {one.name for one in half}, "it trains twice"
    assert attempts_mixed(grid.history) == []
    assert grid._whole() == before, "those that train go on"


@pytest.mark.parametrize("are_told", [False, True])
def test_who_begins_beside_a_round_that_runs_is_blamed_if_anybody_there_knew(
    are_told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid = Grid("g", Random(0), History(0, Limits(1, 1, 1.0)), 1000.0, Shape(2, 2))
    grid.calm = True
    for _ in range(10):
        grid.tick(grid.now_s + 1.0)
    half = [one for one in grid.machines if one.runs]
    spares = [one for one in grid.machines if one not in half]
    assert len(half) == len(spares) == 2
    for one in half:
        one.cut_until_s = grid.now_s + 30.0
    grid.restart(0, 0.0)
    for one in spares[are_told:]:
        one.kill()
        one.boot()
    if are_told:
        monkeypatch.setattr(JobTable, "majority", lambda self, now_s: True)
        monkeypatch.setattr(Memory, "newer_than", (0, 0))  # no service learns from an agent
    for _ in range(60):
        grid.tick(grid.now_s + 1.0)
    assert bool(attempts_mixed(grid.history)) == are_told
    if not are_told:
        assert [one for one in grid.machines if one.runs] == half
        assert grid.beside() == []
