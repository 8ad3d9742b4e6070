"""Suspects measured on the nodes of their own job, while that is requeued: a validation with the restart.

::

    reserve   a reservation of the job's nodes, so that nobody slips in; then the job is requeued
    measure   once no process of it is left, `trainwarden validate` is submitted to the reservation
    judge     its result is waited for, in a shared folder; the reservation is deleted and the job let go

Nothing is held: the requeued job has a time at which it begins by itself, and the reservation one at which it ends. So
an engine that is killed, and is never started again, leaves a job that runs and nodes that others may use.
"""

from __future__ import annotations

import hashlib
import re
import shlex
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Final

import msgspec

from trainwarden.actions.launchers.restart_check.bounded import LIMIT_S
from trainwarden.actions.launchers.restart_check.measuring import findings_in
from trainwarden.actions.launchers.slurm.answers import ENDED, FAILED, WAITS, SlurmJob
from trainwarden.actions.launchers.slurm.commands import Commands
from trainwarden.actions.launchers.slurm.note import Entry
from trainwarden.errors import LauncherError, LauncherUnavailable
from trainwarden.launching import Accused, Findings, Operation
from trainwarden.settings import Config

LEAST_RANKS: Final = 4  # fewer have no median to be compared with
WHOLE_S: Final = 600  # from the operation's begin until the job begins by itself: below the engine's limit of 900
RESERVED_MIN: Final = 15
GRACE_S: Final = 30  # for the engine to take out who is accused: the requeued job begins without that node
CREDENTIALS_S: Final = 120  # cred_expire of slurm.conf, where it is not given: a requeued job waits so long
_EXPIRES: Final = re.compile(r"^AuthInfo\s*=.*\bcred_expire=(\d{1,6})", re.MULTILINE)
READ_S: Final = 1.0
SEEN_S: Final = 30  # a shared file system shows a new file by then (nfs(5), acdirmin)
SUBMIT_S: Final = 10.0
_SCRIPT: Final = """#!/bin/sh
# Written by trainwarden: measures the nodes of a job that waits meanwhile.
rm -f {result}
exec srun --ntasks-per-node=1 --kill-on-bad-exit=0 sh -c {step} "$(hostname)"
"""
_STEP: Final = """
case $SLURMD_NODENAME in {names} *) TRAINWARDEN_NODE=$SLURMD_NODENAME ;; esac
export TRAINWARDEN_NODE
[ "$SLURM_NODEID" != 0 ] || set -- --json {result}
exec {program} validate --nproc {nproc} --nnodes "$SLURM_NNODES" --node-rank "$SLURM_NODEID" \\
    --master-addr "$0" --checks {checks} {about} "$@"
"""


class ValidateConfig(Config, frozen=True, kw_only=True):
    """How a job's nodes are measured with its restart.

    Results go to `folder`, which the engine and all nodes must see and the jobs' users may write. `program` is
    trainwarden on the nodes; `options` are more words for sbatch.
    """

    folder: Annotated[str, msgspec.Meta(min_length=2, max_length=1024, pattern="^/")]
    program: Annotated[str, msgspec.Meta(min_length=1, max_length=1024)] = "trainwarden"
    options: tuple[str, ...] = ()


