"""A checkpoint now: the signal at which a job's script saves, sent to its steps once all their tasks catch it.

A signal that a task does not handle would end it. So a step of `srun` within the job reads on each node what the tasks
of its other steps catch (proc(5), SigCgt and SigBlk), and only steps whose tasks all catch the signal get it.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import msgspec

from trainwarden.actions.launchers.slurm.answers import SlurmJob
from trainwarden.actions.launchers.slurm.commands import Commands
from trainwarden.actions.launchers.slurm.note import Entry
from trainwarden.checkpoints.newest import Checkpoint, Search
from trainwarden.errors import LauncherError, LauncherUnavailable
from trainwarden.settings import Config
from trainwarden.torchrun.saving import number_of

PROBE_S: Final = 10.0
SEARCH_S: Final = 1.0  # a file system that stands still holds up no engine
_PROBE: Final = """
scontrol listpids "$SLURM_JOB_ID" "$SLURMD_NODENAME" | while read -r pid job step place rank; do
    echo task "$step" "$place" $(sed -n 's/^Sig\\(Blk\\|Cgt\\):[[:space:]]*//p' "/proc/$pid/status" 2>/dev/null)
done
echo node "$SLURM_STEP_ID"
"""
_TASK: Final = re.compile(r"task (\d{1,9}) (\d{1,9}|-)(?: ([0-9a-f]{1,32}) ([0-9a-f]{1,32}))?")
_NODE: Final = re.compile(r"node (\d{1,9})")
_SIGNALS_TASKS_ALONE: Final = re.compile(r"^ProctrackType\s*= proctrack/cgroup", re.MULTILINE)


class JobCheckpoints(Config, frozen=True, kw_only=True):
    """Where a job's checkpoints are, as this machine sees them, and the `signal` at which its script saves one."""

    folder: Annotated[str, msgspec.Meta(min_length=1, max_length=4096)]
    signal: Annotated[str, msgspec.Meta(min_length=1, max_length=20)]

    def __post_init__(self) -> None:
        if number_of(self.signal) is None:
            raise ValueError(f"'{self.signal}' is no signal that a script can catch, such as USR1")


class SavePlan(NamedTuple):
    """The signal, the steps that get it, and the step of training that a checkpoint must have reached to be new."""

    signal: str
    steps: tuple[str, ...]
    until: int


