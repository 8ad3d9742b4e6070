"""Slurm's states in the words of launchers, and an operation in those of Slurm."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from trainwarden.actions.launchers.slurm.answers import ENDED, FAILED, RUNS, WAITS, SlurmJob
from trainwarden.actions.launchers.slurm.note import Entry, Note, Stage
from trainwarden.launching import NODE_VERBS, JobPhase, Operation, Verb

# Job ids rise, so a new job of a name never has an old one's generation; no job gets a million operations.
GENERATIONS_OF_A_JOB: Final = 1_000_000
ALONE: Final[frozenset[Verb]] = frozenset({"cordon", "uncordon"})  # what is done to nodes and to no job
_FIRST: Final[dict[Verb, Stage]] = {
    "evict": "drain", "cordon": "drain", "uncordon": "resume", "checkpoint": "signal", "validate": "reserve",
}  # fmt: skip
MOVES: Final = frozenset({"move", "reserve", "measure", "judge"})  # stages of what requeues a job
_NO_REQUEUE: Final[frozenset[Verb]] = ALONE | {"checkpoint"}


def generation(job: SlurmJob, note: Note) -> int:
    """The job's generation: of its number, of what was done to it, and of others' requeues."""
    return job.id * GENERATIONS_OF_A_JOB + note.generation(job.restarts)


def phase(job: SlurmJob, note: Note) -> JobPhase:
    """The job's phase. While it is completing, what it will be then is not always told: nothing is done meanwhile.

    Examples
    --------
    >>> phase(SlurmJob(id=1, states=frozenset({"NODE_FAIL"}), requeueable=True), Note())
    'failed'
    >>> phase(SlurmJob(id=1, states=frozenset({"NODE_FAIL"})), Note())
    'ended'
    """
    moving = [entry for entry in note.under_way if entry.kind != "stop" and entry.stage in MOVES]
    if "COMPLETING" in job.states:
        return "stopping" if any(entry.kind == "stop" for entry in note.under_way) else "restarting"
    if job.states & ENDED:
        return "ended"
    if any(entry.restarts > job.restarts for entry in moving):
        return "restarting"
    if job.states & FAILED:
        return "failed" if job.requeueable else "ended"
    if job.states & WAITS or "CONFIGURING" in job.states:
        return "restarting" if moving else "pending"
    if job.states & {"SUSPENDED", "STOPPED"}:
        return "paused"
    return "running"


def must_requeue(operation: Operation, job: SlurmJob, on: Collection[str]) -> bool:
    """Whether `operation` takes a requeue of `job`, which lies on the nodes `on`; one that waits needs none."""
    if operation.kind in ("restart", "validate"):
        return bool(job.states & (RUNS | FAILED))
    if operation.kind == "evict":
        return bool(job.states & FAILED) or (
            bool(job.states & RUNS) and not set(on).isdisjoint(operation.targets.nodes)
        )
    return False


def entry_of(operation: Operation, job: SlurmJob, note: Note, on: Collection[str]) -> Entry:
    """What is noted of `operation` once it is accepted. A requeue that is under way serves it as well."""
    coming = max((entry.restarts for entry in note.under_way if entry.stage in MOVES), default=0)
    restarts = job.restarts
    if must_requeue(operation, job, on) or "COMPLETING" in job.states:
        restarts = coming if coming > job.restarts or "COMPLETING" in job.states else job.restarts + 1
    return Entry(
        id=operation.id,
        kind=operation.kind,
        stage=_FIRST.get(operation.kind, "move"),
        restarts=job.restarts if operation.kind in _NO_REQUEUE else restarts,
        nodes=operation.targets.nodes if operation.kind in NODE_VERBS else (),
    )


def dry(entry: Entry, job: SlurmJob) -> str:
    """What would be done if this were no dry run."""
    if entry.kind in ALONE:
        does = f"{entry.stage} {', '.join(entry.nodes)}"
    elif entry.kind == "stop":
        does = f"cancel Slurm job {job.id}"
    elif entry.kind == "checkpoint":
        does = f"send the signal of checkpoints to Slurm job {job.id}"
    elif entry.kind == "validate":
        does = f"reserve {job.nodes}, requeue Slurm job {job.id} and measure them meanwhile"
    elif entry.restarts > job.restarts:
        does = f"requeue Slurm job {job.id}"
    else:
        does = f"leave Slurm job {job.id}, which is {job.state}"
    if entry.kind == "evict":
        does = f"drain {', '.join(entry.nodes)}, {does} and let it exclude {'it' if len(entry.nodes) == 1 else 'them'}"
    return f"this is a dry run: nothing was done; else Slurm would be asked to {does}"
