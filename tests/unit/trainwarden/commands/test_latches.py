"""Which latch holds goes by the order of the bus, not by clocks."""

from __future__ import annotations

from typing import Any

import pytest

from trainwarden.commands.builders import EVERY_JOB
from trainwarden.commands.latches import Latches
from trainwarden.records import CommandRecord


def word(kind: Any, number: int = 0, job: str = "a") -> CommandRecord:
    return CommandRecord(id=f"{kind}/{number}", job=job, at_s=0.0, kind=kind, by="ann")


@pytest.mark.parametrize("job", ["a", EVERY_JOB])
@pytest.mark.parametrize("step_s", [-3_600.0, 0.0, 3_600.0])
def test_the_last_word_on_a_job_counts_whatever_the_clock_of_the_bus_did(job: str, step_s: float) -> None:
    latches = Latches()
    latches.apply(word("reset", 1, job), 0, 5_000.0)
    latches.apply(word("latch", 1, job), 1, 5_000.0 + step_s)
    assert latches.over("a") is not None
    latches.apply(word("reset", 2, job), 2, 5_000.0 + 2 * step_s)
    assert latches.over("a") is None


def test_words_that_are_read_again_change_nothing() -> None:
    latches, first, second = Latches(), word("latch", 1), word("latch", 2)
    latches.apply(first, 3, 1.0)
    latches.apply(second, 4, 2.0)
    latches.apply(first, 3, 1.0)
    assert latches.over("a") == second
    latches.apply(word("reset", 1), 5, 3.0)
    for latch, offset in ((first, 3), (second, 4)):
        latches.apply(latch, offset, float(offset))
    assert latches.over("a") is None


def test_a_latch_that_has_not_come_to_the_bus_holds_and_then_has_its_place_there() -> None:
    latches, latch = Latches(), word("latch")
    latches.apply(latch, 0, None)
    latches.apply(word("reset"), 7, 1.0)
    assert latches.over("a") == latch
    latches.apply(latch, 8, 2.0)
    assert latches.over("a") == latch, "the reset was said before it came"
    latches.apply(word("reset", 1), 9, 2.0)
    assert latches.over("a") is None


def test_a_reset_of_all_jobs_lifts_what_came_before_it() -> None:
    latches = Latches()
    latches.apply(word("latch"), 900, 1.0)
    latches.apply(word("reset", job=EVERY_JOB), 3, 2.0)
    assert latches.over("a") is None
    latches.apply(word("latch", 2), 901, 3.0)
    assert latches.over("a") is not None
