"""`agent`, `detector`, `engine`, `trainer`, `supervise`, `up`: one process each, stopped by SIGTERM."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from trainwarden import rundir
from trainwarden.cli.output import Voice
from trainwarden.cli.stack import LocalStack, StopFlag
from trainwarden.clock import SystemClock
from trainwarden.self_metrics import log_to_stderr
from trainwarden.settings import Settings, load

if TYPE_CHECKING:
    from detectors.metrics.source import ModelSource

log = logging.getLogger("trainwarden.cli")

Mode = Literal["observe", "confirm", "auto"]


def _folders(settings: Settings, run_dir: Path | None) -> tuple[Path, Path]:
    """Run folder and state folder; made where they do not exist."""
    run = rundir.prepare(run_dir or (Path(settings.run_dir) if settings.run_dir else Path("trainwarden-run")))
    state = Path(settings.state_dir) if settings.state_dir else run / "state"
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    return run, state


def serve(name: str, *, run_dir: Path | None, config: Path | None, with_parent: bool) -> int:
    """Run service `name` until SIGTERM, SIGINT or, with `with_parent`, until the starting process is gone."""
    log_to_stderr()
    # Arrays here are small: more than one BLAS thread only stalls (and takes CPU from the training job).
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    settings = load(config)
    stop = StopFlag(with_parent=with_parent)
    run, state = _folders(settings, run_dir)
    log.info("service starts", extra={"fields": {"service": name, "job": settings.job, "pid": os.getpid()}})
    if name == "agent":
        from collectors.agent.agent import serve as serve_agent

        serve_agent(settings, run, state, stop)
    elif name == "detector":
        from detectors.service import serve as serve_detector

        serve_detector(settings, stop, _model_source(settings, state))
    elif name == "engine":
        from actions.engine.handler import serve as serve_engine

        serve_engine(settings, run, stop)
    elif name == "trainer":
        from trainer_offline.service.handler import serve as serve_trainer

        serve_trainer(settings, config, stop)
    log.info("service ends", extra={"fields": {"service": name}})
    return 0


def _model_source(settings: Settings, state: Path) -> ModelSource | None:
    """A registry to follow, where the settings name one; a folder of models is read by the service itself."""
    from trainer_offline.registry.address import is_registry

    models = settings.detection.models
    if models is None or not is_registry(models):
        return None
    from trainer_offline.registry.registry import Registry
    from trainer_offline.registry.serving import RegistrySource
    from trainer_offline.registry.version import CHALLENGER

    shadow = CHALLENGER if settings.detection.shadow else None
    return RegistrySource(Registry.at(models), state / "models", shadow=shadow)


def supervise(
    command: Sequence[str], *, nproc: int, mode: Mode, run_dir: Path | None, config: Path | None, with_parent: bool
) -> int:
    """The local launcher itself: start and supervise `nproc` ranks of `command`; the job's exit code."""
    from actions.launchers.local.supervisor import Supervisor, SupervisorConfig

    log_to_stderr()
    settings = load(config)
    run, _ = _folders(settings, run_dir)
    launcher = Supervisor(
        command, nproc, run, settings.job, settings.node, SystemClock(), config=SupervisorConfig(mode=mode)
    )
    return launcher.run(StopFlag(with_parent=with_parent))


def up(config: Path | None, run_dir: Path | None) -> int:
    """Agent, detector and engine on this machine, until Ctrl-C."""
    settings = load(config)
    voice = Voice()
    run, _ = _folders(settings, run_dir)
    run = run.absolute()
    address = settings.bus
    if address.startswith("embedded:"):
        address = f"embedded:{Path(address.partition(':')[2]).absolute()}"
    stop = StopFlag()
    names = ("agent", "detector", "engine")
    stack = LocalStack(run, {"TRAINWARDEN_BUS": address}, config)
    for name in names:
        stack.start(name)
    voice.say(f"agent, detector and engine are up on {address}; run folder {run}; stop with Ctrl-C")
    try:
        while not stop():
            time.sleep(0.2)
            stack.check(names)
    finally:
        stack.stop()
    return 0
