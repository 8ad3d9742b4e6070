"""The rank that computes longer than all others by Megatron's timers of every rank (``--timing-log-option all``)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import numpy as np

from trainwarden.formats.verdicts import Verdict, slow_in_a_row, verdict_tables
from trainwarden.recorded.job import LogTable

# megatron/core/timers.py: a title, then for each timer its name and a line of each rank.
TITLE: Final = "times across ranks (ms):"
_TIMER: Final = re.compile(r"(?:^|\s)\s{0,8}([a-z][a-z0-9-]{2,60}):\s{0,4}$")
_RANK: Final = re.compile(r"(?:^|\s)rank {1,8}([0-9]{1,6}): ([0-9]{1,9}\.[0-9]{1,6})\s{0,4}$")
_OWN: Final = ("forward-compute", "backward-compute")  # timers of a rank's own work
LEAST_BLOCKS: Final = 3  # in a row
MOST_LINES: Final = 2_000_000  # of a log that is looked through


class _Block(NamedTuple):
    """What one print says: own milliseconds by rank, and where it begins."""

    place: int
    own_ms: dict[int, float]


def rank_times(logs: Iterable[LogTable]) -> list[LogTable]:
    """A line about the rank that was slow in several prints in a row, for each log in which there is one."""
    found: list[LogTable] = []
    for log in logs:
        blocks = ((block, block.own_ms) for block in _blocks(log.lines)) if len(log.lines) <= MOST_LINES else ()
        slow = slow_in_a_row(blocks, LEAST_BLOCKS)
        if slow is None:
            continue
        block, rank, ratio = slow
        words = f"{block.own_ms[rank]:.0f} ms of forward and backward, {ratio:.2f} times those of the others"
        stamped = log.times_s[: block.place + 1]
        stamped = stamped[np.isfinite(stamped)]  # the print itself has no stamp: its step's line stands before it
        time_s = float(stamped[-1]) if stamped.size else np.nan
        found += verdict_tables("rank times", [Verdict(f"rank{rank}", "compute", words, rank=rank)], time_s)
    return found


def _blocks(lines: Iterable[str]) -> Iterator[_Block]:
    """Prints of timers; one ends with the first line that is neither a timer nor a rank."""
    block: _Block | None = None
    own = False
    for place, line in enumerate(lines):
        if TITLE in line:
            if block is not None:
                yield block
            block, own = _Block(place, {}), False
        elif block is None:
            continue
        elif (rank := _RANK.search(line)) is not None:
            if own:
                number = int(rank[1])
                block.own_ms[number] = block.own_ms.get(number, 0.0) + float(rank[2])
        elif (timer := _TIMER.search(line)) is not None:
            own = timer[1] in _OWN
        else:
            yield block
            block = None
    if block is not None:
        yield block
