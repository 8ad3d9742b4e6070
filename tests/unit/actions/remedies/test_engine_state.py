"""What memory finds by its indices is what a look at everything finds."""

from __future__ import annotations

import random
from typing import get_args

import pytest

from trainwarden.actions.brakes.history import NODES_OUT, begun
from trainwarden.actions.remedies import table as remedies
from trainwarden.actions.remedies.engine_state import EngineState
from trainwarden.records import ActionKind, ActionRecord, Outcome


@pytest.mark.parametrize("seed", range(5))
def test_actions_of_a_job_and_those_beside_it(seed: int) -> None:
    draw, memory = random.Random(seed), EngineState(remedies.load(None).ladder)
    for number in range(300):
        of, place = draw.randrange(60), draw.randrange(8)
        memory.apply(
            ActionRecord(
                id=f"i{of}/{place}", incident=f"i{of}", job=f"j{of % 5}", why="w", kind=get_args(ActionKind)[place],
                outcome=draw.choice(get_args(Outcome)), at_s=float(number),
            )
        )  # fmt: skip
        if number % 100 == 99:
            memory.forget(number - draw.choice([50.0, 150.0]))
        known = list(memory.actions.values())
        for job in (f"j{place}" for place in range(5)):
            of_job = {action.id for action in known if action.job == job}
            out = {action.id for action in known if action.kind in NODES_OUT and begun(action)}
            assert {action.id for action in memory.of_job(job)} == of_job
            assert {action.id for action in memory.beside(job)} - of_job - out == set()
            assert {action.id for action in memory.beside(job)} >= of_job | out
