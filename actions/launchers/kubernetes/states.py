"""Kubernetes' states in the words of launchers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from trainwarden.actions.launchers.kubernetes.jobs import Job
from trainwarden.actions.launchers.kubernetes.note import Entry, Note, Stage
from trainwarden.actions.launchers.kubernetes.objects import Pod
from trainwarden.launching import JobPhase, Operation, Verb

# A job that is made anew under its name was born later, and nobody does a million things to one job.
GENERATIONS_OF_A_JOB: Final = 1_000_000
MOVING: Final = ("suspend", "empty", "run")
_FIRST: Final[dict[Verb, Stage]] = {
    "restart": "suspend", "evict": "cordon", "cordon": "cordon", "uncordon": "uncordon", "stop": "stop",
}  # fmt: skip


def generation(job: Job, note: Note) -> int:
    """The job's generation: of its birth, of what was done to it, of others' changes and of restarts by itself."""
    born = job.metadata.creation_timestamp
    others = max(0, job.metadata.generation - note.own) + job.restarts
    return (int(born.timestamp()) if born else 0) * GENERATIONS_OF_A_JOB + note.accepted + others


def phase(job: Job, note: Note, pods: Sequence[Pod]) -> JobPhase:
    """The job's phase."""
    stages = {entry.stage for entry in note.under_way}
    if job.ended:
        return "ended"
    if "stop" in stages:
        return "stopping"
    if stages & set(MOVING):
        return "restarting"
    if job.suspended:
        stopped = bool(note.entries) and (note.entries[-1].kind, note.entries[-1].stage) == ("stop", "done")
        return "ended" if stopped else "paused"
    running = sum(pod.runs for pod in pods)
    if running >= job.pods:
        return "running"
    return "failed" if any(pod.status.phase == "Failed" for pod in pods) else "pending"


def entry_of(operation: Operation, why: str) -> Entry:
    """What is noted of `operation` once it is accepted."""
    return Entry(
        id=operation.id, kind=operation.kind, stage=_FIRST[operation.kind], nodes=operation.targets.nodes, why=why
    )


def dry(operation: Operation, job: Job) -> str:
    """What would be done if this were no dry run."""
    nodes = ", ".join(operation.targets.nodes)
    does = {
        "restart": f"suspend and resume {job.called}",
        "stop": f"suspend {job.called}",
        "cordon": f"cordon {nodes}",
        "uncordon": f"uncordon {nodes}",
        "evict": f"cordon {nodes} and, if {job.called} has pods there, to "
        + ("suspend and resume it" if job.gang else "evict these"),
    }[operation.kind]
    return f"this is a dry run: nothing was done; else Kubernetes would be asked to {does}"
