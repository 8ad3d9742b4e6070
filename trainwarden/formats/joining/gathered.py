"""What several files of a job hold, before it is joined to one."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from trainwarden.errors import DataError
from trainwarden.formats.dumps.kernel_sums import KernelSums
from trainwarden.formats.dumps.stacks import Stack
from trainwarden.formats.fabric.node_pairs import PairRun
from trainwarden.formats.host.clocks import Clock
from trainwarden.formats.protocol import Found
from trainwarden.recorded.job import (
    CollectiveTable,
    IterationTable,
    LogTable,
    MetricTable,
    ReadFile,
    UnreadFile,
)
from trainwarden.records import EventRecord


@dataclass(slots=True)
class Gathered:
    """What several files hold."""

    files: list[ReadFile] = field(default_factory=list)
    unread: list[UnreadFile] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    metrics: list[tuple[str, MetricTable]] = field(default_factory=list)
    iterations: list[tuple[str, IterationTable]] = field(default_factory=list)
    collectives: list[CollectiveTable] = field(default_factory=list)
    logs: list[LogTable] = field(default_factory=list)
    dumps: dict[int, Any] = field(default_factory=dict)
    broken: dict[int, str] = field(default_factory=dict)
    ras: list[Any] = field(default_factory=list)
    events: list[EventRecord] = field(default_factory=list)
    stacks: list[tuple[str, Stack]] = field(default_factory=list)
    pairs: list[tuple[str, PairRun]] = field(default_factory=list)
    clocks: list[tuple[str, Clock]] = field(default_factory=list)
    addresses: list[tuple[str, list[str]]] = field(default_factory=list)
    kernels: list[tuple[str, KernelSums]] = field(default_factory=list)
    errors: list[DataError] = field(default_factory=list)

    def add(self, name: str, kind: str, found: Found) -> None:
        """What the file called `name` holds."""
        self.files.append(ReadFile(name, kind, found.rows))
        self.notes += [f"{name}: {note}" for note in found.notes]
        self.metrics += [(name, table) for table in found.metrics]
        self.iterations += [(name, table) for table in found.iterations]
        self.collectives += found.collectives
        # Lines of one source are counted: two tables of one file are two sources.
        self.logs += [
            replace(log, file=f"{name} ({log.file})" if place else name) for place, log in enumerate(found.logs)
        ]
        self.ras += found.ras
        self.events += found.events
        self.stacks += [(name, one) for one in found.stacks]
        self.pairs += [(name, one) for one in found.pairs]
        self.clocks += [(name, one) for one in found.clocks]
        self.addresses += [(name, found.addresses)] if found.addresses else []
        self.kernels += [(name, one) for one in found.kernels]
        for rank, raw in found.dumps.items():
            if rank in self.dumps:
                self.unread.append(UnreadFile(name, f"rank {rank} has a dump already"))
            else:
                self.dumps[rank] = raw

    def refuse(self, names: set[str], why: str) -> None:
        """Name files that were read and tell nothing together, where there is a `why`."""
        if why:
            self.files = [one for one in self.files if one.path not in names]
            self.unread += [UnreadFile(name, why) for name in sorted(names)]

    def fail(self, name: str, kind: str, error: DataError) -> None:
        """Note why a file cannot be read."""
        from trainwarden.formats.dumps.flight_recorder import rank_of

        self.errors.append(error)
        self.unread.append(UnreadFile(name, str(error).removeprefix(f"{name}: ").removeprefix(f"{name} ")))
        rank = rank_of(name.rsplit("/", 1)[-1])
        if kind == "flight recorder" and rank is not None:
            self.broken[rank] = str(error)
