"""Lines of verdicts, ranks that are slow again and again, clocks over several looks: what comparisons share."""

from __future__ import annotations

import numpy as np
import pandas as pd

from trainwarden.formats.building import metric_table
from trainwarden.formats.dumps.kernel_sums import KernelSums
from trainwarden.formats.dumps.kernels_compared import kernels_compared
from trainwarden.formats.fabric.pair_matrix import PairMatrix, judged
from trainwarden.formats.host.clock_metrics import OFFSET, clocks_off
from trainwarden.formats.verdicts import Verdict, slow_in_a_row, verdict_tables

EVEN = dict.fromkeys(range(4), 1.0)


def test_lines_stand_in_the_order_of_their_times_with_whom_they_are_of() -> None:
    (log,) = verdict_tables("x", [Verdict("gpu1", "p", "b", "n", 9.0, 3), Verdict("gpu0", "p", "a")], 5.0)
    assert (log.times_s.tolist(), log.nodes, log.ranks) == ([5.0, 9.0], (None, "n"), (None, 3))
    assert [line.split()[2] for line in log.lines] == ["gpu0", "gpu1"]
    assert verdict_tables("x", [], 5.0) == []


def test_ranks_that_take_turns_are_slow_by_chance() -> None:
    rows = [(step, {**EVEN, step % 2: 1.5}) for step in range(9)]
    assert slow_in_a_row(rows, 2) is None
    assert slow_in_a_row([*rows, (9, {**EVEN, 0: 1.7})], 2) == (8, 0, 1.6)


def test_kernels_of_files_that_name_no_rank_are_not_compared() -> None:
    sums = [(rank, KernelSums(rank, {("k", 1): 1.0}, 1.0, False)) for rank in (None, 1, 2, 3, 4)]
    assert kernels_compared(sums, 0.0) == ([], "nothing says whose kernels these are: name the files rank0, rank1, ...")
    assert kernels_compared(sums[1:], 0.0)[1] == ""


def test_a_clock_is_off_where_all_its_newest_looks_find_it_so() -> None:
    def looks(*offsets_s: float) -> list[str]:
        rows = {
            "time_s": np.arange(float(len(offsets_s))),
            "node": "a",
            "device": None,
            "rank": None,
            OFFSET: offsets_s,
        }
        return [line for log in clocks_off(metric_table(pd.DataFrame(rows))) for line in log.lines if "failed" in line]

    assert looks(0.0, 0.0, 1.8) == []
    assert len(looks(0.0, 1.8, -1.9, 1.8)) == 1


def test_pairs_that_hold_every_member_once_are_how_the_fabric_is_built() -> None:
    values = np.full((4, 4), 46.0)
    values[0, 1] = values[1, 0] = values[2, 3] = values[3, 2] = 14.0
    assert [one.failed for one in judged(PairMatrix(tuple("abcd"), values, ""), True)[0]] == [None] * 4
