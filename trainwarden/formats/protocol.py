"""What a format is: it recognises a file by its name and first bytes, and reads it into our own tables.

A format is one file with one class and one line in `trainwarden.formats.CATALOG`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from trainwarden.errors import DataError
from trainwarden.formats.source import Source
from trainwarden.recorded.job import CollectiveTable, IterationTable, LogTable, MetricTable
from trainwarden.records import EventRecord

SURE = 0.9  # its own marks were seen
LIKELY = 0.6
GENERIC = 0.3  # any table would fit
NEVER = 0.0


@dataclass(frozen=True, slots=True)
class Problem:
    """Something in a file that cannot be read: where it is, what it is, and what to do."""

    line: int | None
    column: str
    what: str
    remedy: str = ""

    def sentence(self, file: str) -> str:
        """The problem with its place.

        Examples
        --------
        >>> Problem(3, "load", "'x' is not a number", "leave the cell empty").sentence("m.csv")
        "m.csv line 3, column load: 'x' is not a number (leave the cell empty)"
        """
        where = file + (f" line {self.line}" if self.line is not None else "")
        where += f", column {self.column}" if self.column else ""
        return f"{where}: {self.what}" + (f" ({self.remedy})" if self.remedy else "")


class Misfit(DataError):
    """A file that is of a format and cannot be read, with all its problems at once."""

    def __init__(self, file: str, problems: list[Problem]) -> None:
        self.problems = problems
        shown = [one.sentence(file) for one in problems[:MAX_PROBLEMS]]
        more = len(problems) - len(shown)
        super().__init__("; ".join(shown) + (f"; and {more} more problems" if more > 0 else ""))


MAX_PROBLEMS = 20


@dataclass(slots=True)
class Found:
    """What one file holds.

    Attributes
    ----------
    rows : int
        Rows, entries, samples or lines that were read.
    dumps : dict of int to object
        Flight-recorder dumps by rank.
    ras : list
        Answers of NCCL's RAS service, in the order of their time.
    stacks : list
        Stacks of processes (`trainwarden.formats.dumps.stacks`).
    pairs : list
        Runs between pairs of nodes (`trainwarden.formats.fabric.node_pairs`).
    clocks : list
        Clocks of nodes (`trainwarden.formats.host.clocks`).
    kernels : list
        Sums over kernels of ranks (`trainwarden.formats.dumps.kernel_sums`).
    notes : list of str
        What was assumed while reading, one clause each.
    addresses : list of str
        Those of the node that the file is of, so that what others say of an address is said of it.
    """

    rows: int = 0
    metrics: list[MetricTable] = field(default_factory=list)
    iterations: list[IterationTable] = field(default_factory=list)
    collectives: list[CollectiveTable] = field(default_factory=list)
    logs: list[LogTable] = field(default_factory=list)
    dumps: dict[int, Any] = field(default_factory=dict)
    ras: list[Any] = field(default_factory=list)
    events: list[EventRecord] = field(default_factory=list)
    stacks: list[Any] = field(default_factory=list)
    pairs: list[Any] = field(default_factory=list)
    clocks: list[Any] = field(default_factory=list)
    kernels: list[Any] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    addresses: list[str] = field(default_factory=list)


class Format(Protocol):
    """One kind of file."""

    name: str

    def sniff(self, name: str, head: str) -> float:
        """How certain it is that a file called `name`, whose text begins with `head`, is of this format: 0 to 1."""
        ...

    def read(self, source: Source, columns: Mapping[str, str]) -> Found:
        """Read the whole file; `columns` are those that the command line names (`--columns`).

        Raises
        ------
        DataError
            If it cannot be read; with all problems at once.
        """
        ...
