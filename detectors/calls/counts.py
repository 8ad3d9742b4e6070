"""How many calls every rank has enqueued, started and finished in each of its communicators, by its newest word."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from trainwarden.records import CollectivesRecord

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
MAX_COMMS: Final = 1 << 18  # of one job at a time; more is damage
MAX_SIZE: Final = 65_536  # ranks of a communicator
MAX_LAYOUTS: Final = 4  # remembered sets of communicators that a rank tells of at once
MAX_COUNT: Final = 1 << 40  # larger numbers are damage
MAX_TIME_S: Final = 1e11
_ROWS: Final = ("column", "comm", "place", "enqueued", "started", "finished", "still_s", "live")
Told = tuple[tuple[str, ...], tuple[int, ...], tuple[int, ...]]
"""Communicators of a rank, their sizes, and its places there."""


@dataclass(frozen=True, slots=True)
class Counts:
    """The table as detectors see it: one row for each rank in a communicator; unknown counts are -1, times NaN.

    Attributes
    ----------
    comm, column, place : int [rows]
        The communicator, the rank's column, and its place in the communicator.
    enqueued, started, finished : int [rows]
    still_s : float [rows]
        How long none of these had grown at the rank's last word, by the clock of its node.
    names, groups : sequences; sizes, nodes, trusted, paired : arrays [communicators]
        Sizes and nodes are 0 where they are not known. `paired`: it carries point-to-point calls, which ranks need not
        have equally many of.
    silent_s : float [columns]
        How long the rank has sent no word, as watched; NaN if it never has.
    generation : int
        Grows when communicators are numbered anew.
    """

    comm: Ints
    column: Ints
    place: Ints
    enqueued: Ints
    started: Ints
    finished: Ints
    still_s: Floats
    names: list[str]
    groups: list[str]
    sizes: Ints
    nodes: Ints
    trusted: Flags
    paired: Flags
    silent_s: Floats
    generation: int = 0

    def members(self, comm: int) -> Ints:
        """Columns of the known ranks of a communicator, by their place there."""
        rows = np.flatnonzero(self.comm == comm)
        return self.column[rows[np.argsort(self.place[rows])]]


class CountTable:
    """Communicators and the counts of their ranks; rows are added as ranks tell of them.

    Attributes
    ----------
    odd : int
        Records that contradicted themselves.
    """

    def __init__(self) -> None:
        self.generation = 0
        self.odd = 0
        self._begin()

    def _begin(self) -> None:
        self._codes: dict[str, int] = {}
        self._names: list[str] = []
        self._groups: list[str] = []
        self._sizes, self._nodes = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        self._trusted, self._paired = np.zeros(0, dtype=np.bool_), np.zeros(0, dtype=np.bool_)
        self._row: dict[tuple[int, int], int] = {}
        self._of: dict[int, dict[Told, tuple[Ints, Ints]]] = {}  # by column: rows and codes of what it told
        self._free: list[int] = []
        self._used = 0
        self._column, self._comm, self._place = (np.zeros(0, dtype=np.int64) for _ in range(3))
        self._enqueued, self._started, self._finished = (np.zeros(0, dtype=np.int64) for _ in range(3))
        self._still_s, self._live = np.zeros(0), np.zeros(0, dtype=np.bool_)

    @property
    def sizes(self) -> Ints:
        """Ranks of each communicator."""
        return self._sizes[: len(self._names)]

    @property
    def trusted(self) -> Flags:
        """Whether what a communicator's ranks tell agrees."""
        return self._trusted[: len(self._names)]

    def feed(self, record: CollectivesRecord, column: int) -> Ints | None:
        """Apply one rank's counts; the codes of its communicators, None if the record is damaged."""
        told = record.comms, record.sizes, record.places
        known = self._of.get(column, {}).get(told) or self._enter(record, column)
        if known is None:
            self.odd += 1
            return None
        if not record.seqs:  # with calls come the communicators of these calls alone
            self._leave(column, told)
        rows, codes = known
        lanes = (record.enqueued, record.started, record.finished, record.moved_s)
        if any(len(lane) not in {0, rows.size} for lane in lanes):
            self.odd += 1
            return codes
        self._count("enqueued", record.enqueued, rows)
        self._count("started", record.started, rows)
        self._count("finished", record.finished, rows)
        moved_s = np.array(record.moved_s or (None,) * rows.size, dtype=np.float64)
        now_s = np.nan if record.monotonic_s is None else record.monotonic_s
        self._still_s[rows] = np.where((moved_s <= now_s) & (np.abs(moved_s) < MAX_TIME_S), now_s - moved_s, np.nan)
        return codes

    def carries_pairs(self, codes: Ints) -> None:
        """Point-to-point calls were seen in these communicators."""
        self._paired[codes] = True

    def on_process_restart(self, column: int) -> None:
        """The rank of `column` runs in a new process, which makes communicators of its own."""
        if self._of.pop(column, None) is None:
            return
        self._drop(np.flatnonzero(self._live[: self._used] & (self._column[: self._used] == column)))
        if not self._live[: self._used].any():
            self.reset()

    def has_room(self, comms: int) -> bool:
        """False if so many communicators more would be too many."""
        return len(self._names) + comms <= MAX_COMMS

    def reset(self) -> None:
        """Forget everything; communicators are numbered anew."""
        self.generation += 1
        self._begin()

    def view(self, silent_s: Floats) -> Counts:
        """The table now."""
        live = np.flatnonzero(self._live[: self._used])
        rows: dict[str, Any] = {name: getattr(self, f"_{name}")[live] for name in _ROWS if name != "live"}
        size = len(self._names)
        return Counts(
            **rows, names=self._names, groups=self._groups, sizes=self._sizes[:size].copy(),
            nodes=self._nodes[:size].copy(), trusted=self._trusted[:size].copy(), paired=self._paired[:size].copy(),
            silent_s=silent_s.copy(), generation=self.generation,
        )  # fmt: skip

    def column_of(self, codes: Ints, places: Ints) -> Ints:
        """Columns of ranks by their places in communicators, -1 where nobody has told to be there."""
        live = np.flatnonzero(self._live[: self._used])
        keys = self._comm[live] * MAX_SIZE + self._place[live]
        order = np.argsort(keys)
        keys, columns = keys[order], self._column[live][order]
        wanted = codes * MAX_SIZE + np.clip(places, 0, MAX_SIZE - 1)
        at = np.minimum(np.searchsorted(keys, wanted), max(0, keys.size - 1))
        if not keys.size:
            return np.full(codes.size, -1)
        found = (keys[at] == wanted) & (places >= 0)
        return np.where(found, columns[at], -1)

    # -- internals -------------------------------------------------------------------------------------------

    def _count(self, name: str, told: tuple[int | None, ...], rows: Ints) -> None:
        values = [-1 if one is None or not 0 <= one < MAX_COUNT else one for one in told or (None,) * rows.size]
        getattr(self, f"_{name}")[rows] = values

    def _enter(self, record: CollectivesRecord, column: int) -> tuple[Ints, Ints] | None:
        """Rows for the communicators of a record that tells of others than those before."""
        size = len(record.comms)
        sizes = record.sizes or (0,) * size  # not every version tells
        fits = len(set(record.comms)) == size and len(sizes) == len(record.places) == size
        sane = fits and all(one == 0 or 2 <= one <= MAX_SIZE for one in sizes) and all(
            0 <= place < (one or MAX_SIZE) for place, one in zip(record.places, sizes, strict=True)
        )  # fmt: skip
        if not sane or not self.has_room(size):
            return None
        codes = [self._code(record, index, sizes[index]) for index in range(size)]
        rows = [self._new_row(code, column, record.places[index]) for index, code in enumerate(codes)]
        own = self._of.setdefault(column, {})
        if len(own) >= MAX_LAYOUTS:
            own.pop(next(iter(own)))
        told = record.comms, record.sizes, record.places
        own[told] = np.array(rows, dtype=np.int64), np.array(codes, dtype=np.int64)
        return own[told]

    def _leave(self, column: int, told: Told) -> None:
        """A rank has told all of its communicators: those that it is in no more are gone."""
        own = self._of[column]
        if len(own) == 1:
            return
        rows = own[told][0]
        others = np.unique(np.concatenate([one for one, _ in own.values()]))
        gone = others[~np.isin(others, rows)]
        if gone.size:
            self._drop(gone)
            self._of[column] = {told: own[told]}

    def _drop(self, rows: Ints) -> None:
        self._live[rows] = False
        for row in rows.tolist():
            self._row.pop((int(self._comm[row]), int(self._column[row])), None)
        self._free += rows.tolist()

    def _code(self, record: CollectivesRecord, index: int, size: int) -> int:
        name = record.comms[index]
        nodes = record.node_counts[index] if index < len(record.node_counts) else 0
        code = self._codes.get(name)
        if code is not None:
            if self._sizes[code] != size:
                self._trusted[code] = False
            return code
        code = self._codes[name] = len(self._names)
        self._names.append(name)
        self._groups.append(record.groups[index] if index < len(record.groups) else "")
        for lane in ("sizes", "nodes", "trusted", "paired"):
            setattr(self, f"_{lane}", _roomy(getattr(self, f"_{lane}"), code + 1))
        self._sizes[code], self._nodes[code], self._trusted[code] = size, max(0, min(nodes, size or MAX_SIZE)), True
        self._paired[code] = False
        return code

    def _new_row(self, code: int, column: int, place: int) -> int:
        row = self._row.get((code, column))
        if row is None:
            row = self._free.pop() if self._free else self._used
            self._row[code, column] = row
            self._used = max(self._used, row + 1)
            for name in _ROWS:
                setattr(self, f"_{name}", _roomy(getattr(self, f"_{name}"), self._used))
            self._enqueued[row] = self._started[row] = self._finished[row] = -1
            self._still_s[row] = np.nan
            self._column[row], self._comm[row], self._live[row] = column, code, True
        self._place[row] = place
        return row


def _roomy(array: npt.NDArray[Any], size: int) -> npt.NDArray[Any]:
    """`array` with room for `size` elements at least, made in large steps."""
    if array.size >= size:
        return array
    return np.concatenate([array, np.zeros(max(size, 64, array.size // 2), dtype=array.dtype)])
