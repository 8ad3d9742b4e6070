"""Who is waited for, by what the NCCL watchdog of each rank has written as it gave up: told late, but by every rank.

A rank that waits says which call of which group it gave up. Who lives, is heard and gave up nothing, or an earlier call
of the same group, or another kind of call under the same number, is the one that those wait for: never by one witness,
and only where fewer are suspected than have witnessed. Where all gave up the same call no host is to blame.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np

from trainwarden.detectors.collectives.findings import MAX_RANKS_TOLD, CollectiveFinding, listed
from trainwarden.detectors.collectives.watchdog_lines import WatchdogLine, read_watchdog_line
from trainwarden.detectors.job.window import LogLine, Window, job_duration_s
from trainwarden.parallelism.layout import AXES, Layout
from trainwarden.records import EventRecord

SPEAKERS: Final = 2  # one witness accuses nobody
PATIENCE_S: Final = 5.0  # after the newest line: the clocks of others run since they enqueued the call themselves
PATIENCE_STEPS: Final = 2.0
MOST_PATIENCE_S: Final = 60.0
LIVED_S: Final = 1.0  # who ended sooner after the newest witness may have been ended before its own time ran out
SILENT_NODE_S: Final = 3.0  # of a node that is silent for longer its ranks' state is not known
MAX_CALLS: Final = 131_072  # remembered: 65,536 ranks in two groups
SCORE: Final = 0.9  # what a rank has not said may be lost
# Numbers of these differ between the ranks of a group that does right, and what they wait for is a peer, not a group.
_PAIRED: Final = frozenset({"SEND", "RECV", "RECVANYSOURCE", "COALESCED", "UNKNOWN"})
LAST_WORDS: Final = "last_words"  # kind of the event that says how a recorded job ended
_STARTS: Final = frozenset({"restart", "job_start"})
_ENDS: Final = frozenset({"process_exit", "fatal_signal"})


class WatchdogTimeout(msgspec.Struct):
    """The first call of one group that one rank gave up."""

    seq: int
    op: str
    place: int | None


@dataclass(frozen=True, slots=True)
class Known:
    """What else is known as the lines are judged.

    Attributes
    ----------
    world : frozenset of int
        All ranks of the job.
    layout : Layout or None
        Their groups.
    quiet : frozenset of int
        Ranks that live, are heard, and would have said so if they had given up a call.
    """

    world: frozenset[int]
    layout: Layout | None
    quiet: frozenset[int]


class WatchdogLines:
    """What the watchdogs of one job's ranks have written, until the job goes on or starts again.

    Attributes
    ----------
    since_s, last_s : float or None
        Times of the first and of the newest line that gave up a call, by their nodes' clocks.
    """

    def __init__(self) -> None:
        self._gave_up: dict[tuple[int, str], WatchdogTimeout] = {}
        self._enqueued: dict[tuple[int, str], int] = {}
        self._said_s: dict[int, float] = {}  # newest line of any kind, by rank
        self._nodes: set[str] = set()  # whose ranks are heard
        self._ended_s: dict[int, float] = {}
        self._explained = False  # all logs of a recording together say what the ranks waited for
        self._news_s: float | None = None  # by the service's clock; None once they are judged
        self.since_s: float | None = None
        self.last_s: float | None = None

    def follow(self, window: Window) -> list[CollectiveFinding]:
        """Apply new lines; what all of them say once no more are to be expected, else nothing."""
        for event in window.events:
            self._note(event)
        for line in window.logs:
            self._hear(line, window.now_s)
        if self.last_s is not None and len(window.ends_s) and float(window.ends_s[-1]) > self.last_s + LIVED_S:
            self._forget()
        if self._news_s is None or self._explained:
            return []
        waited_s = window.now_s - self._news_s
        if not (window.last or window.finished or waited_s >= _patience_s(window)):
            return []
        self._news_s = None
        return told(self._gave_up, self._enqueued, self._known(window))

    def _note(self, event: EventRecord) -> None:
        if event.kind == LAST_WORDS:
            self._explained = bool(event.fields.get("explained")) or "kind" in event.fields
        elif event.kind in _STARTS:
            self._forget()
            self._ended_s.clear()
        elif event.kind in _ENDS and event.rank is not None:
            self._ended_s.setdefault(event.rank, event.time_s)

    def _forget(self) -> None:
        self._gave_up, self._enqueued = {}, {}
        self._news_s = self.since_s = self.last_s = None

    def _hear(self, line: LogLine, now_s: float) -> None:
        if line.rank is not None:
            self._said_s[line.rank] = max(self._said_s.get(line.rank, line.time_s), line.time_s)
            self._nodes.add(line.node)
        said = read_watchdog_line(line.line)
        rank = line.rank if said is None or said.rank is None else said.rank
        if said is None or rank is None or len(self._gave_up) >= MAX_CALLS:
            return
        self._said_s[rank] = max(self._said_s.get(rank, line.time_s), line.time_s)
        self._nodes.add(line.node)
        self._news_s = now_s
        if said.op and said.op not in _PAIRED and said.seq is not None:
            self.since_s = line.time_s if self.since_s is None else min(self.since_s, line.time_s)
            self.last_s = line.time_s if self.last_s is None else max(self.last_s, line.time_s)
            self._keep(rank, said.group, WatchdogTimeout(said.seq, said.op, said.place))
        self._place(rank, said)

    def _keep(self, rank: int, group: str, one: WatchdogTimeout) -> None:
        """The smallest number counts: what was enqueued behind it is given up with it."""
        known = self._gave_up.get((rank, group))
        if known is None or one.seq < known.seq:
            self._gave_up[rank, group] = one

    def _place(self, rank: int, said: WatchdogLine) -> None:
        """Of a line that names a group: how far the rank has come in it, and that the call given up was of it."""
        if not said.group:
            return
        if said.enqueued is not None:
            self._enqueued[rank, said.group] = max(said.enqueued, self._enqueued.get((rank, said.group), 0))
        unnamed = self._gave_up.get((rank, ""))
        if unnamed is not None and said.seq == unnamed.seq:
            del self._gave_up[rank, ""]
            self._keep(rank, said.group, unnamed)

    def _known(self, window: Window) -> Known:
        size = len(window.ranks)
        world = frozenset(window.ranks.tolist()).union(self._said_s)
        beating = window.live & np.isfinite(window.beats.clock_s[:size])
        lost = {node for node, silent_s in window.node_silent_s.items() if silent_s > SILENT_NODE_S}
        lived_s = (self.last_s or 0.0) + LIVED_S
        quiet = {rank for rank, said_s in self._said_s.items() if said_s >= lived_s}
        node_of = dict(zip(window.ranks.tolist(), window.nodes, strict=True))
        quiet |= {rank for rank in window.ranks[beating].tolist() if node_of[rank] not in lost}
        quiet -= {rank for rank, ended_s in self._ended_s.items() if ended_s < lived_s}
        quiet |= {rank for rank, ended_s in self._ended_s.items() if ended_s >= lived_s}
        heard = {rank for rank in quiet if rank in self._said_s or node_of.get(rank) in self._nodes}
        return Known(world, window.layout, frozenset(heard))


def told(
    gave_up: Mapping[tuple[int, str], WatchdogTimeout], enqueued: Mapping[tuple[int, str], int], known: Known
) -> list[CollectiveFinding]:
    """What calls that were given up say: whom their groups wait for; if nobody, one finding without suspects."""
    groups: dict[str, dict[int, WatchdogTimeout]] = {}
    for (rank, group), one in gave_up.items():
        groups.setdefault(group, {})[rank] = one
    accused, nobody = list[CollectiveFinding](), list[CollectiveFinding]()
    for group, spoken in sorted(groups.items(), key=lambda one: -len(one[1])):
        elsewhere = {rank for rank, other in gave_up if other != group and rank not in spoken}
        reached = {rank: seq for (rank, other), seq in enqueued.items() if other == group and rank not in elsewhere}
        finding = _of_group(group, spoken, elsewhere, reached, known)
        if finding is not None:
            (accused if finding.ranks else nobody).append(finding)
    return accused or nobody[:1]


def _of_group(
    group: str,
    spoken: Mapping[int, WatchdogTimeout],
    elsewhere: Collection[int],
    reached: Mapping[int, int],
    known: Known,
) -> CollectiveFinding | None:
    """What is said of one group; None where too few agree, or not all of its members are known."""
    calls = Counter((one.seq, one.op) for one in spoken.values())
    (seq, op), number = min(calls.items(), key=lambda one: (-one[1], one[0]))
    if number < SPEAKERS or 2 * number <= len(spoken):
        return None
    witnesses = sorted(rank for rank, one in spoken.items() if (one.seq, one.op) == (seq, op))
    why = {} if not group else _apart(seq, op, spoken, reached)
    members = _members(group, spoken, known)
    if members is not None:
        rest = members - spoken.keys() - set(elsewhere) - why.keys() - {rank for rank, n in reached.items() if n >= seq}
        if rest <= known.quiet:
            why |= dict.fromkeys(sorted(rest), "it gave up no call")
        elif not why:
            return None
    if len(why) >= number or (not why and (members is None or len(witnesses) < len(spoken))):
        return None
    return _finding(group, (seq, op), witnesses, why)


def _apart(seq: int, op: str, spoken: Mapping[int, WatchdogTimeout], reached: Mapping[int, int]) -> dict[int, str]:
    """Who has not come as far in a named group, or did something else there, by its own words."""
    why = {}
    for rank, one in sorted(spoken.items()):
        if one.seq < seq:
            why[rank] = f"it gave up {one.op} {one.seq} already"
        elif one.seq == seq and one.op != op:
            why[rank] = f"it gave up {one.op} under the same number"
    for rank, newest in sorted(reached.items()):
        if newest < seq and rank not in spoken:
            why[rank] = f"it has enqueued {newest} calls there and no more"
    return why


def _members(group: str, spoken: Mapping[int, WatchdogTimeout], known: Known) -> frozenset[int] | None:
    """The ranks of the group that those who spoke are in; None where that cannot be told for sure."""
    world = known.world
    if known.layout is not None and known.layout.world_size != len(world):
        return None
    if group == "default_pg":
        return world
    fitting = {ranks for ranks in _groups(known) if _fits(ranks, spoken)}
    if not group:  # a group of all, if most of them are in it
        return world if tuple(sorted(world)) in fitting and 2 * len(spoken) > len(world) else None
    return frozenset(fitting.pop()) if len(fitting) == 1 else None


def _groups(known: Known) -> set[tuple[int, ...]]:
    groups = {tuple(sorted(known.world))}
    layout = known.layout
    if layout is not None and layout.whole:
        groups.update(layout.replicas(), *(layout.groups(axis) for axis in AXES))
    return groups


def _fits(ranks: tuple[int, ...], spoken: Mapping[int, WatchdogTimeout]) -> bool:
    """Whether all who spoke are among `ranks`, each in the place that it named."""
    place_of = {rank: place for place, rank in enumerate(ranks)}
    return all(rank in place_of and one.place in (None, place_of[rank]) for rank, one in spoken.items())


def _finding(group: str, call: tuple[int, str], witnesses: list[int], why: Mapping[int, str]) -> CollectiveFinding:
    seq, op = call
    where = f"{op} {seq} of group {group}" if group else f"{op} {seq}"
    waited = f"{listed(witnesses)} gave up {where}, by the log of PyTorch's watchdog"
    reason = f"{waited}, and no rank did otherwise: no host held them up, a link or a device may have"
    if why:
        first = next(iter(why))
        alike = [rank for rank, words in why.items() if words == why[first]]
        words = why[first] if len(alike) == 1 else why[first].replace("it ", "each ", 1)
        reason = f"{waited}; of {listed(alike)}: {words}"
    ranks = tuple(why)[:MAX_RANKS_TOLD]
    return CollectiveFinding(
        kind="collective_mismatch" if any("same number" in words for words in why.values()) else "hang",
        ranks=ranks, scores=(SCORE,) * len(ranks), group=group, op=op, seq=seq, reason=reason,
        waiting=tuple(witnesses[:MAX_RANKS_TOLD]), evidence=tuple(why[rank] for rank in ranks),
    )  # fmt: skip


def _patience_s(window: Window) -> float:
    durations = job_duration_s(window, slice(-16, None))
    usual = durations[np.isfinite(durations)]
    steps_s = PATIENCE_STEPS * float(np.median(usual)) if usual.size else 0.0
    return min(max(PATIENCE_S, steps_s), MOST_PATIENCE_S)
