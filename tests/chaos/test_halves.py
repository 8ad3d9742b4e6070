"""A network that is cut in two: whoever has the lease service goes on, and nobody else beside it."""

from __future__ import annotations

from random import Random

import pytest

from actions.launchers.cluster.words import Shape
from tests.chaos import grid as parts
from tests.chaos.history import History, Limits, attempts_mixed

AFTER_S = 90


@pytest.mark.parametrize(
    "shape",
    [Shape(nodes=1, least_nodes=1, spares=2, restarts=9), Shape(nodes=2, least_nodes=1, spares=2, restarts=9)],
    ids=["one trains", "two train"],
)
@pytest.mark.parametrize("seed", range(3))
def test_all_that_train_are_cut_off_with_their_leader_and_the_spares_begin_after_they_have_stopped(
    seed: int, shape: Shape, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "SHAPE", shape)
    grid = parts.Grid("g", Random(seed), History(seed, Limits(1, 1, 1.0)), 1000.0)
    grid.calm = True
    for _ in range(40):
        grid.tick(grid.now_s + 1.0)
    half = [one for one in grid.machines if one.ranks.alive or one.keeper.leads() is not None]
    assert len(half) < len(grid.machines)
    before, wire = grid._whole(), grid.wire

    def cut(asks, answers, question):  # type: ignore[no-untyped-def]
        if (asks in half) != (answers in half):
            raise parts.LauncherUnavailable("cut in two")
        return wire(asks, answers, question)

    monkeypatch.setattr(grid, "wire", cut)
    for _ in range(AFTER_S):
        grid.tick(grid.now_s + 1.0)
        assert len(grid._whole()) <= 1
    assert attempts_mixed(grid.history) == []
    assert [one.id for one in grid._whole()] > [one.id for one in before]
