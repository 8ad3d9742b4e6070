"""The Slurm launcher's plug-in: jobs requeued, stopped and moved off nodes by Slurm's own commands.

What was accepted stands in the job's comment (`note`) before anything is done; nothing is kept here. So engines on
several machines, restarted or not, tell the same, and Slurm itself keeps it through a restart of its controller.

Whom Slurm lets drain nodes: root, SlurmUser, and users whose AdminLevel is Administrator.

Slurm's states in the words of launchers, and an operation in those of Slurm.
"""

from __future__ import annotations

import os
import pwd
import re
import threading
from collections.abc import Collection, Sequence
from typing import Annotated, Final

import msgspec

from trainwarden.actions.launchers.slurm.answers import ENDED, FAILED, RUNS, WAITS, SlurmJob
from trainwarden.actions.launchers.slurm.commands import Commands
from trainwarden.actions.launchers.slurm.note import MAX_ID_CHARS, Entry, Note, Stage
from trainwarden.actions.launchers.slurm.saving import JobCheckpoints, SavePlan, Saving
from trainwarden.actions.launchers.slurm.steps import Steps, not_ours
from trainwarden.errors import LauncherError, LauncherUnavailable
from trainwarden.launching import (
    NODE_VERBS,
    Capabilities,
    JobPhase,
    LauncherState,
    NodeState,
    Operation,
    Report,
    Targets,
    Verb,
    refusal,
    refused,
)
from trainwarden.protocols import Scope
from trainwarden.settings import Config, PositiveSeconds

# Job ids rise, so a new job of a name never has an old one's generation; no job gets a million operations.
GENERATIONS_OF_A_JOB: Final = 1_000_000
ALONE: Final[frozenset[Verb]] = frozenset({"cordon", "uncordon"})  # what is done to nodes and to no job
_FIRST: Final[dict[Verb, Stage]] = {"evict": "drain", "cordon": "drain", "uncordon": "resume", "checkpoint": "signal"}
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
    moving = [entry for entry in note.under_way if entry.kind != "stop" and entry.stage == "move"]
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
    if operation.kind == "restart":
        return bool(job.states & (RUNS | FAILED))
    if operation.kind == "evict":
        return bool(job.states & FAILED) or (
            bool(job.states & RUNS) and not set(on).isdisjoint(operation.targets.nodes)
        )
    return False


def entry_of(operation: Operation, job: SlurmJob, note: Note, on: Collection[str]) -> Entry:
    """What is noted of `operation` once it is accepted. A requeue that is under way serves it as well."""
    coming = max((entry.restarts for entry in note.under_way if entry.stage == "move"), default=0)
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
    elif entry.restarts > job.restarts:
        does = f"requeue Slurm job {job.id}"
    else:
        does = f"leave Slurm job {job.id}, which is {job.state}"
    if entry.kind == "evict":
        does = f"drain {', '.join(entry.nodes)}, {does} and let it exclude {'it' if len(entry.nodes) == 1 else 'them'}"
    return f"this is a dry run: nothing was done; else Slurm would be asked to {does}"


def no_right_to_drain(commands: Commands) -> str | None:
    """None if this user may drain nodes, else one sentence why not.

    Raises
    ------
    LauncherUnavailable
        If nobody answers.
    LauncherError
        If Slurm does not say who may.
    """
    said = commands.run("scontrol", "show", "config")
    owner = re.search(r"^SlurmUser\s*= (\S+)\((\d+)\)", said, re.MULTILINE)
    uid = os.geteuid()
    if uid == 0 or (owner is not None and int(owner[2]) == uid):
        return None
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        name = str(uid)
    if re.search(r"^AccountingStorageType\s*= accounting_storage/slurmdbd", said, re.MULTILINE):
        words = ("--noheader", "--parsable2", "show", "user", name, "format=AdminLevel")
        if commands.run("sacctmgr", *words).strip() == "Administrator":
            return None
    others = ["root", owner[1] if owner is not None else "SlurmUser"]
    who = ", ".join(dict.fromkeys(others))
    return f"user {name} may not drain nodes: Slurm lets {who} and users of AdminLevel Administrator"