class Saving:
    """Asks for checkpoints, and looks for them."""

    def __init__(self, commands: Commands, jobs: Mapping[str, JobCheckpoints]) -> None:
        self._commands, self._jobs = commands, jobs
        self._searches: dict[str, Search] = {}

    def plan(self, name: str, job: SlurmJob) -> SavePlan | str:
        """What is to be done for a checkpoint that is newer than any now; else why none can be asked for.

        Raises
        ------
        LauncherUnavailable
            If nobody answers.
        """
        if (own := self._jobs.get(name)) is None:
            return f"launcher_settings.checkpoints has no folder and signal for {name}"
        if job.states != {"RUNNING"}:
            return f"Slurm job {job.id} is {job.state}, so its script saves nothing"
        search = self._search(own.folder)
        if search is None:
            return f"the folder {own.folder} does not say within {SEARCH_S:g} s what it has"
        if not Path(own.folder).is_dir():
            return f"there is no folder {own.folder} on the engine's machine"
        try:
            steps = self._steps(job, own)
        except LauncherUnavailable:  # Slurm's controller, which is asked before
            raise
        except LauncherError as error:
            return f"what the job's tasks catch cannot be seen ({error})"
        if not steps:
            return f"no step of Slurm job {job.id} has tasks that all catch SIG{_name(own)}, which would end others"
        return SavePlan(_name(own), steps, 0 if search.found is None else search.found.step + 1)

    def send(self, job: SlurmJob, plan: SavePlan) -> None:
        """Send the signal to the steps whose tasks all catch it.

        Raises
        ------
        LauncherError
            If Slurm refuses, or is away.
        """
        self._commands.run("scancel", f"--signal={plan.signal}", *(f"{job.id}.{step}" for step in plan.steps))

    def go_on(self, name: str, job: SlurmJob, entry: Entry) -> tuple[Entry, str]:
        """One look for a checkpoint that is new enough: `entry` as it then is, and how far that is in words."""
        own = self._jobs.get(name)
        search = None if own is None else self._search(own.folder)
        found: Checkpoint | None = None if search is None else search.found
        if found is not None and found.step >= entry.until:
            return entry.end(told=f"the checkpoint of step {found.step} is complete"), ""
        if job.finished or job.restarts > entry.restarts or job.states & {"COMPLETING", "PENDING"}:
            return entry.end(f"Slurm job {job.id} is {job.state}, and no checkpoint was complete before"), ""
        return entry, "no newer checkpoint is complete yet" if search is not None else "the folder does not answer"

    def _search(self, folder: str) -> Search | None:
        """A look that was begun now and is over; None while the folder says nothing. One thread a folder at most."""
        search = self._searches.get(folder)
        if search is not None and not search.wait(0.0):
            return None
        search = self._searches[folder] = Search(Path(folder))
        return search if search.wait(SEARCH_S) else None

    def _steps(self, job: SlurmJob, own: JobCheckpoints) -> tuple[str, ...]:
        """The job's steps whose tasks all catch the signal, on all nodes.

        Raises
        ------
        LauncherError
            If they could not be asked.
        """
        alone = _SIGNALS_TASKS_ALONE.search(self._commands.run("scontrol", "show", "config")) is not None
        nodes = len(self._commands.names(job.nodes))
        words = (f"--jobid={job.id}", "--overlap", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1")
        try:
            said = self._commands.run_as(
                job.owner, "srun", *words, "--mem=0", "--chdir=/", "--quiet", "--input=none", "sh", "-c", _PROBE,
                timeout_s=PROBE_S,
            )  # fmt: skip
        except LauncherUnavailable as error:  # a node that hangs; asking again and again would hold up the engine
            raise LauncherError(str(error)) from error
        return steps_that_catch(said, own.signal, nodes=nodes, tasks_alone=alone)


def steps_that_catch(said: str, word: str, *, nodes: int, tasks_alone: bool) -> tuple[str, ...]:
    """Steps whose processes all catch the signal `word` and do not block it; none if not all `nodes` have answered.

    Parameters
    ----------
    said : str
        What the probe has written on all nodes.
    tasks_alone : bool
        Slurm signals the tasks alone, and not what they have started (proctrack/cgroup).

    Examples
    --------
    >>> said = "task 0 0 0000000000000000 0000000000000200\\ntask 0 - 0000000000000000 0000000000000000\\nnode 1\\n"
    >>> steps_that_catch(said, "USR1", nodes=1, tasks_alone=True)
    ('0',)
    >>> steps_that_catch(said, "USR1", nodes=1, tasks_alone=False)
    ()
    >>> steps_that_catch(said, "USR1", nodes=2, tasks_alone=True)
    ()
    """
    number, lines = number_of(word), said.splitlines()
    probes = [found[1] for line in lines if (found := _NODE.fullmatch(line)) is not None]
    if number is None or len(probes) != nodes:
        return ()
    can: dict[str, bool] = {}
    for line in lines:
        found = _TASK.fullmatch(line.rstrip())
        if found is None or found[1] in probes or (tasks_alone and found[2] == "-"):
            continue
        blocked, caught = int(found[3] or "0", 16), int(found[4] or "0", 16)
        can[found[1]] = can.get(found[1], True) and bool((caught & ~blocked) >> (number - 1) & 1)
    return tuple(step for step, able in can.items() if able)


def _name(own: JobCheckpoints) -> str:
    number = number_of(own.signal)
    assert number is not None  # it was checked
    return signal.Signals(number).name.removeprefix("SIG")
