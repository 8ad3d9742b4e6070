"""After which step all ranks of a node are to stand still, by what their hooks have written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.hook_doubles import HandClock, backward
from tests.unit.trainwarden.hook.conftest import clock, make  # noqa: F401 - fixtures
from tests.unit.trainwarden.hook.test_standing import Optimizer
from trainwarden.hook import Hook, files_in
from trainwarden.torchrun.standing import Progress, progress_of


def steps(target: Hook, clock: HandClock, *numbers: int, took_ms: float = 10.0) -> None:  # noqa: F811
    optimizer = Optimizer()
    for number in numbers:
        target.number(number)
        backward(target, clock, took_ms)
        target.ends.optimizer_stepped(optimizer)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (range(10, 20), range(10, 19), Progress(19, 20, 0.01, 1)),
        (range(0, 100, 10), range(0, 100, 10), Progress(100, 100, 0.01, 10)),
        (range(10), range(0, 100, 10), None),
        ([*range(10), 20, 30], range(12), None),
        (range(10), range(1), None),
        (range(10), (), None),
    ],
    ids=["one apart", "numbers of ten", "unlike each other", "numbers that jump", "one step", "no step"],
)
def test_how_far_ranks_are(
    make: Callable[..., Hook], clock: HandClock, tmp_path: Path, first: range, second: range, expected: Progress | None,  # noqa: F811
) -> None:  # fmt: skip
    for rank, numbers in enumerate((first, second)):
        steps(make(rank=rank), clock, *numbers)
    assert progress_of(files_in(tmp_path)) == expected


def test_no_ranks_are_nowhere(tmp_path: Path) -> None:
    assert progress_of(files_in(tmp_path)) is None