CAN: Final[frozenset[Verb]] = frozenset({"restart", "stop", "checkpoint", "evict", "cordon", "uncordon"})
CANNOT: Final[dict[Verb, str]] = {
    "rebalance": "Slurm has no part in how a job splits its micro-batches",
    "move": "Slurm chooses the places of a job's ranks itself; a person must",
    "pause": "this launcher does not suspend Slurm jobs: their silence would be taken for a hang",
    "resume": "this launcher resumes no Slurm job, as it never suspends one",
    "replace": "an eviction lets Slurm choose the nodes that replace others",
}
_NO_CHECKPOINTS: Final = "launcher_settings.checkpoints names no job's folder, and the signal at which its script saves"
_UNSURE: Final = "it is not known whether the signal was sent, and it is not sent twice"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")


class SlurmConfig(Config, frozen=True, kw_only=True):
    """Which job is which: a job is found in Slurm by its name, unless `jobs` gives its number.

    `checkpoints` are of jobs whose scripts save at a signal.
    `ranks_per_node` says that ranks lie on nodes in the order of SLURM_NODEID, so many on each; without it nobody knows
    where ranks are. `timeout_s` is for one of Slurm's commands. `slurm_conf` is its file and `programs` its folder of
    commands, where these are not in their places. With `dry_run` all is checked and nothing is done.
    """

    jobs: dict[str, Annotated[int, msgspec.Meta(ge=1)]] = msgspec.field(default_factory=dict)
    ranks_per_node: Annotated[int, msgspec.Meta(ge=1, le=1024)] | None = None
    timeout_s: PositiveSeconds = 5.0
    slurm_conf: str | None = None
    programs: str | None = None
    checkpoints: dict[str, JobCheckpoints] = msgspec.field(default_factory=dict)
    dry_run: bool = False


class _Seen(msgspec.Struct, frozen=True):
    """What Slurm last told of a job. It may not go back behind that."""

    id: int
    restarts: int
    note: Note


