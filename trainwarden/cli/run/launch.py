"""`trainwarden launch`: the ranks of a training command by torchrun, watched, acted on if allowed."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from trainwarden.actions.remedies.policy import Mode
from trainwarden.cli.run.job_run import JobRun, services_here, settings_for
from trainwarden.cli.run.launch_node import Here, NodesAsked, launch_node, need_storage
from trainwarden.cli.run.torchrun_here import STOPPED_CODE
from trainwarden.cli.run.warm_up import warm_up
from trainwarden.cli.shared.extras import need
from trainwarden.cli.shared.follow import record_line
from trainwarden.cli.shared.foreign_signals import ForeignSignals
from trainwarden.cli.shared.formatting import NO_CHECKPOINTS
from trainwarden.cli.shared.kept_runs import readable
from trainwarden.cli.shared.options import Checkpoints, Command, ConfigFile, EngineMode, JobName, Json, Keep
from trainwarden.cli.shared.output import Voice
from trainwarden.cli.shared.stop_signals import stop_signals
from trainwarden.settings import checkpoints_of

if TYPE_CHECKING:
    from trainwarden.cli.run.job_here import JobHere


def launch(
    command: Command,
    *,
    nproc: Annotated[int, typer.Option("--nproc", min=1, max=1024, help="Training processes to start.")],
    mode: EngineMode = "observe",
    validate: Annotated[
        bool, typer.Option("--validate", help="Test devices, links, disk and memory first; start only if all is well.")
    ] = False,
    rdzv: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Where several nodes find each other.")] = None,
    nnodes: Annotated[int, typer.Option(min=1, max=1024, help="Nodes that train; run this on each.")] = 1,
    node_rank: Annotated[
        int | None, typer.Option(min=0, help="Which of them this is, spares last; default by name.")
    ] = None,
    min_nodes: Annotated[int | None, typer.Option(min=1, help="Go on with so many; default --nnodes.")] = None,
    weight: Annotated[
        float | None,
        typer.Option(min=0.0, max=1e6, help="Let the coordinator give it --min-nodes to --nnodes, by this."),
    ] = None,
    join_wait: Annotated[
        float | None,
        typer.Option(min=0.0, max=600.0, metavar="SECONDS", help="Before fewer than --nnodes go on; default 30."),
    ] = None,
    spares: Annotated[
        int | None, typer.Option(min=0, max=1024, help="Nodes beyond --nnodes that may wait; default 0.")
    ] = None,
    max_restarts: Annotated[
        int | None, typer.Option(min=0, max=1000, help="Without a newer checkpoint; several nodes; default 3.")
    ] = None,
    grow: Annotated[
        Literal["worth", "now", "restart"] | None,
        typer.Option(help="When fewer nodes take in more: at a checkpoint, if worth a restart (default), or at once."),
    ] = None,
    token_file: Annotated[Path | None, typer.Option(metavar="FILE", help="Holds the agents' token.")] = None,
    tokens: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Lines of NAME ROLE TOKEN: who may look on or act by `job`.")
    ] = None,
    checkpoints: Checkpoints = None,
    job: JobName = None,
    json: Json = None,
    keep: Keep = None,
    config: ConfigFile = None,
) -> int:
    """Start the ranks of a training command by torchrun, watched, and acted on if allowed.

    With --rdzv this node's part of a job on several; run it on each.

    Example: trainwarden launch --nproc 4 --mode auto --checkpoints ckpt -- python train.py
    """
    here = Here(nproc=nproc, checkpoints=checkpoints, job=job, keep=keep, config=config)
    asked = NodesAsked(
        rdzv=rdzv, nnodes=nnodes, min_nodes=min_nodes, join_wait_s=join_wait, spares=spares,
        max_restarts=max_restarts, grow=grow, token_file=token_file, tokens=tokens, node_rank=node_rank,
        weight=weight,
    )  # fmt: skip
    asked.check()
    if rdzv is None:
        return _launch_here(command, Voice(json), here, mode=mode, validate=validate)
    return launch_node(command, Voice(json), here, asked, mode, validate=validate)


def _launch_here(command: Sequence[str], voice: Voice, here: Here, *, mode: Mode, validate: bool) -> int:
    """The whole job on this machine."""
    from trainwarden.cli.run.job_here import JobHere

    need("torch", "launch", "a command without it is watched by trainwarden watch")
    checkpoints, config = here.checkpoints, here.config
    signals = _Signals()
    settings = settings_for(config, here.job, "launch")
    need_storage(command, settings, here)
    job = JobHere(settings, here.nproc, mode)
    if validate:
        warm_up(here.nproc, voice, checkpoints=checkpoints_of(settings, checkpoints), config=config)
    signals.take_stops()
    services = services_here(settings, config, "agent", "detector", "engine")
    with (
        closing(job),
        JobRun(
            settings,
            own_services=services,
            notice=lambda r: voice.say(record_line(r)),
            config=config,
            overrides={"TRAINWARDEN_ENGINE_MODE": mode},
            command=command,
            prepare=job.serve,
        ) as run,
    ):
        for word in run.words:
            voice.say(f"trainwarden: {word}")
        voice.say(f"job {settings.job}: {here.nproc} ranks, mode {mode}, bus {run.bus_address}")
        if mode != "observe" and checkpoints_of(settings, checkpoints) is None:
            voice.say(f"trainwarden: {NO_CHECKPOINTS}")
        run.tell("job_start", world_size=here.nproc, command=" ".join(map(readable, command))[:1000])
        job.start(run, command, voice.say, checkpoints=checkpoints, shown=voice.stream.fileno())
        code = _follow(run, job, voice, config, signals)
        run.end(code)
        run.drain(voice)
        result = run.result(code)
        run.keep(here.keep, voice)
        for line in run.summary(result):
            voice.say(f"trainwarden: {line}")
    voice.answer_if_possible(result)
    return code


class _Signals:
    """Signals to us, before there is anybody to give them to as well."""

    def __init__(self) -> None:
        self.foreign = ForeignSignals()
        self.stopped_by: int | None = None

    def take_stops(self) -> None:
        """From now on whoever asks us to end is answered in order."""
        for number in stop_signals():
            signal.signal(number, self._ask)

    def _ask(self, number: int, _frame: object) -> None:
        self.stopped_by = self.stopped_by or number


def _follow(run: JobRun, job: JobHere, voice: Voice, config: Path | None, signals: _Signals) -> int:
    """Follow the bus until the job ends; its exit code. Signals to us are for its ranks."""
    run.open_page(config)
    signals.foreign.pop_new()  # whoever sent one so early knew of no rank
    torchrun = job.torchrun
    assert torchrun is not None  # it was started
    while torchrun.runs:
        run.look(voice)
        job.tend()
        torchrun.pass_on(signals.foreign.pop_new())
        if signals.stopped_by is not None:
            run.stopped_by(signals.stopped_by)
            torchrun.stop()
    code = job.end(run.run_dir)
    return STOPPED_CODE if signals.stopped_by is not None and code == 0 else code
