"""`trainwarden supervise`: the local launcher, a process of its own; started by launch and demo."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import msgspec
import typer

from trainwarden.cli.serve.process import StopFlag, folders
from trainwarden.cli.shared.foreign_signals import ForeignSignals
from trainwarden.cli.shared.options import Checkpoints, Command, ConfigFile, Mode, RunDir, WithParent
from trainwarden.clock import SystemClock
from trainwarden.collectors.nccl_profiler import build as nccl_profiler
from trainwarden.settings import checkpoints_of, load


def supervise(
    command: Command,
    *,
    nproc: Annotated[int, typer.Option("--nproc", min=1, max=1024)],
    mode: Annotated[Mode, typer.Option()] = "observe",
    show: Annotated[bool, typer.Option("--show", help="Pass the ranks' output on to standard output.")] = False,
    checkpoints: Checkpoints = None,
    run_dir: RunDir = None,
    config: ConfigFile = None,
    with_parent: WithParent = None,
) -> int:
    """The local launcher alone (started by launch and demo)."""
    from trainwarden.actions.launchers.local.coordinator import SupervisorConfig
    from trainwarden.actions.launchers.local.ranks import LocalJob
    from trainwarden.actions.launchers.local.supervisor import Supervisor
    from trainwarden.actions.suspicions.on_bus import SuspicionsOnBus
    from trainwarden.self_metrics import log_to_stderr

    log_to_stderr()
    foreign = ForeignSignals()
    settings = load(config)
    run, _ = folders(settings, run_dir)
    place = LocalJob(
        command=tuple(command),
        ranks=nproc,
        run_dir=run,
        job=settings.job,
        node=settings.node,
        log_bytes=settings.runs.log_bytes,
        show=sys.stdout.fileno() if show else None,
        checkpoints=checkpoints_of(settings, checkpoints),
    )
    config_of_launch = SupervisorConfig(mode=mode, **msgspec.structs.asdict(settings.launch))
    environ = {**os.environ, **nccl_profiler.offer(os.environ)}
    clock = SystemClock()
    suspicions = SuspicionsOnBus.of(settings, clock, settings.bus)
    launcher = Supervisor(place, clock, environ=environ, config=config_of_launch, adopt=True, suspicions=suspicions)
    return launcher.run(StopFlag(with_parent=with_parent), foreign.pop_new)
