"""Which part of a table is read where all of it would not fit into memory: some entities, evenly spread stretches.

Two passes: `Survey` sees who is measured when, in bounded memory; `Part` then says which rows to take. Stretches are
evenly spread over the rows, not over the clock, so that a recording with pauses gives no less and never more than was
asked for. Everybody's stretches are the same, since peers are compared at equal times.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from trainwarden.recorded.job import Floats, Ints

BLOCKS: Final = 20
SAMPLES_OF_BLOCK: Final = 120  # of each entity, as far as there are: several windows of every model
LEAST_GROUPS: Final = 4  # nodes; fewer could not be compared with each other
MOST_TIMES: Final = 1 << 18  # kept to find where stretches begin

Span = tuple[float, float]
Named = tuple[str | None, str | None, str | None]
"""Node, rank and device of somebody, as they stand in a table; None is unknown."""


@dataclass(frozen=True, slots=True)
class ReadLimit:
    """How much of one job's metrics is read.

    Attributes
    ----------
    cells : int
        Values, in all; a table that has no more is read whole.
    groups : int
        Nodes (of a single node: its ranks or devices).
    seed : int
    spans : tuple of (from_s, to_s)
        Read before anything else: annotated faults. Where they are more than half of it, the beginning of each.
    named : tuple
        Whose nodes are read before others.
    """

    cells: int
    groups: int = 256
    seed: int = 0
    spans: tuple[Span, ...] = ()
    named: tuple[Named, ...] = ()

    def places(self, group: Ints, ids: Mapping[str, tuple[Ints, Sequence[str | None]]]) -> set[int]:
        """Groups of a block that hold somebody named; `ids` has codes and words by column."""
        found: set[int] = set()
        for named in self.named:
            rows = np.ones(group.size, np.bool_)
            known = [(name, word) for name, word in zip(("node", "rank", "device"), named, strict=True) if word]
            for name, word in known:
                codes, words = ids.get(name, (np.zeros(group.size, np.int64), ()))
                rows &= np.array([one == word for one in words] or [False], np.bool_)[codes]
            if known:
                found |= set(np.unique(group[rows]).tolist())
        return found


@dataclass(frozen=True, slots=True)
class Part:
    """What is read.

    Attributes
    ----------
    spans : tuple of (from_s, to_s)
        In order, none touches another; `to_s` is exclusive.
    groups : frozenset or None
        Whose rows; None is everybody's.
    share : float
        Of all cells, about.
    """

    spans: tuple[Span, ...]
    groups: frozenset[Hashable] | None
    share: float

    def mask(self, times_s: Floats, group: Ints, names: Sequence[Hashable]) -> npt.NDArray[np.bool_]:
        """Which rows belong to it; ``names[group[row]]`` is the group of a row.

        Examples
        --------
        >>> part = Part(((0.0, 2.0), (5.0, 6.0)), frozenset({"a"}), 0.5)
        >>> part.mask(np.array([0.0, 1.0, 2.0, 5.0]), np.array([0, 1, 0, 0]), ["a", "b"]).tolist()
        [True, False, False, True]
        """
        edges = np.array(self.spans, np.float64).ravel()
        wanted: npt.NDArray[np.bool_] = np.searchsorted(edges, times_s, side="right") % 2 == 1
        if self.groups is None:
            return wanted
        kept = np.array([name in self.groups for name in names] or [False], np.bool_)
        wanted &= kept[group]
        return wanted


@dataclass(slots=True)
class Survey:
    """Who is measured when, in bounded memory.

    `groups` and `columns` map names to places; a caller may enter names itself and pass the places. `named` are places
    of groups to be read before others.
    """

    groups: dict[Hashable, int] = field(default_factory=dict)
    columns: dict[Hashable, int] = field(default_factory=dict)
    cells: int = 0
    named: set[int] = field(default_factory=set)
    _counts: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros((8, 8), np.int64))
    _times: list[Floats] = field(default_factory=list)
    _every: int = 1
    _passed: int = 0
    _held: int = 0

    def add(self, times_s: Floats, group: Ints, column: Ints, cells: int) -> None:
        """One block of rows: `group` and `column` are places, `cells` is how many values the block has."""
        if not times_s.size:
            return
        self.cells += cells
        self._grow()
        wide = self._counts.shape[1]
        counts = np.bincount(group * wide + column, minlength=self._counts.size)
        self._counts += counts.reshape(self._counts.shape)
        self._times.append(times_s[(-self._passed) % self._every :: self._every].copy())
        self._passed += times_s.size
        self._held += self._times[-1].size
        while self._held > MOST_TIMES:
            kept = np.concatenate(self._times)[::2]
            self._times, self._held, self._every = [kept], kept.size, self._every * 2

    def part(self, limit: ReadLimit) -> Part | None:
        """What is read; None if it is everything."""
        if self.cells <= limit.cells or not self._held:
            return None
        rng = np.random.default_rng(limit.seed)
        groups = self._chosen(limit, rng)
        share = min(1.0, limit.cells / (self.cells * len(groups) / max(1, len(self.groups))))
        times = np.sort(np.concatenate(self._times))
        spans = _stretches(times, share, limit.spans, rng)
        part = len(groups) / max(1, len(self.groups)) * share
        return Part(spans, None if len(groups) == len(self.groups) else groups, part)

    def samples(self, columns: Sequence[int]) -> int:
        """Samples of all groups' entities that `columns` are about."""
        counts = self._counts[: len(self.groups)]
        return int(counts[:, list(columns)].max(axis=1).sum()) if len(columns) else 0

    def _grow(self) -> None:
        rows, columns = self._counts.shape
        while rows < len(self.groups):
            rows *= 2
        while columns < len(self.columns):
            columns *= 2
        if (rows, columns) != self._counts.shape:
            counts = np.zeros((rows, columns), np.int64)
            counts[: self._counts.shape[0], : self._counts.shape[1]] = self._counts
            self._counts = counts

    def _chosen(self, limit: ReadLimit, rng: np.random.Generator) -> frozenset[Hashable]:
        """So many groups that each is seen long enough to learn from."""
        names = sorted(self.groups, key=repr)
        samples = float(np.median(self._counts[: len(names)].max(axis=1)))
        wanted = min(1.0, BLOCKS * SAMPLES_OF_BLOCK / max(samples, 1.0))
        of_group = self.cells / len(names) * wanted
        count = int(np.clip(limit.cells / max(of_group, 1.0), LEAST_GROUPS, limit.groups))
        if count >= len(names):
            return frozenset(names)
        wanted_names = [name for name in names if self.groups[name] in self.named][:count]
        rest = [name for name in names if name not in wanted_names]
        places = rng.choice(len(rest), count - len(wanted_names), replace=False)
        return frozenset([*wanted_names, *(rest[place] for place in places)])


