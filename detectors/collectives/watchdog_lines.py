"""Lines of PyTorch's NCCL watchdog: which rank gave up which call of which process group (torch 2.1 to 2.11)."""

from __future__ import annotations

import re
from typing import Final

import msgspec

_MOST: Final = (1 << 63) - 1  # what was never set is printed as whatever lay there
_RANK: Final = re.compile(r"\[rank([0-9]{1,6})\]:")  # of the job; since 2.2
# [PG 1 Rank 4] (2.2), [PG 0 (default_pg) Rank 1] (2.4), [PG ID 0 PG GUID 0(default_pg) Rank 1] (2.5 and newer)
_GROUP: Final = re.compile(
    r"\[PG (ID [0-9]{1,9} PG GUID )?([^\]\[() ]{1,64}) ?(?:\(([^()\]\[]{0,80})\))? ?Rank ([0-9]{1,6})\]"
)
_PLACE: Final = re.compile(r"\[Rank ([0-9]{1,6})\]")
_GAVE_UP: Final = re.compile(
    r"Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=([0-9]{1,19}), OpType=([A-Za-z_]{1,40})"
)
_AT_CALL: Final = re.compile(r"(?:watchdog at work(?: sequence id)?|Timeout at NCCL work): ([0-9]{1,19})")
_ENQUEUED: Final = re.compile(r"[Ll]ast enqueued (?:NCCL )?work: ([0-9]{1,19}), last completed")


class WatchdogLine(msgspec.Struct, frozen=True):
    """What one line says.

    Attributes
    ----------
    rank : int or None
        Who speaks, where the line itself tells.
    place : int or None
        The speaker's rank within the process group.
    group : str
        The process group; empty where the line names none, or names it by a number that other ranks use for others.
    world : bool
        It is the group of all ranks.
    seq : int or None
        The call that was given up.
    op : str
        What kind of call; empty where the line only repeats which one it was.
    enqueued : int or None
        The last call of the group that the speaker has enqueued.
    """

    rank: int | None = None
    place: int | None = None
    group: str = ""
    world: bool = False
    seq: int | None = None
    op: str = ""
    enqueued: int | None = None


def read_watchdog_line(line: str) -> WatchdogLine | None:
    """What `line` says; None if it is not the watchdog's.

    Examples
    --------
    >>> said = read_watchdog_line("[rank4]:[E1206 18:44:12.75 ProcessGroupNCCL.cpp:607] [Rank 2] Watchdog caught "
    ...     "collective operation timeout: WorkNCCL(SeqNum=7753, OpType=ALLREDUCE, NumelIn=8, Timeout(ms)=600000) ran")
    >>> said.rank, said.place, said.seq, said.op, said.group
    (4, 2, 7753, 'ALLREDUCE', '')
    >>> said = read_watchdog_line("[rank4]:[E ProcessGroup.cpp:8] [PG ID 1 PG GUID 9(dp) Rank 2]  failure detected "
    ...     "by watchdog at work sequence id: 7753 PG status: last enqueued work: 7755, last completed work: 2")
    >>> said.group, said.seq, said.op, said.enqueued
    ('9 dp', 7753, '', 7755)
    >>> read_watchdog_line("step 7 loss 2.1") is None
    True
    """
    if "WorkNCCL(" not in line and " work" not in line:
        return None
    gave_up, enqueued = _GAVE_UP.search(line), _ENQUEUED.search(line)
    if gave_up is None and enqueued is None:
        return None
    at_call = gave_up or _AT_CALL.search(line)
    rank, group = _RANK.search(line), _GROUP.search(line)
    place = _PLACE.search(line) if group is None else None
    name, world = _name(group) if group else ("", False)
    return WatchdogLine(
        rank=int(rank[1]) if rank else None,
        place=int(group[4]) if group else int(place[1]) if place else None,
        group=name,
        world=world,
        seq=_number(at_call[1]) if at_call else None,
        op=gave_up[2] if gave_up else "",
        enqueued=_number(enqueued[1]) if enqueued else None,
    )


def _name(group: re.Match[str]) -> tuple[str, bool]:
    """A name that means the same group on every rank, and whether all ranks are in it."""
    unique, number, words, _ = group.groups()
    world = words == "default_pg" or (bool(unique) and number == "0" and not words)
    if world:
        return "default_pg", True
    return (f"{number} {words or ''}".strip() if unique else "", False)


def _number(text: str) -> int | None:
    value = int(text)
    return value if value <= _MOST else None
