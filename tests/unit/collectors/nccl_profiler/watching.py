"""A rank with its files of calls, and the collector over it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from tests.doubles import ManualClock
from tests.hook_doubles import write_header
from tests.nccl_files import CallsFileWriter
from trainwarden import hook
from trainwarden.collectors.nccl_profiler.collector import NcclCallsCollector
from trainwarden.protocols import Scope
from trainwarden.records import CollectivesRecord
from trainwarden.topics import COLLECTIVES


class Rank:
    """This very process as a rank, with its two files."""

    def __init__(self, run_dir: Path, rank: int = 3, pid: int | None = None) -> None:
        self.stem = run_dir / "hook" / f"rank-{rank}-{pid or os.getpid()}"
        write_header(self.stem.with_suffix(".hook"), pid or os.getpid())
        who = hook.read_header(self.stem.with_suffix(".hook"))
        assert who is not None
        self.who = who
        self.file = CallsFileWriter(self.stem.with_suffix(".nccl"), who)


class Watch:
    """A collector, asked every half second."""

    def __init__(self, run_dir: Path, **config: Any) -> None:
        self.run_dir, self.config = run_dir, config
        self.clock = ManualClock(1_000.0)
        self.collector = self.made()

    def made(self) -> NcclCallsCollector:
        scope = Scope(job="job", node="n0", run_dir=str(self.run_dir))
        return NcclCallsCollector(NcclCallsCollector.Config(**self.config), scope, self.clock)

    def restart(self) -> None:
        position = json.loads(json.dumps(self.collector.position()))
        self.collector.close()
        self.collector = self.made()
        self.collector.restore(position)

    def look(self, seconds: float = 0.5) -> list[CollectivesRecord]:
        records = []
        for _ in range(round(seconds / 0.5)):
            self.clock.sleep(0.5)
            records += list(self.collector.collect(self.clock.now_s()))
        assert all(isinstance(record, CollectivesRecord) for record in records)
        for record in records:
            assert COLLECTIVES.decode(COLLECTIVES.encode(record)) == record
        return records
