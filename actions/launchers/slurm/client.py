"""The Slurm launcher's plug-in: jobs requeued, stopped and moved off nodes by Slurm's own commands.

What was accepted stands in the job's comment (`note`) before anything is done; nothing is kept here. So engines on
several machines, restarted or not, tell the same, and Slurm itself keeps it through a restart of its controller.

Whom Slurm lets drain nodes: root, SlurmUser, and users whose AdminLevel is Administrator.
"""

from __future__ import annotations

import os
import pwd
import re
import threading
from collections.abc import Sequence
from typing import Annotated, Final

import msgspec

from trainwarden.actions.launchers.slurm.answers import ENDED, FAILED, WAITS, SlurmJob
from trainwarden.actions.launchers.slurm.commands import Commands
from trainwarden.actions.launchers.slurm.note import MAX_ID_CHARS, Entry, Note
from trainwarden.actions.launchers.slurm.saving import JobCheckpoints, SavePlan, Saving
from trainwarden.actions.launchers.slurm.states import ALONE, MOVES, dry, entry_of, generation, must_requeue, phase
from trainwarden.actions.launchers.slurm.steps import Steps, not_ours
from trainwarden.actions.launchers.slurm.validating import ValidateConfig, Validating
from trainwarden.errors import LauncherError, LauncherUnavailable
from trainwarden.launching import (
    NODE_VERBS,
    Capabilities,
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


CAN: Final[frozenset[Verb]] = frozenset({"restart", "stop", "checkpoint", "validate", "evict", "cordon", "uncordon"})
CANNOT: Final[dict[Verb, str]] = {
    "rebalance": "Slurm has no part in how a job splits its micro-batches",
    "move": "Slurm chooses the places of a job's ranks itself; a person must",
    "pause": "this launcher does not suspend Slurm jobs: their silence would be taken for a hang",
    "resume": "this launcher resumes no Slurm job, as it never suspends one",
    "replace": "an eviction lets Slurm choose the nodes that replace others",
}
_NO_CHECKPOINTS: Final = "launcher_settings.checkpoints names no job's folder, and the signal at which its script saves"
_NO_VALIDATION: Final = "launcher_settings.validate and ranks_per_node do not say how nodes are measured with a restart"
_UNSURE: Final = "it is not known whether the signal was sent, and it is not sent twice"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")


class SlurmConfig(Config, frozen=True, kw_only=True):
    """Which job is which: a job is found in Slurm by its name, unless `jobs` gives its number.

    `checkpoints` are of jobs whose scripts save at a signal, `validate` says how nodes are measured with a restart.
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
    validate: ValidateConfig | None = None
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
        self._validating: Validating | None = None
        if config.validate is not None and config.ranks_per_node is not None:
            self._validating = Validating(self._commands, config.validate, config.ranks_per_node)
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
        if self._validating is None or no:
            denied["validate"] = (no or "").replace("drain", "reserve") or _NO_VALIDATION
        return Capabilities(can=CAN - denied.keys(), cannot={**CANNOT, **denied}, restarts_to_validate=True)

    def state(self, job: str) -> LauncherState:
        """See `trainwarden.launching.Launcher.state`."""
        with self._lock, self._commands.about(job):
            found, note = self._look(job)
            nodes = self._node_states(found, note)
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

    def _node_states(self, job: SlurmJob, note: Note) -> tuple[NodeState, ...]:
        """The nodes that the job is on; of one that waits since it was measured, those that it was measured on.

        Else no node could be taken out before it begins again, as nobody knows how many it would have left.
        """
        each = self._config.ranks_per_node or 0
        measured = [one.on for one in note.entries if one.kind == "validate" and one.restarts == job.restarts]
        on = job.nodes or (measured[-1] if measured and job.states & WAITS else "")
        return tuple(
            NodeState(
                node=node.name,
                state="cordoned" if node.out else "lost" if node.down else "healthy",
                ranks=tuple(range(place * each, (place + 1) * each)) if job.nodes else (),
                why=node.reason[:500],
            )
            for place, node in enumerate(self._commands.nodes(on))
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
        if "COMPLETING" in job.states and not alone and all(entry.stage not in MOVES for entry in note.under_way):
            raise LauncherUnavailable(f"Slurm job {job.id} is ending; what it will be then is not known yet")
        entry = entry_of(operation, job, note, on)
        if self._config.dry_run:
            return refused(operation, "unsupported", dry(entry, job))
        if operation.kind == "validate":
            return self._measure(operation, job, note, on, entry)
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

    def _measure(self, operation: Operation, job: SlurmJob, note: Note, on: Sequence[str], entry: Entry) -> Report:
        """Have the job's nodes measured while it is requeued, where that says something about them alone."""
        assert self._validating is not None  # else it was refused
        if any(other.stage in MOVES for other in note.under_way):
            return refused(operation, "unfit", f"Slurm job {job.id} is on its way for another operation")
        planned = self._validating.plan(operation, job, on, entry)
        if isinstance(planned, str):
            return refused(operation, "unfit", planned)
        return self._accept(operation, job, note.accept(planned, job.restarts), planned)

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
            after, text = self._step(name, job, entry, why)
            if after == entry:
                break
            entry, note = after, note.put(after, job.restarts)
            self._keep(name, job, note)
        report = entry.report(text)
        if report.state == "done" and entry.kind == "validate" and self._validating is not None:
            return msgspec.structs.replace(report, findings=self._validating.findings(job, entry))
        return report

    def _step(self, name: str, job: SlurmJob, entry: Entry, why: str) -> tuple[Entry, str]:
        """The next step of an operation, by its kind."""
        if entry.stage == "signal":
            return entry.end(_UNSURE), ""
        if entry.stage == "save":
            return self._saving.go_on(name, job, entry)
        if entry.kind == "validate":
            gone = entry.end("launcher_settings.validate was taken away"), ""
            return gone if self._validating is None else self._validating.go_on(job, entry)
        return self._steps.go_on(job, entry, why)

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
