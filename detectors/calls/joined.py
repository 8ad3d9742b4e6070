"""Calls of one sampled step joined over the ranks: how long each rank was in them, and the shortest of each.

A collective's kernel runs on a rank from when that rank comes to it until all have what they need, so over the ranks of
a call the shortest duration is the transfer, and what a rank's is longer is its wait for those who came later. Only
durations are compared, so the clocks of nodes need not agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from trainwarden.detectors.calls.functions import FUNCTIONS, RECV, SEND, SYNCHRONISES
from trainwarden.detectors.calls.links import Links, TrafficTable

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
NEARLY: Final = 7 / 8  # of a communicator's ranks must be known for its waits; all of them for its links
AGREE: Final = 0.25  # of the calls that anybody tells must be told by nearly all: else the ranks count differently
LEAST_BYTES: Final = 8192  # what is smaller takes as long as its latency
SAMPLED: Final = 32  # calls of one communicator and function whose speed is looked at, about
SPARSE: Final = 4  # sequence numbers this many times as far apart as there are calls are found by sorting


@dataclass(frozen=True, slots=True)
class Calls:
    """Calls of one step as told by the ranks, one row for each rank and call; `peer` is a column, -1 = no one."""

    column: Ints
    comm: Ints
    function: Ints
    seq: Ints
    call_bytes: Ints
    device_s: Floats
    peer: Ints

    def part(self, rows: Flags) -> Calls:
        """Some of the rows."""
        if rows.all():
            return self
        return Calls(
            self.column[rows], self.comm[rows], self.function[rows], self.seq[rows], self.call_bytes[rows],
            self.device_s[rows], self.peer[rows],
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class JoinedStep:
    """One sampled step, all ranks together; arrays over the job's columns.

    Attributes
    ----------
    kernel_s : float [ranks]
        Seconds in the kernels of all calls that make ranks wait, joined or not: what was not computing.
    wait_s : float [ranks]
        Seconds of those joined that the rank waited for others.
    measured, joined, told : int [ranks]
        Such calls, those of them that were joined, and all that the rank has told.
    turns : int [ranks]
        Messages that the rank exchanges with one neighbour in one direction, the most: the micro-batches of a pipeline.
    kinds : bool [ranks, kinds]
        Of which kinds a rank's calls are; ranks that make the same do the same work.
    blind : int array
        Communicators whose synchronising calls were told and not measured.
    among_all : int array
        Communicators whose sends and receives were all-to-alls.
    loads : Loads
        What passed each communicator or pair, and for how long.
    period_s : float
        How long a step takes by the calls' own clocks; NaN if they do not tell.
    """

    step: int
    time_s: float
    kernel_s: Floats
    wait_s: Floats
    measured: Ints
    joined: Ints
    told: Ints
    turns: Ints
    kinds: Flags
    links: Links = field(default_factory=Links.none)
    loads: TrafficTable = field(default_factory=TrafficTable.none)
    blind: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    among_all: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    period_s: float = float("nan")


def join(calls: Calls, sizes: Ints, trusted: Flags, ranks: int, *, at: tuple[int, float]) -> JoinedStep:
    """Join the calls of one step.

    Parameters
    ----------
    calls : Calls
        Each of a rank once.
    sizes, trusted : arrays [communicators]
        How many ranks each has, and whether what it tells can be believed.
    ranks : int
        Columns of the job.
    at : step and time
    """
    paired = np.isin(calls.function, (SEND, RECV))
    stamped = calls.part((paired | SYNCHRONISES[calls.function]) & np.isfinite(calls.device_s) & trusted[calls.comm])
    kernel_s, wait_s, joined, links = np.zeros(ranks), np.zeros(ranks), np.zeros(ranks, dtype=np.int64), []
    loads: list[TrafficTable] = []
    kernel_s += np.bincount(stamped.column, weights=stamped.device_s, minlength=ranks)
    for found in (_collectives(stamped.part(SYNCHRONISES[stamped.function]), sizes), _pairs(stamped)):
        if found is not None:
            used, shortest_s, of_links = found
            wait_s += np.bincount(used.column, weights=used.device_s - shortest_s, minlength=ranks)
            joined += np.bincount(used.column, minlength=ranks)
            links.append(of_links)
            loads.append(_loads(used, shortest_s, sizes))
    return JoinedStep(
        step=at[0], time_s=at[1], kernel_s=kernel_s, wait_s=wait_s, joined=joined, links=_merged(links),
        loads=TrafficTable.merged(loads),
        measured=np.bincount(stamped.column, minlength=ranks), told=np.bincount(calls.column, minlength=ranks),
        turns=_turns(calls.part(paired), sizes, ranks), kinds=_kinds(stamped, sizes, ranks),
        blind=_blind(calls, sizes.size),
    )  # fmt: skip


Joined = tuple[Calls, Floats, Links]
"""Rows that count, the shortest duration of each one's call, and the links."""


