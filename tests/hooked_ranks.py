"""Ranks of one node as a collector sees them: a run folder with the files of real hooks, all of this very process."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.doubles import ManualClock
from trainwarden import hook
from trainwarden.protocols import Scope
from trainwarden.records import EventRecord, Record
from trainwarden.topics import EVENTS


class HookedRanks:
    """The run folder, and the hooks that were made in it."""

    def __init__(self, folder: Path) -> None:
        self.run_dir = folder
        self.hooks = folder / "hook"
        self.hooks.mkdir()
        self.clock = ManualClock(0.0)
        self.scope = Scope(job="job", node="n0", run_dir=str(folder))
        self.made: list[hook.Hook] = []

    def join(self, rank: int, environ: pytest.MonkeyPatch) -> hook.Hook:
        """The hook of one more rank, of four."""
        environ.setenv("RANK", str(rank))
        environ.setenv("WORLD_SIZE", "4")
        built = hook.Hook(str(self.hooks))
        built.missing = []
        built.open()
        built.thread.owner = threading.get_ident()
        self.made.append(built)
        return built

    def now_s(self) -> float:
        """When the ranks moved last, by their hooks."""
        headers = [hook.read_header(built.memory.path + ".hook") for built in self.made]
        return max(max(header.phase_since_s, header.step_end_s or 0.0) for header in headers if header)


def sent(found: Iterable[Record]) -> list[EventRecord]:
    """The events among what was `found`, all of which survive their way over the bus."""
    records = list(found)
    for record in records:
        assert EVENTS.decode(EVENTS.encode(record)) == record
    return [record for record in records if isinstance(record, EventRecord)]
