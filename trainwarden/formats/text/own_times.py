"""The rank that computes longer than all others by the step lines that every rank writes: ``compute: 4.1s``."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from typing import Final

import numpy as np

from trainwarden.formats.text.trainers import step_line
from trainwarden.formats.verdicts import LEAST_RANKS, Verdict, line_of, slow_rank
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
    row, slow, begun = 0, -1, 0
    for step in sorted(own_s):
        found = slow_rank(own_s[step]) if len(own_s[step]) >= LEAST_RANKS else None
        row = 0 if found is None else row + 1 if found[0] == slow else 1
        slow = -1 if found is None else found[0]
        begun = step if row == 1 else begun
        if found is not None and row == LEAST_STEPS:
            ratio = f"{found[1]:.2f} times that of each of {len(own_s[step]) - 1} others, {LEAST_STEPS} steps in a row"
            line = line_of(Verdict(f"rank{slow}", "compute", f"{own_s[step][slow]:.3f} s of its own, {ratio}"))
            return [LogTable("own times", np.array([ends_s[begun]]), (nodes.get(slow),), (slow,), [line])]
    return []


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
