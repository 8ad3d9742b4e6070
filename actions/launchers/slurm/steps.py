"""What an operation does to a Slurm job, step by step: each step is due by what is true now, not by what was asked.

An eviction drains the nodes, requeues the job held, puts them on the list of nodes that the job does not want, and
lets it go. A step that was lost in a kill or a time-out is taken at the next look; one that was taken is not due again.
"""

from __future__ import annotations

from typing import Final

from trainwarden.actions.launchers.slurm.answers import ENDED, FAILED, WAITS, SlurmJob, SlurmNode
from trainwarden.actions.launchers.slurm.commands import Commands
from trainwarden.actions.launchers.slurm.note import Entry
from trainwarden.errors import LauncherError, LauncherUnavailable

OURS: Final = "trainwarden:"
_SLURMS_OWN: Final = ("", "Not responding", "Node unexpectedly rebooted")  # reasons of a node that is merely lost
_MAX_REASON_CHARS: Final = 200


class Steps:
    """Takes the steps of operations."""

    def __init__(self, commands: Commands) -> None:
        self._commands = commands

    def go_on(self, job: SlurmJob, entry: Entry, why: str = "") -> tuple[Entry, str]:
        """One look: the operation as it then is, and how far that is in words.

        Raises
        ------
        LauncherUnavailable
            If Slurm is away in the midst of it. The next look goes on.
        """
        try:
            if entry.kind == "stop":
                return self._stop(job, entry)
            if entry.stage == "drain":
                return self._drain(entry, why), "its nodes are drained"
            if entry.stage == "resume":
                return self._resume(entry), ""
            return self._move(job, entry)
        except LauncherUnavailable:
            raise
        except LauncherError as error:
            return entry.end(str(error)), ""

    def revive(self, job: SlurmJob, entry: Entry, why: str) -> Entry:
        """Requeue a job that has failed, its nodes drained first; `entry` as it then is.

        Raises
        ------
        LauncherError
            If Slurm refuses, or is away.
        """
        if entry.kind == "stop":
            return entry.end()
        if entry.stage == "drain":
            entry = self._drain(entry, why)
        self._commands.run("scontrol", "requeue", str(job.id))
        return entry

    def alone(self, entry: Entry, why: str) -> Entry:
        """A cordon or its end, whatever is true of the job.

        Raises
        ------
        LauncherError
            If Slurm refuses, or is away.
        """
        return self._drain(entry, why) if entry.stage == "drain" else self._resume(entry)

    def _stop(self, job: SlurmJob, entry: Entry) -> tuple[Entry, str]:
        if job.finished:
            return entry.end(), ""
        if "COMPLETING" not in job.states:
            self._commands.run("scancel", str(job.id))
        return entry, f"Slurm job {job.id} is {job.state}"

    def _drain(self, entry: Entry, why: str) -> Entry:
        """Take the nodes out of service; one that is out already is let be, with whatever reason a person gave."""
        nodes = self._commands.nodes(",".join(entry.nodes))
        left = [f"{node.name} is out already ({node.reason or 'no reason given'})" for node in nodes if _kept_out(node)]
        for node in nodes:
            if not _kept_out(node):
                self._commands.run(
                    "scontrol", "update", f"NodeName={node.name}", "State=DRAIN", f"Reason={reason(entry.id, why)}"
                )
        if entry.kind == "cordon":
            return Entry(id=entry.id, kind=entry.kind, stage="done", why="; ".join(left))
        return Entry(id=entry.id, kind=entry.kind, stage="move", restarts=entry.restarts, nodes=entry.nodes)

    def _resume(self, entry: Entry) -> Entry:
        """Put nodes back that are out for a reason of ours; one that a person keeps out meanwhile is let be."""
        for node in self._commands.nodes(",".join(entry.nodes)):
            if node.out and not_ours(node) is None:
                self._commands.run("scontrol", "update", f"NodeName={node.name}", "State=RESUME")
        return entry.end()

    def _move(self, job: SlurmJob, entry: Entry) -> tuple[Entry, str]:
        """The job requeued, kept off the nodes, let go, and seen running again."""
        if job.states & ENDED:
            gone = f"Slurm job {job.id} ended as {job.state}"
            # The nodes are out all the same, and there is nothing left to take off them.
            return entry.end(None if entry.kind == "evict" else gone), gone
        if "COMPLETING" in job.states:
            return entry, f"Slurm job {job.id} is ending on {job.nodes or 'its nodes'}"
        if job.restarts < entry.restarts:
            return self._requeue(job, entry)
        if job.states & WAITS or "CONFIGURING" in job.states:
            return entry, self._let_go(job, entry)
        if job.states & FAILED:
            return entry.end(f"Slurm job {job.id} ended as {job.state} before it was seen running again"), ""
        if still := set(entry.nodes) & set(self._commands.names(job.nodes)):
            return entry.end(f"Slurm job {job.id} runs on {', '.join(sorted(still))} again"), ""
        return entry.end(), ""

    def _requeue(self, job: SlurmJob, entry: Entry) -> tuple[Entry, str]:
        try:
            self._commands.run("scontrol", "requeuehold" if entry.kind == "evict" else "requeue", str(job.id))
        except LauncherUnavailable:
            raise
        except LauncherError:
            # Somebody was quicker: another engine with the same operation, a person, or Slurm itself.
            if self._commands.job(job.id).restarts <= job.restarts:
                raise
        return entry, f"Slurm job {job.id} is requeued"

    def _let_go(self, job: SlurmJob, entry: Entry) -> str:
        """Keep the job off the nodes; release it if it is held by this operation's requeue, and by nothing else."""
        told = f"Slurm job {job.id} waits" + (f" ({job.why})" if job.why not in ("", "None") else "")
        if entry.kind != "evict":
            return told
        listed = self._commands.names(job.excluded)
        if missing := [node for node in entry.nodes if node not in listed]:
            try:
                wanted = ",".join([*listed, *missing])
                self._commands.run("scontrol", "update", f"JobId={job.id}", f"ExcNodeList={wanted}")
            except LauncherUnavailable:
                raise
            except LauncherError as error:  # drained they are all the same, and a job that stays held helps nobody
                told += f"; {', '.join(missing)} could not be excluded ({error})"
        if job.held and job.restarts == entry.restarts:
            self._commands.run("scontrol", "release", str(job.id))
        return told


def reason(operation: str, why: str) -> str:
    """The reason of a drain: whose it is, and what for.

    Examples
    --------
    >>> reason("i1/evict/1", 'gpu_lost: GPU 3\\nfell "off"')
    'trainwarden:i1/evict/1 gpu_lost: GPU 3 fell off'
    """
    words = "".join(letter if letter.isprintable() and letter != '"' else " " for letter in f"{operation} {why}")
    return f"{OURS}{' '.join(words.replace('  ', ' ').split())}"[:_MAX_REASON_CHARS]


def not_ours(node: SlurmNode) -> str | None:
    """Why a node may not be resumed here; None if it may."""
    if not node.out or node.reason.startswith(OURS):
        return None
    whose = f"{node.name} is out for another reason ({node.reason or 'none given'})"
    return f"{whose}: whoever did so runs scontrol update NodeName={node.name} State=RESUME"


def _kept_out(node: SlurmNode) -> bool:
    """Whether Slurm or a person keeps it out already; a node that is merely lost would come back by itself."""
    return node.out or ("DOWN" in node.states and node.reason not in _SLURMS_OWN)
