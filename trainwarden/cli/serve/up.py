"""`trainwarden up`: everything that one machine needs, in one command."""

from __future__ import annotations

import shlex
import time
from pathlib import Path

from trainwarden import rundir
from trainwarden.cli.serve.process import StopFlag, folders
from trainwarden.cli.shared.extras import check_services
from trainwarden.cli.shared.machine import PACKAGE
from trainwarden.cli.shared.options import ConfigFile, RunDir
from trainwarden.cli.shared.output import Voice
from trainwarden.cli.shared.page_beside import PageBeside
from trainwarden.cli.shared.stack import LocalStack
from trainwarden.settings import load


def up(*, config: ConfigFile = None, run_dir: RunDir = None) -> int:
    """Agent, detector, engine and page on this machine with the embedded bus, until Ctrl-C.

    Example: trainwarden up --config trainwarden.toml
    """
    settings = load(config)
    voice = Voice()
    run, _ = folders(settings, run_dir)
    run = run.absolute()
    address = settings.bus
    if address.startswith("embedded:"):
        address = f"embedded:{Path(address.partition(':')[2]).absolute()}"
    stop = StopFlag()
    names = ("agent", "detector", "engine")
    check_services(settings, names)
    stack = LocalStack(run, {"TRAINWARDEN_BUS": address}, config)
    for name in names:
        stack.start(name)
    page = PageBeside(stack, run)
    voice.say(f"agent, detector and engine are up on {address}; run folder {run}; stop with Ctrl-C")
    voice.say(f"a job joins it by its environment: env {joining(run, settings.job)} python train.py")
    try:
        while not stop():
            time.sleep(0.2)
            stack.check(names)
            if (sentence := page.news(terminal=True)) is not None:
                voice.say(sentence)
    finally:
        stack.stop()
    return 0


def joining(run: Path, job: str) -> str:
    """The environment by which a training command of this machine comes under the services of run folder `run`.

    Examples
    --------
    >>> joining(Path("/r"), "job").split()[:2]
    ['TRAINWARDEN_JOB=job', 'TRAINWARDEN_RUN_DIR=/r']
    """
    words = {
        "TRAINWARDEN_JOB": job,
        "TRAINWARDEN_RUN_DIR": str(run),
        "TRAINWARDEN_HOOK_DIR": str((run / rundir.HOOK).resolve()),
        "PYTHONPATH": str(PACKAGE / "inject"),
    }
    return " ".join(f"{name}={shlex.quote(value)}" for name, value in words.items())
