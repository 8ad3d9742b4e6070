"""Judges seeded folders and counts what was right."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.log_folders.writing import Truth, write
from trainwarden.detectors.recorded.facts import read_facts
from trainwarden.detectors.recorded.replay import replay
from trainwarden.formats.reading import read_job
from trainwarden.settings import DetectionSettings


@dataclass(frozen=True, slots=True)
class Answer:
    """What was found in one folder."""

    truth: Truth
    found: tuple[tuple[str, int | None], ...]

    @property
    def right(self) -> bool:
        """One incident of the right kind whose first suspect is the rank, or none where none is due."""
        if self.truth.kind is None:
            return not self.found
        return self.found == ((self.truth.kind, self.truth.rank),)


def answers(at: Path, seeds: range, *, healthy: bool) -> Iterator[Answer]:
    """Write, judge and remove the folder of each seed."""
    for seed in seeds:
        folder = at / f"job{seed}"
        truth = write(folder, seed, healthy=healthy)
        job = read_job(folder)
        incidents = replay(job, DetectionSettings(), facts=read_facts(job)).incidents
        shutil.rmtree(folder)
        found = ((one.kind, one.suspects[0].rank if one.suspects else None) for one in incidents)
        yield Answer(truth, tuple(found))
