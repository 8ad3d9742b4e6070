"""Megatron's timers of every rank: the one that is slow in several prints in a row, and what is none."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from tests.unit.detectors.last_words.judged import judged
from trainwarden.formats.text.rank_times import rank_times
from trainwarden.recorded.job import LogTable


def prints(*blocks: Mapping[int, float], timer: str = "forward-compute", prefix: str = "") -> list[str]:
    lines = []
    for step, block in enumerate(blocks):
        lines += [f" iteration {step}/ 900 | elapsed time per iteration (ms): 900.0 |", "times across ranks (ms):"]
        lines += [f"  {timer}:", *(f"     rank {rank:>2}: {ms:.2f}" for rank, ms in block.items())]
        lines += ["  optimizer:", *(f"     rank {rank:>2}: {9000.0 if rank == 1 else 60.0:.2f}" for rank in block)]
    return [prefix + line for line in lines]


def found(lines: list[str]) -> list[tuple[int | None, float]]:
    nobody = (None,) * len(lines)
    found = rank_times([LogTable("a.log", np.arange(len(lines), dtype=np.float64), nobody, nobody, lines)])
    assert all(log.lines[0].startswith(f"health check: rank{log.ranks[0]} compute failed: ") for log in found)
    return [(log.ranks[0], float(log.times_s[0])) for log in found]


EVEN = {rank: 500.0 + rank for rank in range(8)}
SLOW = {**EVEN, 3: 800.0}


@pytest.mark.parametrize("prefix", ["", "[default7]:", "7: "])
def test_the_rank_that_became_slow_is_told_from_where_it_began(prefix: str):
    lines = prints(EVEN, EVEN, SLOW, SLOW, SLOW, prefix=prefix)
    begins = [place for place, line in enumerate(lines) if "times across ranks" in line]
    assert found(lines) == [(3, float(begins[2]))]


@pytest.mark.parametrize(
    "blocks",
    [
        (EVEN,) * 6,
        (SLOW, SLOW, EVEN, SLOW, SLOW),  # never three in a row
        ({**EVEN, 3: 800.0, 4: 800.0},) * 6,  # two ranks that wait for each other within a layer
        ({rank: 500.0 if rank < 4 else 700.0 for rank in range(8)},) * 6,  # stages
        ({**EVEN, 3: 560.0},) * 6,
        ({0: 500.0, 1: 800.0},) * 6,
    ],
)
def test_nobody_is_told_of_what_is_even_or_of_groups(blocks: tuple[dict[int, float], ...]):
    assert found(prints(*blocks)) == []


def test_timers_that_hold_waiting_are_not_compared():
    assert found(prints(*[SLOW] * 6, timer="backward-recv")) == []
    assert found(["rank  3: 800.00", "times across ranks (ms):", "step 4 loss 2.0"] * 9) == []


def test_the_rank_is_named_in_an_incident(tmp_path: Path):
    (incident,) = judged(tmp_path, {"train.log": prints(EVEN, *[SLOW] * 6)})
    assert (incident.kind, [one.rank for one in incident.suspects]) == ("slow_compute", [3])
