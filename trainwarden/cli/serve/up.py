"""`trainwarden up`: everything that one machine needs, in one command."""

from __future__ import annotations

import shlex
import socket
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from trainwarden import rundir
from trainwarden.cli.serve.process import StopFlag, folders
from trainwarden.cli.shared.extras import check_services
from trainwarden.cli.shared.formatting import how_ended
from trainwarden.cli.shared.machine import PACKAGE
from trainwarden.cli.shared.options import ConfigFile, RunDir
from trainwarden.cli.shared.output import Voice
from trainwarden.cli.shared.page_beside import PageBeside
from trainwarden.cli.shared.stack import LocalStack
from trainwarden.errors import NotJudged
from trainwarden.settings import ServeSettings, Settings, load

WATCHING: Final = ("agent", "detector", "engine")
LEARNING: Final = ("archive", "trainer")
PAGES: Final = 10  # ports that are tried, from the default one on


def up(*, config: ConfigFile = None, run_dir: RunDir = None) -> int:
    """Agent, detector, engine, rendezvous of torchrun jobs and page on this machine, until Ctrl-C.

    Archive and trainer run too where the extra `train` is installed: metric models learn from its jobs, unless the
    settings name a folder of fixed models.

    Example: trainwarden up --config trainwarden.toml
    """
    settings = load(config)
    voice = Voice()
    run, _ = folders(settings, run_dir)
    run = run.absolute()
    address = settings.bus
    if address.startswith("embedded:"):
        address = f"embedded:{Path(address.partition(':')[2]).absolute()}"
    from trainwarden.cli.shared.rendezvous_beside import RendezvousBeside

    stop = StopFlag()
    check_services(settings, WATCHING)
    shared = learning(settings)
    rendezvous = RendezvousBeside(settings, run, address)
    stack = LocalStack(run, {"TRAINWARDEN_BUS": address, **shared, **rendezvous.engine}, config)
    try:
        page = _start(stack, run, (*WATCHING, *(LEARNING if shared else ())), page_address(settings))
        voice.say(f"agent, detector and engine are up on {address}; run folder {run}; stop with Ctrl-C")
        if shared:
            models, folder = shared["TRAINWARDEN_TRAINER_REGISTRY"], shared["TRAINWARDEN_ARCHIVE_FOLDER"]
            shows = f"mlflow ui --backend-store-uri {models}" if models.startswith("sqlite:") else f"see {models}"
            voice.say(f"metric models are trained from {folder}; {shows}")
        voice.say(f"a job joins it by its environment: env {joining(run, settings.job)} python train.py")
        learn = set(LEARNING) if shared else set()
        while not stop():
            time.sleep(0.2)
            stack.check(WATCHING)
            for sentence in (_ended(stack, learn), rendezvous.news(), page.news(terminal=True)):
                if sentence is not None:
                    voice.say(sentence)
    finally:
        rendezvous.close()
        stack.stop()
    return 0


def page_address(settings: Settings) -> str:
    """Where the page listens: as set, or where nothing is set the first free port from the default one on."""
    address = settings.serve.listen
    if address == ServeSettings().listen:
        host, _, first = address.partition(":")
        for port in range(int(first), int(first) + PAGES):
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind((host, port))
                except OSError:
                    continue
            return f"{host}:{port}"
    return address


def _start(stack: LocalStack, run: Path, services: Sequence[str], address: str) -> PageBeside:
    """Start `services`, and the page at `address`.

    Raises
    ------
    NotJudged
        If the process of one cannot be started.
    """
    try:
        for name in services:
            stack.start(name)
        return PageBeside(stack, run, "--listen", address)
    except OSError as error:
        what = f"{error.strerror}: {error.filename}" if error.filename else str(error.strerror)
        remedy = "let this user run that program, or free processes and memory"
        raise NotJudged(f"a service cannot be started: {what}", remedy) from error


def _ended(stack: LocalStack, services: set[str]) -> str | None:
    """That one of `services` has ended, which is taken out of them."""
    for name in services:
        if (code := stack.returncode(name)) is not None:
            services.remove(name)
            return f"{name} {how_ended(code)}, so no models are trained: {stack.log_path(name)}"
    return None


def learning(settings: Settings) -> dict[str, str]:
    """Settings by which archive, trainer and detector share folder and registry; empty where nothing is trained."""
    from trainwarden.trainer_offline.registry.address import is_registry, tracking_uri

    models = settings.detection.models
    if find_spec("mlflow") is None or (models is not None and not is_registry(models)):
        return {}
    uri = tracking_uri(settings.trainer.registry or models)
    return {
        "TRAINWARDEN_ARCHIVE_FOLDER": str(Path(settings.archive.folder).absolute()),
        "TRAINWARDEN_TRAINER_REGISTRY": uri,
        "TRAINWARDEN_DETECTION_MODELS": models or uri,
    }


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
