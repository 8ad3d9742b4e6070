"""Where the code of ranks stands, beside a hang: what the agents' `stacks` collector has read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from trainwarden.records import EventRecord, IncidentRecord

MAX_RANKS: Final = 65_536
MAX_WORDS: Final = 300
KEPT_S: Final = 600.0  # of a standstill: agents say it once in each
_STARTS: Final = frozenset({"restart", "job_start"})


class Stack(msgspec.Struct):
    """Where a rank's main thread stood, and when that was heard."""

    where: str
    heard_s: float


class StackBoard:
    """The newest stack of each rank; forgotten when its job starts anew or has gone on."""

    def __init__(self) -> None:
        self.stacks: dict[int, Stack] = {}

    def apply(self, events: Iterable[EventRecord], now_s: float, still_s: float) -> None:
        """Apply the events of a window; `still_s`: how long no rank has moved."""
        for event in events:
            if event.kind in _STARTS:
                self.stacks.clear()
            where = event.fields.get("where") if event.kind == "stack" else None
            known = event.rank in self.stacks or len(self.stacks) < MAX_RANKS
            if isinstance(where, str) and where and event.rank is not None and known:
                words = "".join(sign if sign.isprintable() else "?" for sign in where[:MAX_WORDS])
                self.stacks[event.rank] = Stack(words, now_s)
        if self.stacks:
            self.stacks = {
                rank: one for rank, one in self.stacks.items() if now_s - one.heard_s <= min(KEPT_S, still_s + 1.0)
            }

    def where(self) -> dict[int, str]:
        """By rank."""
        return {rank: one.where for rank, one in self.stacks.items()}


def with_stacks(record: IncidentRecord, where: Mapping[int, str]) -> IncidentRecord:
    """A hang with where its suspects stand, each said once; where nobody is suspected, with where most ranks do.

    Examples
    --------
    >>> from trainwarden.records import Suspect
    >>> suspect = Suspect(rank=3, node="n1", score=1.0, reason="has not come")
    >>> record = IncidentRecord(
    ...     id="i", job="j", kind="hang", severity="sev2", state="opened", revision=1, opened_at_s=0.0,
    ...     updated_at_s=0.0, reason="rank 3 has not come", suspects=(suspect,),
    ... )
    >>> with_stacks(record, {3: "next_batch (data.py:41)"}).reason
    'rank 3 has not come; rank 3 stands in next_batch (data.py:41)'
    """
    if not where:
        return record
    if not any(suspect.rank is not None for suspect in record.suspects):
        place, many = Counter(where.values()).most_common(1)[0]
        words = f"{many} of {len(where)} ranks looked at stand in {place}"
        said = " ranks looked at stand in " in record.reason
        return record if said else msgspec.structs.replace(record, reason=f"{record.reason}; {words}")
    reason, suspects = record.reason, []
    for suspect in record.suspects:
        place = "" if suspect.rank is None else where.get(suspect.rank, "")
        told = f"{suspect.reason}; it stands in {place}".lstrip("; ")
        new = place and " stands in " not in suspect.reason
        suspects.append(msgspec.structs.replace(suspect, reason=told) if new else suspect)
        if place and " stands in " not in reason:
            reason = f"{reason}; rank {suspect.rank} stands in {place}"
    return msgspec.structs.replace(record, reason=reason, suspects=tuple(suspects))
