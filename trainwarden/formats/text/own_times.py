"""The rank that computes longer than all others by the step lines that every rank writes: ``compute: 4.1s``."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from typing import Final

import numpy as np

from trainwarden.formats.text.trainers import step_line
from trainwarden.formats.verdicts import Verdict, slow_in_a_row, verdict_tables
from trainwarden.recorded.job import LogTable

LEAST_STEPS: Final = 5  # in a row
MOST_LINES: Final = 2_000_000  # of all logs, that are looked through
# A step's own work, apart from what it waits for others. Bounded: linear time.
_OWN: Final = re.compile(
    r"(?i)\b(?:compute|computation|fwd_bwd|forward_backward|fwd\+bwd)(?:[_ ]time)?(?:[_ ]?(?P<in>ms|s))?['\"]?"
    r" {0,4}[:=] {0,4}(?P<number>[0-9]{1,9}(?:\.[0-9]{1,9})?) ?(?P<unit>ms|s)?\b"
)


def own_times(logs: Iterable[LogTable]) -> list[LogTable]:
    """A line about the rank that was slow in several steps in a row, while all others were even; else none.

    Examples
    --------
    >>> def log(rank, own):
    ...     lines = [f"step: {step} loss: 2.0 compute: {own}s comm_wait: 0.1s" for step in range(6)]
    ...     return LogTable(f"rank{rank}.log", np.arange(6.0), (None,) * 6, (rank,) * 6, lines)
    >>> found, = own_times([log(0, 2.0), log(1, 2.0), log(2, 4.0), log(3, 2.0)])
    >>> found.ranks, own_times([log(0, 2.0), log(1, 2.0), log(2, 2.0), log(3, 2.0)])
    ((2,), [])
    """
    own_s, ends_s, nodes = _read(logs)
    slow = slow_in_a_row(((step, own_s[step]) for step in sorted(own_s)), LEAST_STEPS)
    if slow is None:
        return []
    step, rank, ratio = slow
    words = (
        f"{own_s[step][rank]:.3f} s of its own, {ratio:.2f} times that of each of {len(own_s[step]) - 1} others, "
        f"{LEAST_STEPS} steps in a row"
    )
    return verdict_tables(
        "own times", [Verdict(f"rank{rank}", "compute", words, nodes.get(rank), ends_s[step], rank)], np.nan
    )


def _read(
    logs: Iterable[LogTable],
) -> tuple[dict[int, dict[int, float]], dict[int, float], dict[int, str | None]]:
    """Own seconds by step and rank, when each step was first told of, and nodes by rank."""
    own_s: defaultdict[int, dict[int, float]] = defaultdict(dict)
    ends_s: dict[int, float] = {}
    nodes: dict[int, str | None] = {}
    left = MOST_LINES
    for log in logs:
        left -= len(log.lines)
        if left < 0 or not any(rank is not None for rank in log.ranks):
            continue
        for place, line in enumerate(log.lines):
            rank = log.ranks[place]
            match = _OWN.search(line) if rank is not None else None
            said = step_line(line) if match is not None else None
            if rank is None or match is None or said is None or said.step is None:
                continue
            ms = (match["unit"] or match["in"] or "s").lower() == "ms"
            own_s[said.step][rank] = float(match["number"]) / (1000.0 if ms else 1.0)
            ends_s.setdefault(said.step, float(log.times_s[place]))
            nodes.setdefault(rank, log.nodes[place])
    return own_s, ends_s, nodes
