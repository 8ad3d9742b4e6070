"""Who holds up the others, by how many calls each rank has enqueued, started and finished in its communicators.

A rank that has enqueued a call that another member has not waits for that one's host; one whose device has started it
waits for those whose devices have not. Who is waited for and waits for nobody is the culprit; all others are victims,
in whatever outer group they are waited for. A call that all have started and none finishes is the link's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from trainwarden.detectors.calls.counts import Counts
from trainwarden.detectors.collectives.findings import MAX_RANKS_TOLD, CollectiveFinding, listed
from trainwarden.detectors.job.common_mode import quiet_median
from trainwarden.detectors.job.window import Window, job_duration_s

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
STALE_S: Final = 3.0  # what a rank said longer ago is not known any more
STEPS: Final = 2.5  # usual steps without any progress before anybody is named
LEAST_S: Final = 1.0
SLEEPING_S: Final = 3.0  # least patience with a host that sleeps, and with one that computes: it may compile, evaluate
BUSY_S: Final = 30.0
BUSY_SHARE: Final = 0.1
EXPLAINS: Final = 0.8  # of a usual step must have passed to explain a hang that others see
LONGEST_TIMES: Final = 3.0  # such standstills may last so many times the longest that went over by itself
_PAUSES: Final = frozenset({"checkpoint", "evaluation", "compile", "data", "start"})  # in which only a link is to blame
_ENDS: Final = frozenset({"restart", "exit", "ended"})


@dataclass(frozen=True, slots=True)
class Blame:
    """Who is to blame: columns of culprits, or none and the communicator whose link it is."""

    kind: str  # "host", "device" or "link"
    columns: tuple[int, ...]
    comm: int
    waiting: tuple[int, ...]


class CountWatch:
    """Follows the table of counts while a job stands still."""

    def __init__(self) -> None:
        self._lasted_s = 0.0
        self._longest_s = 0.0
        self._told: str | None = None

    def follow(self, window: Window) -> tuple[CollectiveFinding | None, bool]:
        """What the table says of a standstill, and whether it is a hang by that alone, which is so once.

        None while anything moves or the job ends. In a pause hosts and devices have other things to do than the others'
        calls, so nobody is late; but a call that all devices have started does nothing else, whatever their hosts do.
        """
        counts = None if window.counts is None else heard(window.counts, window)
        still_s = 0.0 if counts is None else _still_s(window, counts)
        if still_s < self._lasted_s:
            self._longest_s = max(self._longest_s, self._lasted_s)
            self._told = None
        self._lasted_s = still_s
        if counts is None or window.phase in _ENDS or not still_s > LEAST_S:
            return None, False
        typical_s = _typical_s(window)
        if not still_s > EXPLAINS * typical_s:
            return None, False
        found = blame(counts)
        if found is None or (window.phase in _PAUSES and found.kind != "link"):
            return None, False
        said = _finding(found, counts, window, still_s)
        if still_s <= self._patience_s(found, window, typical_s) or self._told == said.reason[:64]:
            return said, False
        self._told = said.reason[:64]
        return said, True

    def _patience_s(self, found: Blame, window: Window, typical_s: float) -> float:
        """How long a standstill like this may last."""
        least_s = BUSY_S if window.phase in _PAUSES else LEAST_S
        if found.kind == "host":
            least_s = BUSY_S if _busy(window, found.columns) else SLEEPING_S
        longest_s = min(LONGEST_TIMES * self._longest_s, BUSY_S)
        return max(least_s, STEPS * typical_s, longest_s if found.kind == "host" else 0.0)


def blame(counts: Counts) -> Blame | None:
    """Who is waited for and waits for nobody; None where the table does not tell.

    Counts of ranks in one communicator can be compared unless it carries sends and receives of more than two.
    """
    comms = counts.sizes.size
    known = np.bincount(counts.comm, minlength=comms)
    plain = counts.trusted & (~counts.paired | (counts.sizes == 2))
    ahead, behind = _order(counts, counts.enqueued, plain)
    stamped = np.bincount(counts.comm, weights=counts.started >= 0, minlength=comms) == known
    begun, late = _order(counts, counts.started, plain & stamped)
    open_ = (counts.finished < 0) | (counts.finished < counts.enqueued)
    ranks = int(counts.column.max(initial=-1)) + 1
    waits = _any(counts, (ahead | begun) & open_, ranks)
    stuck = _stuck(counts, plain & stamped & (known == counts.sizes), begun | late)
    # In a communicator of which a rank is not known, who has not ended its call may wait for that one.
    unsure = open_ & ((counts.finished < 0) | (counts.started > counts.finished)) & (known != counts.sizes)[counts.comm]
    held = _any(counts, stuck[counts.comm] | unsure, ranks)
    weak = _any(counts, ~plain[counts.comm] & (counts.finished >= 0) & open_, ranks)
    # A host may be behind because its own device is: that one has calls before it which it does not start.
    unbegun = late & (counts.enqueued > counts.started)
    hosts, devices = _any(counts, behind, ranks), _any(counts, unbegun, ranks)
    culprits = (hosts | devices) & ~waits & ~held
    # A receive that was posted ahead waits too: of one single rank that is no excuse.
    certain = culprits & ~weak if (culprits & ~weak).any() else culprits & (culprits.sum() == 1)
    if certain.any():
        by_device = certain & devices
        kind, rows = ("device", unbegun) if by_device.any() else ("host", behind)
        columns = np.flatnonzero(by_device if by_device.any() else certain)
        # Hosts may wait for their own devices, which the table does not tell here: of several most would be victims.
        if kind == "host" and columns.size > 1 and _any(counts, counts.started < 0, ranks)[columns].any():
            return None
        comm = int(counts.comm[np.flatnonzero(rows & np.isin(counts.column, columns))[0]])
        waiting = counts.column[(counts.comm == comm) & (ahead | begun)]
        return Blame(kind, _tuple(columns), comm, _tuple(waiting))
    if stuck.any() and not culprits.any():
        comm = int(np.flatnonzero(stuck)[np.argmin(counts.sizes[stuck])])
        return Blame("link", (), comm, _tuple(counts.members(comm)))
    return None


def _order(counts: Counts, values: Ints, comms: Flags) -> tuple[Flags, Flags]:
    """Rows that are ahead of another member of their communicator, and rows that are behind one."""
    rows = comms[counts.comm] & (values >= 0)
    low = np.full(comms.size, np.iinfo(np.int64).max)
    high = np.full(comms.size, -1)
    np.minimum.at(low, counts.comm[rows], values[rows])
    np.maximum.at(high, counts.comm[rows], values[rows])
    return rows & (values > low[counts.comm]), rows & (values < high[counts.comm])


def _stuck(counts: Counts, comms: Flags, uneven: Flags) -> Flags:
    """Communicators whose members have all started a call that none has finished [communicators]."""
    total = np.bincount(counts.comm, minlength=comms.size)
    inside = (counts.finished >= 0) & (counts.started > counts.finished)
    full = np.bincount(counts.comm, weights=inside & ~uneven, minlength=comms.size)
    return np.asarray(comms & (total > 0) & (full == total))


def _any(counts: Counts, rows: Flags, ranks: int) -> Flags:
    return np.bincount(counts.column[rows], minlength=ranks) > 0


def _tuple(columns: Ints) -> tuple[int, ...]:
    return tuple(sorted(columns.tolist()))


def heard(counts: Counts, window: Window, within_s: float = STALE_S) -> Counts:
    """What ranks have said `within_s`; where all have, a size that is not told is that of the known ranks."""
    fresh = ~(counts.silent_s[counts.column] > within_s)
    lanes = ("comm", "column", "place", "enqueued", "started", "finished", "still_s")
    if not fresh.all():
        counts = replace(counts, **{name: getattr(counts, name)[fresh] for name in lanes})
    if not counts.sizes.all() and np.isin(np.flatnonzero(window.live), counts.column).all():
        known = np.bincount(counts.comm, minlength=counts.sizes.size)
        counts = replace(counts, sizes=np.where(counts.sizes == 0, known, counts.sizes))
    return counts


def _still_s(window: Window, counts: Counts) -> float:
    """How long neither counts nor, by the heartbeats, steps or calls of any rank have moved; on their nodes' clocks.

    Where captured graphs are replayed the counts stand still, and steps go on.
    """
    size = len(window.ranks)
    rows = (counts.column < size) & window.live[np.minimum(counts.column, size - 1)]
    known = counts.still_s[rows & np.isfinite(counts.still_s)]
    if not known.size:
        return 0.0
    beats_s = window.beats.still_s[:size][window.live]
    return float(np.minimum(known.min(), np.nanmin(beats_s, initial=np.inf)))


def _typical_s(window: Window) -> float:
    """A usual step; where none is known as much as may pass without one."""
    durations = job_duration_s(window, slice(-16, None))
    usual_s = float(quiet_median(durations)) if durations.size else np.nan
    return usual_s if np.isfinite(usual_s) else BUSY_S / STEPS


def _busy(window: Window, columns: tuple[int, ...]) -> bool:
    """Whether one of these ranks has used the CPU since it last moved, or nothing is known of that."""
    beats, places = window.beats, np.array(columns, dtype=np.int64)
    used_s = (beats.cpu_s - beats.cpu_at_progress_s)[places]
    return bool((~(used_s <= BUSY_SHARE * beats.still_s[places])).any())


def _finding(found: Blame, counts: Counts, window: Window, still_s: float) -> CollectiveFinding:
    name = "".join(
        sign if sign.isprintable() else "?" for sign in counts.groups[found.comm] or counts.names[found.comm]
    )
    group, seq = name[:64], int(counts.enqueued[counts.comm == found.comm].max(initial=0))
    ranks = tuple(int(window.ranks[column]) for column in found.columns[:MAX_RANKS_TOLD])
    waiting = tuple(int(window.ranks[column]) for column in found.waiting[:MAX_RANKS_TOLD])
    if found.kind == "host":
        what = f"has not enqueued call {seq} of group {group} that others wait in: its host is stuck before it"
    elif found.kind == "device":
        what = f"has enqueued call {seq} of group {group} and its device has not started it, as others' have"
    else:
        what = f"all ranks of group {group} have started call {seq} and none ends it: the link between them"
    reason = f"{listed(ranks)}: {what}" if ranks else what
    return CollectiveFinding(
        kind="hang", ranks=ranks, scores=(1.0,) * len(ranks), group=group, op="", seq=seq,
        reason=f"{reason}; nothing has moved for {still_s:.1f} s", waiting=waiting, evidence=(what,) * len(ranks),
        places=() if ranks else _nodes(found, counts, window),
    )  # fmt: skip


def _nodes(found: Blame, counts: Counts, window: Window) -> tuple[str, ...]:
    """Where the ranks of a communicator run."""
    return tuple(dict.fromkeys(window.nodes[column] for column in counts.members(found.comm).tolist()))
