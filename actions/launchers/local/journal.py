"""RUN_DIR/launcher.json: what the local launcher has been asked and what became of it, through kills and restarts.

An operation is in it before the launcher answers that it was accepted. So whoever asks again is told how far it is,
and a launcher that was killed knows on its next start what it had promised. The client reads it too, once the launcher
is gone.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

import msgspec

from trainwarden import rundir
from trainwarden.actions.launchers.local.ranks import LocalJob
from trainwarden.launching import MAX_SENTENCE_CHARS, Findings, Operation, Progress, Report
from trainwarden.state import load_json, save_json

log = logging.getLogger("trainwarden.supervisor")

KEPT_OPERATIONS = 1000  # one forgotten is refused as stale: the generation has risen a thousand times since
CUT_SHORT = "the launcher was ended before it was done"


class Entry(msgspec.Struct, omit_defaults=True):
    """One accepted operation."""

    state: Progress
    text: str = ""
    findings: Findings | None = None


class Kept(msgspec.Struct, kw_only=True):
    """The whole file."""

    job: str = ""
    pid: int = 0
    attempt: int = -1
    generation: int = 0
    ranks: int = 0
    operations: dict[str, Entry] = msgspec.field(default_factory=dict)


def read(run_dir: Path) -> Kept:
    """What a launcher has kept in `run_dir`; an empty record if there is none or it is damaged."""
    try:
        return msgspec.convert(load_json(run_dir / rundir.LAUNCHER_STATE) or {}, Kept)
    except msgspec.ValidationError:
        return Kept()


def report(kept: Kept, operation: str) -> Report:
    """How far `operation` is by `kept`."""
    entry = kept.operations.get(operation, Entry("unknown"))
    return Report(operation=operation, state=entry.state, text=entry.text, findings=entry.findings)


class Journal:
    """The file of the launcher that runs now; making one is a new life of it, with a new attempt and generation.

    Parameters
    ----------
    put : str or None
        Id of the operation whose plan is in force: that one was done, even if it was not noted any more.
    """

    def __init__(self, place: LocalJob, put: str | None) -> None:
        self._path = place.run_dir / rundir.LAUNCHER_STATE
        self._kept = read(place.run_dir)
        self._kept.job, self._kept.pid, self._kept.ranks = place.job, os.getpid(), place.ranks
        self._kept.attempt += 1
        self._kept.generation += 1
        for name, entry in self._kept.operations.items():
            if entry.state not in ("done", "failed"):
                done = name == put
                entry.state, entry.text = ("done", "") if done else ("failed", CUT_SHORT)

    @property
    def attempt(self) -> int:
        """Number of this start of the ranks, from 0."""
        return self._kept.attempt

    @property
    def generation(self) -> int:
        """Rises with every accepted operation and every life of the launcher."""
        return self._kept.generation

    @property
    def under_way(self) -> tuple[str, ...]:
        """Ids of accepted operations without an end, oldest first."""
        return tuple(name for name, entry in self._kept.operations.items() if entry.state in ("accepted", "running"))

    def report(self, operation: str) -> Report:
        """How far `operation` is."""
        return report(self._kept, operation)

    def accept(self, operation: Operation) -> None:
        """Promise to carry `operation` out; kept before the answer goes out."""
        self._kept.generation += 1
        self._kept.operations[operation.id] = Entry("accepted")
        self.save()

    def running(self, operation: Operation, text: str) -> None:
        """Note that `operation` has begun; not worth a write of its own."""
        self._kept.operations[operation.id] = Entry("running", text)

    def end(self, operation: str, error: str | None = None, findings: Findings | None = None) -> None:
        """Note for good that `operation` is done, with what it found, or that it failed for the reason `error`."""
        entry = Entry("done", findings=findings) if error is None else Entry("failed", error[:MAX_SENTENCE_CHARS])
        self._kept.operations[operation] = entry
        self.save()

    def new_attempt(self) -> int:
        """Number of the start of ranks that comes now."""
        self._kept.attempt += 1
        return self._kept.attempt

    def save(self) -> None:
        """Write it durably. A full disk must not end the job; only a launcher after this one would miss it."""
        operations = self._kept.operations
        ended = [name for name, entry in operations.items() if entry.state in ("done", "failed")]
        for name in ended[: max(0, len(operations) - KEPT_OPERATIONS)]:
            del operations[name]
        try:
            save_json(self._path, self._kept)
        except OSError as error:
            log.error("state not kept", extra={"fields": {"error": str(error)}})