def _stretches(times: Floats, share: float, wanted: Sequence[Span], rng: np.random.Generator) -> tuple[Span, ...]:
    """`BLOCKS` stretches with `share` of the rows, the first at the beginning, with `wanted` among them if they fit.

    `times` is a sorted sample of the rows' times. The first stretch shows how the job began, so that an initialisation
    can be recognised.
    """
    if share >= 1.0:
        return ((-math.inf, math.inf),)
    found: list[Span] = []
    taken, wanted = _beginnings(times, wanted, int(share / 2.0 * times.size))
    found += wanted
    share -= taken / times.size
    for block in range(BLOCKS):
        offset = rng.uniform(0.0, 1.0 - share) if block else 0.0
        first, last = (block + offset) / BLOCKS, (block + offset + share) / BLOCKS
        from_s = times[min(int(first * times.size), times.size - 1)]
        end = int(last * times.size)
        found.append((float(from_s), float(times[end]) if end < times.size else math.inf))
    joined: list[Span] = []
    for from_s, to_s in sorted(found):
        if joined and from_s <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(to_s, joined[-1][1]))
        elif from_s < to_s:
            joined.append((from_s, to_s))
    return tuple(joined)


def _beginnings(times: Floats, spans: Sequence[Span], most: int) -> tuple[int, list[Span]]:
    """How many of `times` lie in `spans`, and the spans; of each the beginning where they hold more than `most`."""
    places = [(int(np.searchsorted(times, from_s)), int(np.searchsorted(times, to_s))) for from_s, to_s in spans]
    taken = sum(last - first for first, last in places)
    if taken <= most:
        return taken, list(spans)
    length = max(1, most // len(places))
    cut = [(first, min(last, first + length)) for first, last in places if first < last]
    ends = [float(times[last]) if last < times.size else math.inf for _, last in cut]
    return sum(last - first for first, last in cut), [
        (float(times[first]), end_s) for (first, _), end_s in zip(cut, ends, strict=True)
    ]
