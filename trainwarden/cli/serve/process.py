"""How a process of the warden begins, is asked to stop, and ends."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from trainwarden import plugins, rundir
from trainwarden.cli.shared.extras import check_service_extras
from trainwarden.cli.shared.machine import one_blas_thread
from trainwarden.settings import Settings, load
from trainwarden.torchrun.signals import ignore_foreign

log = logging.getLogger("trainwarden.cli")


class StopFlag:
    """True once this process was asked to stop, or once the process `with_parent`, which started it, is gone.

    The number comes from that process itself: it may be gone before this one has imported what it needs. Signals that
    are for its ranks may reach this process too, as one of its children, and end nothing here.
    """

    def __init__(self, *, with_parent: int | None = None) -> None:
        self._asked = False
        self._parent = with_parent
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._ask)
        if with_parent is not None:
            ignore_foreign()

    def _ask(self, _number: int, _frame: object) -> None:
        self._asked = True

    def __call__(self) -> bool:
        return self._asked or (self._parent is not None and os.getppid() != self._parent)


@dataclass(frozen=True, slots=True)
class Service:
    """What every service gets from its command."""

    settings: Settings
    run_dir: Path
    state_dir: Path
    stop: StopFlag


def folders(settings: Settings, run_dir: Path | None) -> tuple[Path, Path]:
    """Run folder and state folder; made where they do not exist."""
    run = rundir.prepare(run_dir or (Path(settings.run_dir) if settings.run_dir else Path("trainwarden-run")))
    state = Path(settings.state_dir) if settings.state_dir else run / "state"
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    return run, state


@contextmanager
def service(name: str, *, run_dir: Path | None, config: Path | None, with_parent: int | None) -> Iterator[Service]:
    """Service `name`, to be run until SIGTERM, SIGINT or until the process `with_parent`, which started it, is gone."""
    from trainwarden.self_metrics import log_to_stderr  # a help text needs no Prometheus client

    log_to_stderr()
    one_blas_thread()
    settings = load(config)
    plugins.bring(settings)
    check_service_extras(settings, (name,))
    stop = StopFlag(with_parent=with_parent)
    run, state = folders(settings, run_dir)
    log.info("service starts", extra={"fields": {"service": name, "job": settings.job, "pid": os.getpid()}})
    yield Service(settings, run, state, stop)
    log.info("service ends", extra={"fields": {"service": name}})