class SlurmLauncher:
    """Requeues, stops and evicts Slurm's batch jobs, and has them save checkpoints."""

    Config = SlurmConfig

    def __init__(self, config: SlurmConfig, scope: Scope) -> None:
        self._config = config
        self._commands = Commands(config.programs, config.slurm_conf, config.timeout_s)
        self._steps = Steps(self._commands)
        self._saving = Saving(self._commands, config.checkpoints)
        self._seen: dict[str, _Seen] = {}
        self._lock = threading.Lock()

    @property
    def job(self) -> None:
        """Slurm runs many jobs."""
        return None

    def capabilities(self) -> Capabilities:
        """See `trainwarden.launching.Launcher.capabilities`. Who may not drain nodes cannot evict, nor resume them."""
        no = no_right_to_drain(self._commands)
        denied = {verb: no for verb in CAN & NODE_VERBS if no}
        if not self._config.checkpoints:
            denied["checkpoint"] = _NO_CHECKPOINTS
        return Capabilities(can=CAN - denied.keys(), cannot={**CANNOT, **denied})

    def state(self, job: str) -> LauncherState:
        """See `trainwarden.launching.Launcher.state`."""
        with self._lock, self._commands.about(job):
            found, note = self._look(job)
            nodes = self._node_states(found)
        now = phase(found, note)
        ranks = [rank for node in nodes for rank in node.ranks]
        return LauncherState(
            job=job,
            phase=now,
            generation=generation(found, note),
            attempt=found.restarts,
            nodes=nodes,
            ranks_running=tuple(ranks) if now == "running" else (),
            under_way=() if found.finished else tuple(entry.id for entry in note.under_way),
        )

    def submit(self, operation: Operation) -> Report:
        """See `trainwarden.launching.Launcher.submit`."""
        with self._lock, self._commands.about(operation.job):
            try:
                found, note = self._look(operation.job)
            except LauncherUnavailable:
                raise
            except LauncherError as error:
                return refused(operation, "unknown_job", str(error))
            if (known := note.find(operation.id)) is not None:
                return self._go_on(operation.job, found, note, known)
            return self._begin(operation, found, note)

    def poll(self, job: str, operation: str) -> Report:
        """See `trainwarden.launching.Launcher.poll`. Each look takes the steps that are due."""
        with self._lock, self._commands.about(job):
            found, note = self._look(job)
            entry = note.find(operation)
            if entry is None:
                return Report(operation=operation, state="unknown")
            return self._go_on(job, found, note, entry)

    # --- what is true ------------------------------------------------------------------------------------------------

    def _look(self, name: str) -> tuple[SlurmJob, Note]:
        """The job and its note. An answer from before what was seen already is none: a stale controller's."""
        job = self._commands.job(self._number(name))
        note, seen = Note.of(job.comment), self._seen.get(name)
        if seen is not None and job.id == seen.id:
            if job.restarts < seen.restarts:
                told = f"job {job.id} was requeued {seen.restarts} times before, {job.restarts} times now"
                raise LauncherUnavailable(f"Slurm answers with an older state: {told}")
            if note.changes < seen.note.changes:
                # Overwritten, or forgotten by a controller that was killed; then it has forgotten drains as well.
                note = seen.note.from_the_start()
        self._seen[name] = _Seen(job.id, job.restarts, note)
        return job, note

    def _number(self, name: str) -> int:
        if (given := self._config.jobs.get(name)) is not None:
            return given
        if not _NAME.fullmatch(name):
            raise LauncherError(f"'{name[:80]}' is no name of a job in Slurm")
        found = self._commands.numbers(name)
        live = [number for number, state in found if state not in ENDED | FAILED]
        if len(live) > 1:
            which = ", ".join(map(str, live[:5]))
            raise LauncherError(f"Slurm jobs {which} are all named {name}: say which in launcher_settings.jobs")
        if not found:
            raise LauncherError(f"Slurm knows no job named {name}; a job that ended is forgotten after MinJobAge")
        return live[0] if live else max(number for number, _ in found)

    def _node_states(self, job: SlurmJob) -> tuple[NodeState, ...]:
        each = self._config.ranks_per_node or 0
        return tuple(
            NodeState(
                node=node.name,
                state="cordoned" if node.out else "lost" if node.down else "healthy",
                ranks=tuple(range(place * each, (place + 1) * each)),
                why=node.reason[:500],
            )
            for place, node in enumerate(self._commands.nodes(job.nodes))
        )

    # --- operations --------------------------------------------------------------------------------------------------

    def _begin(self, operation: Operation, job: SlurmJob, note: Note) -> Report:
        """Note what is asked and take its first steps, or refuse it."""
        if (no := refusal(operation, self.capabilities(), generation(job, note))) is not None:
            return no
        alone = operation.kind in ALONE
        if job.states & ENDED and not alone:
            return refused(operation, "over", f"Slurm job {job.id} has ended as {job.state}")
        on = self._commands.names(job.nodes)
        if operation.kind in NODE_VERBS:
            nodes = self._nodes(operation.targets.nodes)
            if isinstance(nodes, str):
                return refused(operation, "unknown_target", nodes)
            operation = msgspec.structs.replace(operation, targets=Targets(nodes=nodes))
        if (no := self._refusal(operation, job, on)) is not None:
            return no
        if "COMPLETING" in job.states and not alone and all(entry.stage != "move" for entry in note.under_way):
            raise LauncherUnavailable(f"Slurm job {job.id} is ending; what it will be then is not known yet")
        entry = entry_of(operation, job, note, on)
        if self._config.dry_run:
            return refused(operation, "unsupported", dry(entry, job))
        if operation.kind == "checkpoint":
            return self._save(operation, job, note, entry)
        if job.finished:
            return (self._alone if alone else self._revive)(operation, job, note.closed(job.state), entry)
        return self._accept(operation, job, note.accept(entry, job.restarts), entry)

    def _accept(
        self, operation: Operation, job: SlurmJob, after: Note, entry: Entry, plan: SavePlan | None = None
    ) -> Report:
        """Note `entry`, in `after`, and take its first steps."""
        if after.written(job.comment) is None:
            return refused(operation, "unfit", f"the comment of Slurm job {job.id} has no room for our note")
        self._keep(operation.job, job, after)
        if plan is not None:
            entry = self._send(job, plan, entry)
            after = after.put(entry, job.restarts)
            self._keep(operation.job, job, after)
        return self._go_on(operation.job, job, after, entry, operation.why)

    def _save(self, operation: Operation, job: SlurmJob, note: Note, entry: Entry) -> Report:
        """Ask for a checkpoint, where one would be seen and the signal ends no task."""
        plan = self._saving.plan(operation.job, job)
        if isinstance(plan, str):
            return refused(operation, "unfit", plan)
        entry = msgspec.structs.replace(entry, until=plan.until)
        return self._accept(operation, job, note.accept(entry, job.restarts), entry, plan)

    def _send(self, job: SlurmJob, plan: SavePlan, entry: Entry) -> Entry:
        """`entry` once the signal was sent. This happens here alone: whoever finds it noted and not sent knows no more.

        Raises
        ------
        LauncherUnavailable
            If nobody says whether it was sent.
        """
        try:
            self._saving.send(job, plan)
        except LauncherUnavailable:
            raise
        except LauncherError as error:
            return entry.end(str(error))
        return msgspec.structs.replace(entry, stage="save")

    def _revive(self, operation: Operation, job: SlurmJob, note: Note, entry: Entry) -> Report:
        """Requeue a job that has failed. Slurm takes no note of one, so that is written while it waits again.

        It is not held: whoever is killed between the two leaves a job that goes on by itself.
        """
        try:
            after = self._steps.revive(job, entry, operation.why)
        except LauncherUnavailable:
            raise
        except LauncherError as error:
            return Report(operation=operation.id, state="failed", text=str(error))
        kept = note.accept(after, job.restarts)
        self._seen[operation.job] = _Seen(job.id, job.restarts, kept)
        job = self._commands.job(job.id)
        self._keep(operation.job, job, kept)
        return after.report(f"Slurm job {job.id} is requeued")

    def _alone(self, operation: Operation, job: SlurmJob, note: Note, entry: Entry) -> Report:
        """Drain or resume nodes for a job that has ended, which takes no note: the nodes' own states tell."""
        try:
            after = self._steps.alone(entry, operation.why)
        except LauncherUnavailable:
            raise
        except LauncherError as error:
            return Report(operation=operation.id, state="failed", text=str(error))
        self._seen[operation.job] = _Seen(job.id, job.restarts, note.accept(after, job.restarts))
        return after.report()

    def _refusal(self, operation: Operation, job: SlurmJob, on: Sequence[str]) -> Report | None:
        if operation.kind == "uncordon":
            nodes = self._commands.nodes(",".join(operation.targets.nodes))
            if (whose := next(filter(None, map(not_ours, nodes)), None)) is not None:
                return refused(operation, "unfit", whose)
        if len(operation.id) > MAX_ID_CHARS:
            return refused(operation, "unfit", f"an id may have {MAX_ID_CHARS} characters here")
        if (ranks := operation.targets.ranks) is not None:
            total = len(on) * (self._config.ranks_per_node or 0)
            if total and (wrong := [rank for rank in ranks if rank >= total]):
                return refused(operation, "unknown_target", f"rank {wrong[0]} is not one of the job's {total}")
            return refused(operation, "unfit", "Slurm requeues whole jobs, not single ranks")
        if must_requeue(operation, job, on) and not job.requeueable:
            why_not = f"Slurm job {job.id} was submitted with --no-requeue, or is no batch job; a person must"
            return refused(operation, "unfit", why_not)
        return None

    def _nodes(self, names: Sequence[str]) -> tuple[str, ...] | str:
        """The nodes as Slurm names them, or one sentence on what is wrong. A list, or Slurm's word ALL, is no name.

        Agents go by their host's name, which may have the domain in it.
        """
        found = []
        for name in names:
            for known in dict.fromkeys((name, name.partition(".")[0])):
                if not _NAME.fullmatch(known) or known.upper() == "ALL":
                    return f"'{name[:80]}' is no name of a node"
                try:
                    found += [node.name for node in self._commands.nodes(known)]
                    break
                except LauncherUnavailable:
                    raise
                except LauncherError:
                    continue
            else:
                return f"Slurm knows no node {name}"
        return tuple(found) or "no node was named"

    def _go_on(self, name: str, job: SlurmJob, note: Note, entry: Entry, why: str = "") -> Report:
        """Take the steps that are due, as far as they go at this look."""
        text = ""
        while not entry.ended:
            if entry.stage == "signal":
                after, text = entry.end(_UNSURE), ""
            elif entry.stage == "save":
                after, text = self._saving.go_on(name, job, entry)
            else:
                after, text = self._steps.go_on(job, entry, why)
            if after == entry:
                break
            entry, note = after, note.put(after, job.restarts)
            self._keep(name, job, note)
        return entry.report(text)

    def _keep(self, name: str, job: SlurmJob, note: Note) -> None:
        """Write the note into the job's comment, behind what a person wrote there.

        One that has ended takes none; how its operations ended then follows from how it ended itself.
        """
        text = note.written(job.comment)
        if text is not None and not job.finished:
            try:
                self._commands.run("scontrol", "update", f"JobId={job.id}", f"Comment={text}")
            except LauncherUnavailable:
                raise
            except LauncherError:
                fresh = self._commands.job(job.id)
                if not fresh.finished and "COMPLETING" not in fresh.states:
                    raise
        self._seen[name] = _Seen(job.id, job.restarts, note)
