"""What a recorded folder holds, as arrays in time order. Read by `trainwarden.recorded.folder`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trainwarden.records import EventRecord

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class MetricTable:
    """Rows of `metrics`, by time (stable). One row for each time and entity: of several the last one wins.

    Attributes
    ----------
    times_s : float array [n]
    entity : int array [n]
        Place in `nodes`, `ranks`, `devices`.
    nodes, ranks, devices : tuples, one entry for each entity; None = no such column or empty
    models : tuple of str, one entry for each entity, or empty
        What its maker calls the device; an empty word: nobody says.
    names : tuple of str, length d
        Catalogue names where the catalogue knows the column (values in its unit), else as written.
    values : float array [n, d]
        NaN = not measured.
    replaced : int
        Rows that a later row of the same time and entity replaced.
    share : float
        Of the table's cells, about; less than 1 where a limit allowed no more.
    last_rank : int or None
        The highest rank of the table, also of rows that were not read.
    notes : tuple of str
        What was assumed while it was read.
    """

    times_s: Floats
    entity: Ints
    nodes: tuple[str | None, ...]
    ranks: tuple[int | None, ...]
    devices: tuple[str | None, ...]
    names: tuple[str, ...]
    values: Floats
    replaced: int = 0
    share: float = 1.0
    last_rank: int | None = None
    models: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def rows_of(self, entities: Ints) -> Iterator[tuple[int, Ints]]:
        """Each of `entities` (ascending) and where these are, by time."""
        order = np.argsort(self.entity, kind="stable")
        begins = np.searchsorted(self.entity[order], entities, side="left")
        ends = np.searchsorted(self.entity[order], entities, side="right")
        for entity, begin, end in zip(entities.tolist(), begins.tolist(), ends.tolist(), strict=True):
            yield entity, order[begin:end]


@dataclass(frozen=True, slots=True)
class IterationTable:
    """Rows of `iterations`, by end of step (stable).

    Attributes
    ----------
    rank : int array [n]
        Place in `ranks` and `nodes`.
    ranks, nodes : tuples; None = not known (a rank None is the whole job)
    step : int array [n]
    end_s : float array [n]
        As recorded, else counted up from the durations of that rank (`timed` False).
    duration_s, compute_s, wait_s, pause_s, micro_batches : float arrays [n]
        NaN = not given; `duration_s` always is.
    steps : int array [n]
        The value is the mean over so many steps; 1 where the column is missing.
    incarnation : tuple of str, or empty
        Which process of the rank ran the step, for each row.
    basis : tuple of str, or empty
        Where the times come from, for each row; an empty word: not said.
    notes : tuple of str
        What was assumed while it was read.
    """

    rank: Ints
    ranks: tuple[int | None, ...]
    nodes: tuple[str | None, ...]
    step: Ints
    end_s: Floats
    duration_s: Floats
    compute_s: Floats
    wait_s: Floats
    pause_s: Floats
    micro_batches: Floats
    steps: Ints
    timed: bool
    incarnation: tuple[str, ...] = ()
    basis: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CollectiveTable:
    """Rows of `collectives`, by step and rank (stable): one collective call of one rank each.

    Attributes
    ----------
    step, rank, seq, call_bytes : int arrays [n]
        `rank` is the rank itself.
    comm, function : int arrays [n]
        Places in `comms` and `functions`.
    device_s, enqueued_s : float arrays [n]
        How long the kernel ran, and when it was enqueued by the clock of the rank's node; NaN = not known.
    peer : int array [n]
        The other rank of a send or receive; -1 = not given.
    groups, nodes, sizes : tuples, one entry for each communicator
        Its name (empty = not given), on how many nodes it is and how many ranks it has (0 = not given).
    hosts : mapping of int to str
        Where each rank runs, as far as the table says.
    """

    step: Ints
    rank: Ints
    comm: Ints
    function: Ints
    seq: Ints
    call_bytes: Ints
    device_s: Floats
    enqueued_s: Floats
    peer: Ints
    comms: tuple[str, ...]
    functions: tuple[str, ...]
    groups: tuple[str, ...]
    nodes: tuple[int, ...]
    sizes: tuple[int, ...]
    hosts: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LogTable:
    """Lines of one log file, in their order.

    Attributes
    ----------
    file : str
        The file's name in the folder.
    times_s : float array [n]
        NaN where a line carries no time stamp of its own.
    nodes, ranks : sequences, one entry a line; None = not known
    lines : sequence of str
        Line i has the number i + 1; lines end at newline only, of a progress bar the last state counts.
    label : pattern or None
        What most lines begin with, where that names a rank or node (`trainwarden.log_text.label_of`).
    """

    file: str
    times_s: Floats
    nodes: tuple[str | None, ...]
    ranks: tuple[int | None, ...]
    lines: Sequence[str]
    label: re.Pattern[str] | None = None


@dataclass(frozen=True, slots=True)
class PlannedChange:
    """A change of pace that was meant."""

    step: int
    what: str


@dataclass(frozen=True, slots=True)
class ReadFile:
    """A file that was read: its path in the folder, the format it was taken for, and how many rows it gave."""

    path: str
    format: str
    rows: int


@dataclass(frozen=True, slots=True)
class UnreadFile:
    """A file that was not read, and why."""

    path: str
    why: str


@dataclass(frozen=True, slots=True)
class RecordedJob:
    """Everything that one folder holds.

    Attributes
    ----------
    flight : mapping of int to object
        Parsed flight-recorder dump by rank; a dump without entries is evidence too.
    normal_until_s : float or None
        `job.toml` may say so; rows before it are normal training.
    parallel : mapping
        ``tp``, ``cp``, ``dp``, ``pp``, ``ep`` where `job.toml` has them.
    roles : mapping of int to str
        Role of each rank that `job.toml` names one for; goes before what follows from `parallel`.
    broken : mapping of int to str
        Why the flight-recorder dump of a rank could not be read.
    ras : tuple
        Answers of NCCL's RAS service, parsed, in the order of their time.
    events : tuple of EventRecord
        What files of other tools tell as events.
    files, unread, notes : tuples
        What was read, what was not, and what was assumed.
    """

    name: str
    folder: Path
    metrics: MetricTable | None = None
    iterations: IterationTable | None = None
    logs: tuple[LogTable, ...] = ()
    flight: Mapping[int, Any] = field(default_factory=dict)
    normal_until_s: float | None = None
    parallel: Mapping[str, int] = field(default_factory=dict)
    roles: Mapping[int, str] = field(default_factory=dict)
    planned: tuple[PlannedChange, ...] = ()
    collectives: CollectiveTable | None = None
    broken: Mapping[int, str] = field(default_factory=dict)
    ras: tuple[Any, ...] = ()
    events: tuple[EventRecord, ...] = ()
    files: tuple[ReadFile, ...] = ()
    unread: tuple[UnreadFile, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def span_s(self) -> tuple[float, float] | None:
        """First and last time of anything in the recording; None where nothing carries a time."""
        times = [log.times_s[np.isfinite(log.times_s)] for log in self.logs]
        if self.metrics is not None:
            times.append(self.metrics.times_s)
        if self.iterations is not None:
            times += [self.iterations.end_s - self.iterations.duration_s, self.iterations.end_s]
        times = [part for part in times if part.size]
        if not times:
            return None
        return min(float(part.min()) for part in times), max(float(part.max()) for part in times)

    @property
    def end_s(self) -> float | None:
        """Last time of anything in the recording."""
        return None if self.span_s is None else self.span_s[1]
