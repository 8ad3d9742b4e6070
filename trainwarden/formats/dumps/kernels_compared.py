"""The rank whose kernels take longer than those of all others, by sums over a whole run or profile.

The slow rank of a synchronous group computes longest and waits least (Wu et al., Falcon, 2024, section 4.3).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from trainwarden.formats.dumps.kernel_sums import KernelSums
from trainwarden.formats.verdicts import LEAST_RANKS, MOST_SPREAD, Verdict, slow_rank, verdict_tables
from trainwarden.recorded.job import Floats, LogTable

LEAST_COMMON: Final = 0.5  # of the time of kernels, that all ranks ran equally often
LATE: Final = 0.6  # of the usual wait: a rank that computes like others and waits less comes late for another reason


def kernels_compared(sums: Sequence[tuple[int | None, KernelSums]], time_s: float) -> tuple[list[LogTable], str]:
    """Lines about ranks, and why there are none."""
    if not sums:
        return [], ""
    if len(sums) < LEAST_RANKS:
        return [], f"kernels of {LEAST_RANKS} ranks or more tell who is slow: give those of all, a file each"
    ranks = [(rank, one) for rank, one in sums if rank is not None]
    if len(ranks) < len(sums):
        return [], "nothing says whose kernels these are: name the files rank0, rank1, ..."
    if len({rank for rank, _ in ranks}) < len(ranks):
        return [], "files are of one and the same rank: name them by the ranks of the whole job, rank0, rank1, ..."
    if any(one.sends for _, one in ranks):
        return [], "ranks send to each other: stages or experts have unequal work, and their kernels are not compared"
    own, waits = _common(ranks), np.array([one.wait_s for _, one in ranks])
    if own is None:
        return [], "ranks ran different kernels, or equal ones not equally often: their times are not compared"
    if not (waits > 0.0).all():
        return [], "no collective is among the kernels of each rank: whether they wait for each other is not known"
    slow = slow_rank(dict(enumerate(own.tolist())))
    usual = float(np.median(own))
    if slow is not None and waits[slow[0]] < np.delete(waits, slow[0]).min():
        rank, ratio = ranks[slow[0]][0], slow[1]
        words = (
            f"{own[slow[0]]:.2f} s in kernels that all ranks ran, {ratio:.2f} times those of {len(ranks) - 1} others"
        )
        words += f", and {waits[slow[0]]:.2f} s in collectives, the least of all"
        return verdict_tables("kernels", [Verdict(f"rank{rank}", "compute", words, rank=rank)], time_s), ""
    if (np.abs(own - usual) > MOST_SPREAD * usual).any():
        return [], "kernels of several ranks differ, or of one that waits as long as others: no rank stands apart"
    if waits.min() < LATE * float(np.median(waits)):
        return [], "kernels take equally long, but not the waits of ranks for each other: give traces or the logs"
    return verdict_tables("kernels", [Verdict(f"rank{rank}", "", None, rank=rank) for rank, _ in ranks], time_s), ""


def _common(ranks: Sequence[tuple[int, KernelSums]]) -> Floats | None:
    """Seconds of each rank in the kernels that all ran equally often; None where these are few."""
    kernels = set(ranks[0][1].own_s).intersection(*(one.own_s for _, one in ranks))
    own = np.array([sum(one.own_s[kernel] for kernel in kernels) for _, one in ranks], np.float64)
    whole = np.array([sum(one.own_s.values()) for _, one in ranks], np.float64)
    return own if (whole > 0.0).all() and (own >= LEAST_COMMON * whole).all() else None