class Validating:
    """Takes the steps of validations."""

    def __init__(
        self, commands: Commands, config: ValidateConfig, ranks_per_node: int, now_s: Callable[[], float] = time.time
    ) -> None:
        self._commands, self._config, self._ranks, self._now_s = commands, config, ranks_per_node, now_s

    def plan(self, operation: Operation, job: SlurmJob, on: Sequence[str], entry: Entry) -> Entry | str:
        """`entry` with all that is noted of `operation`; else why the nodes `on` of the job cannot be measured.

        Raises
        ------
        LauncherError
            If Slurm is away.
        """
        if job.states != {"RUNNING"}:
            return f"Slurm job {job.id} is {job.state}; a job is measured with a restart while it runs"
        if strangers := [node for node in operation.targets.nodes if _short(node) not in map(_short, on)]:
            return f"{strangers[0]} is no node of Slurm job {job.id}"
        if len(on) * self._ranks < LEAST_RANKS:
            return f"{len(on) * self._ranks} ranks cannot be compared with each other; it takes {LEAST_RANKS}"
        if out := [node.name for node in self._commands.nodes(job.nodes) if node.out or node.down]:
            return f"{out[0]} is out of service, so nothing can be measured there"
        if (others := self._others(job, job.nodes)) is not None:
            return others
        until, checks = int(self._now_s()) + WHOLE_S, operation.plan.checks or ("gemm", "links")
        return msgspec.structs.replace(
            entry, until=until, checks=",".join(checks), on=job.nodes, nodes=operation.targets.nodes
        )

    def go_on(self, job: SlurmJob, entry: Entry) -> tuple[Entry, str]:
        """One look: the operation as it then is, and how far that is in words.

        Raises
        ------
        LauncherUnavailable
            If Slurm is away in the midst of it. The next look goes on.
        """
        late = self._now_s() >= entry.until
        if entry.stage == "reserve":
            return self._reserve(job, entry, late)
        if job.restarts < entry.restarts:
            return entry, f"Slurm job {job.id} is requeued"  # by what was done at this look
        if job.states & ENDED or job.finished:
            return self._finish(job, entry, f"Slurm job {job.id} ended as {job.state}")
        if entry.stage == "judge" and (found := self._found(job, entry)) is not None:
            return self._finish(job, entry, None, accused=bool(found.accused))
        if late:
            return self._finish(job, entry, "the time for a result was over")
        if "COMPLETING" in job.states:
            return entry, f"Slurm job {job.id} is ending on its nodes"
        return self._judge(job, entry) if entry.stage == "judge" else self._measure(job, entry)

    def findings(self, job: SlurmJob, entry: Entry) -> Findings:
        """What was found by a validation that is done; where nothing was, why not, as an accusation of nobody."""
        found = self._found(job, entry) if not entry.why else None
        why = entry.why or "its result cannot be read any more"
        return found or Findings(accused=(Accused(kind="hang", text=f"nothing was measured: {why}"),))

    # --- steps -------------------------------------------------------------------------------------------------------

    def _reserve(self, job: SlurmJob, entry: Entry, late: bool) -> tuple[Entry, str]:
        """The job's nodes reserved, and the job requeued."""
        if job.restarts >= entry.restarts:
            return msgspec.structs.replace(entry, stage="measure"), ""
        if late or job.states != {"RUNNING"}:
            self._unreserve(job, entry)
            return entry.end(f"Slurm job {job.id} is {job.state}, so it was not requeued"), ""
        try:
            if not self._reserved(job, entry):
                self._commands.run(
                    "scontrol", "create", "reservation", f"ReservationName={name_of(job, entry)}", "StartTime=now",
                    f"Duration={RESERVED_MIN}", f"Nodes={job.nodes}", f"Users={self._commands.becomes(job.owner)}",
                    "Flags=MAINT,IGNORE_JOBS,PURGE_COMP=5",
                )  # fmt: skip
            if (others := self._others(job, job.nodes)) is not None:
                raise LauncherError(others)
            self._commands.run("scontrol", "requeue", str(job.id))
        except LauncherUnavailable:
            raise
        except LauncherError as error:
            if self._commands.job(job.id).restarts <= job.restarts:  # else another engine has requeued it
                self._unreserve(job, entry)
                return entry.end(str(error)), ""
        self._begin_at(job, entry.until)
        return msgspec.structs.replace(entry, stage="measure"), ""

    def _measure(self, job: SlurmJob, entry: Entry) -> tuple[Entry, str]:
        """The validation submitted, once, and looked after."""
        if self._commands.numbers(name_of(job, entry)):
            return msgspec.structs.replace(entry, stage="judge"), ""
        if not job.states & WAITS:
            return self._finish(job, entry, f"Slurm job {job.id} is {job.state} again before its nodes were measured")
        if not self._reserved(job, entry):
            return self._finish(job, entry, "the reservation of the nodes is gone")
        self._begin_at(job, entry.until)
        try:
            self._submit(job, entry)
        except LauncherUnavailable:
            raise
        except LauncherError as error:
            return self._finish(job, entry, str(error))
        return msgspec.structs.replace(entry, stage="judge"), "its nodes are measured"

    def _judge(self, job: SlurmJob, entry: Entry) -> tuple[Entry, str]:
        """The validation looked after; one that has ended has its result seen soon, or never."""
        mine = self._commands.numbers(name_of(job, entry))
        if any(state not in ENDED | FAILED for _, state in mine):
            return entry, f"its nodes are measured by Slurm job {mine[0][0]}"
        until = min(entry.until, int(self._now_s()) + SEEN_S)
        return msgspec.structs.replace(entry, until=until), "its nodes were measured; the result is not seen yet"

    def _finish(self, job: SlurmJob, entry: Entry, why: str | None, accused: bool = False) -> tuple[Entry, str]:
        """Nothing of ours left, the job let go, and the end: with a result, or with the reason why there is none."""
        if any(state not in ENDED | FAILED for _, state in self._commands.numbers(name_of(job, entry))):
            self._commands.run("scancel", "--quiet", f"--name={name_of(job, entry)}")
        if not self._unreserve(job, entry) and self._now_s() < entry.until + GRACE_S:
            return entry, "the validation is ending"
        if job.states & WAITS:
            self._begin_at(job, self._now_s() + (GRACE_S if accused else 0))
        return entry.end(told=why or ""), ""

    # --- what Slurm is asked -----------------------------------------------------------------------------------------

    def _reserved(self, job: SlurmJob, entry: Entry) -> bool:
        """Whether there is our reservation."""
        try:
            said = self._commands.run("scontrol", "--oneliner", "show", "reservation", name_of(job, entry))
        except LauncherUnavailable:
            raise
        except LauncherError:
            return False
        return f"ReservationName={name_of(job, entry)} " in said

    def _unreserve(self, job: SlurmJob, entry: Entry) -> bool:
        """Delete our reservation; whether there is none any more. Slurm refuses while a job in it is ending."""
        if not self._reserved(job, entry):
            return True
        try:
            self._commands.run("scontrol", "delete", f"ReservationName={name_of(job, entry)}")
        except LauncherUnavailable:
            raise
        except LauncherError:
            return not self._reserved(job, entry)
        return True

    def _others(self, job: SlurmJob, nodes: str) -> str | None:
        """One sentence if other jobs run on the nodes: they would make them slow, and run on there."""
        said = self._commands.run("squeue", "--noheader", f"--nodelist={nodes}", "--states=R,CG,S,CF", "--format=%A")
        others = sorted({number for number in said.split() if number != str(job.id)})
        return f"Slurm job {others[0]} runs on nodes of job {job.id} too" if others else None

    def _begin_at(self, job: SlurmJob, at_s: float) -> None:
        """Have the requeued job begin by itself then, and no sooner than Slurm itself would let it begin.

        A person's hold, or a job that runs again, is no harm.
        """
        now_s, said = self._now_s(), self._commands.run("scontrol", "show", "config")
        found = _EXPIRES.search(said)
        requeued_s = job.submitted_s if job.states & WAITS and job.submitted_s is not None else now_s
        first_s = requeued_s + (int(found[1]) if found is not None else CREDENTIALS_S) + 1
        wait_s = max(0, round(max(at_s, first_s) - now_s))
        try:
            self._commands.run("scontrol", "update", f"JobId={job.id}", f"StartTime=now+{wait_s}")
        except LauncherUnavailable:
            raise
        except LauncherError:
            return

    def _submit(self, job: SlurmJob, entry: Entry) -> None:
        """The validation, as the job's user, on all of the job's nodes alone."""
        own = self._config
        names = " ".join(f"{_short(node)}|{node}) TRAINWARDEN_NODE={node} ;;" for node in entry.nodes)
        about = f"--nodes {','.join(entry.nodes)}" if entry.nodes else ""
        result = shlex.quote(str(self._result(job, entry)))
        step = _STEP.format(
            names=names, result=result, program=shlex.quote(own.program),
            nproc=self._ranks, checks=entry.checks, about=about,
        )  # fmt: skip
        count = len(self._commands.names(entry.on))
        words = [f"--job-name={name_of(job, entry)}", f"--reservation={name_of(job, entry)}", f"--nodelist={entry.on}",
                 f"--nodes={count}", "--exclusive", "--mem=0", "--no-requeue", "--chdir=/",
                 f"--time={round(LIMIT_S / 60)}", f"--output={self._result(job, entry)}.log"]  # fmt: skip
        words += [f"--partition={job.partition}"] if job.partition else []
        words += [f"--account={job.account}"] if job.account else []
        self._commands.run_as(
            job.owner,
            "sbatch",
            *words,
            *own.options,
            timeout_s=SUBMIT_S,
            text=_SCRIPT.format(step=shlex.quote(step), result=shlex.quote(str(self._result(job, entry)))),
        )

    # --- its result --------------------------------------------------------------------------------------------------

    def _result(self, job: SlurmJob, entry: Entry) -> Path:
        return Path(self._config.folder) / f"{name_of(job, entry)}.json"

    def _found(self, job: SlurmJob, entry: Entry) -> Findings | None:
        """The result, once there is one. A file system that stands still holds up no engine."""
        found: list[Findings] = []
        path = self._result(job, entry)
        thread = threading.Thread(
            target=_read, args=(path, self._commands.becomes(job.owner), found), name="validation-result", daemon=True
        )
        thread.start()
        thread.join(READ_S)
        return found[0] if found else None


def name_of(job: SlurmJob, entry: Entry) -> str:
    """How reservation, job and result of an operation are named.

    Examples
    --------
    >>> job = SlurmJob(id=7, states=frozenset())
    >>> name_of(job, Entry(id="i1/validate/1", kind="validate", stage="reserve"))
    'trainwarden-f8b55950929d'
    """
    return f"trainwarden-{hashlib.sha256(f'{job.id} {entry.id}'.encode()).hexdigest()[:12]}"


def _short(node: str) -> str:
    """A node's name without its domain: agents go by their host's name."""
    return node.partition(".")[0]


def _read(path: Path, user: int, found: list[Findings]) -> None:
    """What `user` has written there; what others have planted is no result."""
    try:
        if path.lstat().st_uid != user:
            return
        found.append(findings_in(path))
    except (OSError, msgspec.DecodeError):
        return
