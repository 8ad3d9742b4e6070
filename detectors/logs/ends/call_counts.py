"""Which ranks have enqueued less than the call that the others gave up, by the counts in their watchdogs' lines."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Final

MOST_RANKS: Final = 65_536
WITNESSES: Final = 2  # ranks that gave up the same call; one alone blames no rank
# torch's ProcessGroupNCCL.cpp: its status names the group, the call that it gave up and the newest it has enqueued.
_GROUP: Final = re.compile(r"\[PG (?:ID [0-9]{1,6} PG GUID )?([^\s\]]{1,80}) (?:\([^)]{0,80}\) )?Rank [0-9]{1,6}\]")
_AT: Final = re.compile(r"(?:Timeout at NCCL work|detected by watchdog at work): ([0-9]{1,12})\b")
_ENQUEUED: Final = re.compile(r"[Ll]ast enqueued NCCL work: ([0-9]{1,12})\b")
# Numbers of these differ between the ranks of a group that does right.
_PAIRED: Final = re.compile(r"WorkNCCL\(SeqNum=[0-9]{1,12}, OpType=(?:SEND|RECV|RECVANYSOURCE|COALESCED|UNKNOWN)\b")


@dataclass(frozen=True, slots=True)
class Behind:
    """Ranks that others wait for in one group."""

    ranks: tuple[int, ...]
    words: str
    since_s: float


@dataclass(slots=True)
class CallCounts:
    """What the watchdogs of one attempt's ranks have counted, by group.

    Examples
    --------
    >>> counts, said = CallCounts(), "[PG ID 0 PG GUID 0(default_pg) Rank {}] {} last enqueued NCCL work: {}"
    >>> for rank in (0, 1):
    ...     counts.read(rank, said.format(rank, "Timeout at NCCL work: 41,", 41), 5.0)
    >>> counts.read(2, said.format(2, "Received a dump signal.", 40), 6.0)
    >>> counts.behind().ranks, counts.behind().since_s
    ((2,), 5.0)
    """

    gave_up: defaultdict[str, dict[int, int]] = field(default_factory=lambda: defaultdict(dict))
    enqueued: defaultdict[str, dict[int, int]] = field(default_factory=lambda: defaultdict(dict))
    since_s: float | None = None
    paired: bool = False

    def read(self, rank: int | None, line: str, time_s: float) -> None:
        """Apply a line of `rank`."""
        if "NCCL" not in line or rank is None:
            return
        self.paired = self.paired or _PAIRED.search(line) is not None
        group, newest = _GROUP.search(line), _ENQUEUED.search(line)
        if group is None or newest is None or len(self.enqueued[group[1]]) >= MOST_RANKS:
            return
        known = self.enqueued[group[1]]
        known[rank] = max(int(newest[1]), known.get(rank, 0))
        if (at := _AT.search(line)) is not None:
            self.gave_up[group[1]].setdefault(rank, int(at[1]))
            self.since_s = time_s if self.since_s is None else min(self.since_s, time_s)

    def behind(self) -> Behind | None:
        """The ranks that a group's call waits for; None where too few agree, or none is behind."""
        for group, spoken in self.gave_up.items():
            (call, number), *_ = Counter(spoken.values()).most_common(1)
            late = {rank: n for rank, n in self.enqueued[group].items() if n < call and rank not in spoken}
            if self.paired or number < WITNESSES or not late or len(late) >= number:
                continue
            ranks = tuple(sorted(late))
            who = ", ".join(f"rank {rank} has enqueued {late[rank]} calls there and no more" for rank in ranks[:8])
            words = f"{number} ranks gave up call {call} of group {group}; {who}, by PyTorch's watchdogs"
            return Behind(ranks, words, self.since_s or 0.0)
        return None