def _collectives(calls: Calls, sizes: Ints) -> Joined | None:
    if not calls.seq.size:
        return None
    pair = calls.comm * FUNCTIONS + calls.function
    place, total, first = _places(pair, calls.seq)
    known = np.bincount(place, minlength=total)
    shortest_s = np.full(total, np.inf)
    np.minimum.at(shortest_s, place, calls.device_s)
    of_pair, call_bytes = np.full(total, first), np.zeros(total, dtype=np.int64)
    of_pair[place], call_bytes[place] = pair, calls.call_bytes
    odd = call_bytes[place] != calls.call_bytes
    size = sizes[of_pair // FUNCTIONS]
    good = (known >= np.maximum(2, np.ceil(NEARLY * size))) & (known <= size)
    if odd.any():
        good[place[odd]] = False
    local = of_pair - first
    good &= (np.bincount(local, weights=good) >= AGREE * np.bincount(local, weights=known > 0))[local]
    rows = good[place]
    links = _speeds(of_pair, call_bytes, shortest_s, np.flatnonzero(good & (known == size)))
    return calls.part(rows), shortest_s[place if rows.all() else place[rows]], links


def _places(pair: Ints, seq: Ints) -> tuple[Ints, int, int]:
    """Where each row's call stands among all calls, how many places there are, and the smallest of `pair`.

    Ranks count their calls without gaps, so places follow from the numbers themselves; where they do not, by sorting.
    """
    first = int(pair.min())
    local = pair - first
    low = np.full(int(local.max()) + 1, np.iinfo(np.int64).max)
    high = np.full(low.size, -1)
    np.minimum.at(low, local, seq)
    np.maximum.at(high, local, seq)
    span = np.where(high >= 0, high - np.minimum(low, high) + 1, 0)
    if int(span.sum()) <= SPARSE * seq.size + 65_536:
        offset = np.cumsum(span) - span - np.where(high >= 0, low, 0)
        return offset[local] + seq, int(span.sum()), first
    order = np.lexsort((seq, pair))
    begins = np.append(True, (np.diff(pair[order]) != 0) | (np.diff(seq[order]) != 0))
    place = np.empty(seq.size, dtype=np.int64)
    place[order] = np.cumsum(begins) - 1
    return place, int(begins.sum()), first


def _speeds(of_pair: Ints, call_bytes: Ints, shortest_s: Floats, whole: Ints) -> Links:
    """Links of collectives; of many calls every so-manieth."""
    whole = whole[(call_bytes[whole] >= LEAST_BYTES) & (shortest_s[whole] > 0.0)]
    if not whole.size:
        return Links.none()
    # Calls of one communicator and function lie side by side; an odd stride meets all kinds of calls that take turns.
    begins = np.flatnonzero(np.append(True, np.diff(of_pair[whole]) != 0))
    count = np.diff(np.append(begins, whole.size))
    stride = np.repeat(np.maximum(1, count // SAMPLED) | 1, count)
    whole = whole[(np.arange(whole.size) - np.repeat(begins, count)) % stride == 0]
    pair, size = of_pair[whole], call_bytes[whole]
    bucket = np.frexp(size.astype(np.float64))[1].astype(np.int64) - 1
    key, slowness = _medians(pair * 64 + bucket, np.log(shortest_s[whole] / size))
    alone = np.full(key.size, -1)
    return Links(key // (64 * FUNCTIONS), key // 64 % FUNCTIONS, key % 64, alone, alone, slowness)


def _medians(key: Ints, value: Floats) -> tuple[Ints, Floats]:
    """Distinct keys, and the median of each one's values."""
    order = np.lexsort((value, key))
    key, value = key[order], value[order]
    begins = np.flatnonzero(np.append(True, np.diff(key) != 0))
    count = np.diff(np.append(begins, key.size))
    return key[begins], (value[begins + (count - 1) // 2] + value[begins + count // 2]) / 2.0


def _pairs(calls: Calls) -> Joined | None:
    """Point-to-point calls: of each pair the sends in their order belong to the receives in theirs."""
    calls = calls.part(np.isin(calls.function, (SEND, RECV)) & (calls.peer >= 0))
    if not calls.seq.size:
        return None
    sends = calls.function == SEND
    source, target = np.where(sends, calls.column, calls.peer), np.where(sends, calls.peer, calls.column)
    _, key = np.unique((calls.comm << 34) | (source << 17) | target, return_inverse=True)
    number = np.bincount(key, weights=sends), np.bincount(key, weights=~sends)
    equal = (number[0] == number[1])[key]
    order = np.lexsort((calls.seq, key))
    out, into = order[(sends & equal)[order]], order[(~sends & equal)[order]]
    same = calls.call_bytes[out] == calls.call_bytes[into]
    out, into = out[same], into[same]
    if not out.size:
        return None
    shortest_s = np.minimum(calls.device_s[out], calls.device_s[into])
    size = calls.call_bytes[out]
    large = (size >= LEAST_BYTES) & (shortest_s > 0.0)
    bucket = np.frexp(size[large].astype(np.float64))[1].astype(np.int64) - 1
    told, slowness = _medians(key[out][large] * 64 + bucket, np.log(shortest_s[large] / size[large]))
    one = np.zeros(int(key.max()) + 1, dtype=np.int64)
    one[key[out]] = out
    at = one[told // 64]
    links = Links(
        calls.comm[at], np.full(at.size, SEND), told % 64, calls.column[at], calls.peer[at], slowness
    )  # fmt: skip
    both = np.concatenate((out, into))
    used = Calls(
        calls.column[both], calls.comm[both], calls.function[both], calls.seq[both], calls.call_bytes[both],
        calls.device_s[both], calls.peer[both],
    )  # fmt: skip
    return used, np.concatenate((shortest_s, shortest_s)), links


def _loads(used: Calls, shortest_s: Floats, sizes: Ints) -> TrafficTable:
    """What passed the communicators of collectives, or the pairs, whose rows count."""
    if not used.comm.size:
        return TrafficTable.none()
    if SYNCHRONISES[used.function[0]]:
        return TrafficTable.of_groups(used.comm, used.function, used.call_bytes, shortest_s, sizes=sizes)
    out = used.function == SEND
    return TrafficTable.of_pairs(
        used.comm[out], used.column[out], used.peer[out], used.call_bytes[out], took_s=shortest_s[out]
    )


def _turns(calls: Calls, sizes: Ints, ranks: int) -> Ints:
    """How often each rank sends to, or receives from, the same neighbour; in groups of more than a pair."""
    calls, turns = calls.part(sizes[calls.comm] > 2), np.zeros(ranks, dtype=np.int64)
    key = (((calls.comm * 2 + (calls.function == SEND)) << 17 | calls.column) << 17) | (calls.peer + 1)
    key, number = np.unique(key, return_counts=True)
    np.maximum.at(turns, (key >> 17) & ((1 << 17) - 1), number)
    return turns


def _kinds(calls: Calls, sizes: Ints, ranks: int) -> Flags:
    """Of which kinds each rank's calls are: function, and of those of a whole group its size."""
    size = np.where(np.isin(calls.function, (SEND, RECV)), 0, sizes[calls.comm] if calls.comm.size else 0)
    names, place = _distinct(size * FUNCTIONS + calls.function)
    found = np.zeros((ranks, names.size), dtype=np.bool_)
    found[calls.column, place] = True
    return found


def _blind(calls: Calls, comms: int) -> Ints:
    """Communicators of which no synchronising call has a duration."""
    calls = calls.part(SYNCHRONISES[calls.function])
    told = np.bincount(calls.comm, minlength=comms)
    measured = np.bincount(calls.comm, weights=np.isfinite(calls.device_s), minlength=comms)
    return np.flatnonzero((told > 0) & (measured == 0))


def _distinct(code: Ints) -> tuple[Ints, Ints]:
    """Distinct codes and the place of each; linear, as codes are small."""
    if not code.size:
        return code, code
    there = np.zeros(int(code.max()) + 1, dtype=np.bool_)
    there[code] = True
    names = np.flatnonzero(there)
    places = np.zeros(there.size, dtype=np.int64)
    places[names] = np.arange(names.size)
    return names, places[code]


def _merged(parts: Sequence[Links]) -> Links:
    if not parts:
        return Links.none()
    return parts[0] if len(parts) == 1 else Links(
        *(np.concatenate([getattr(part, name) for part in parts]) for name in Links.__slots__)
    )  # fmt: skip
