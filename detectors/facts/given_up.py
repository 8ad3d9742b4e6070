"""Processes that PyTorch's watchdog ends as they wait for others: victims of a hang, whatever signal they die by."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from trainwarden.detectors.collectives.watchdog_lines import read_watchdog_line
from trainwarden.detectors.facts.failure import Failure
from trainwarden.detectors.job.window import LogLine

# It sleeps four times TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC (15 s) for dumps; a monitor gives it eight minutes.
ENDED_S: Final = 600.0
LATE_S: Final = 1.0  # a line that has no time of its own has that of its reading
MAX_RANKS: Final = 65_536


class GivenUp:
    """Ranks that have given up a collective call, and whether their end follows from that.

    Examples
    --------
    >>> ranks = GivenUp()
    >>> line = "[rank3]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=8, OpType=ALLREDUCE, ..."
    >>> ranks.observe([LogLine("n", "log", 3, line, 10.0)])
    >>> ranks.ended(3, 70.0), ranks.ended(2, 70.0)
    (True, False)
    """

    def __init__(self) -> None:
        self._at_s: dict[int, float] = {}  # by rank, when it gave up its newest call

    def observe(self, lines: Iterable[LogLine]) -> None:
        """Observe new log lines."""
        for line in lines:
            said = read_watchdog_line(line.line)
            if said is None or not said.op:
                continue
            rank = line.rank if said.rank is None else said.rank
            if rank is not None and (rank in self._at_s or len(self._at_s) < MAX_RANKS):
                self._at_s[rank] = line.time_s

    def explain(self, failures: Iterable[Failure]) -> None:
        """Mark the aborts among `failures` that are the watchdog's doing, as far as its lines are read."""
        for one in failures:
            if one.aborted and not one.waited and self.ended(one.rank, one.time_s):
                one.role, one.kind, one.waited = "cascade", "hang", True
                one.reason += ", as it had given up a collective call"

    def ended(self, rank: int | None, time_s: float) -> bool:
        """Whether an abort of `rank` is the watchdog's doing, as far as its lines are read."""
        at_s = None if rank is None else self._at_s.get(rank)
        return at_s is not None and -LATE_S <= time_s - at_s <= ENDED_S

    def forget(self) -> None:
        """Other processes run now."""
        self._at_s.clear()
