"""One watched run of one job: run folder, services, bus, follower; what watch, launch and demo have in common."""

from __future__ import annotations

import logging
import os
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from collectors.nccl_profiler import build as nccl_profiler
from trainwarden import rundir
from trainwarden.bus import address as buses
from trainwarden.cli.shared import kept_runs
from trainwarden.cli.shared.follow import Follower
from trainwarden.cli.shared.machine import PACKAGE
from trainwarden.cli.shared.orphans import OrphansOfAll
from trainwarden.cli.shared.output import Voice
from trainwarden.cli.shared.page_beside import PageBeside
from trainwarden.cli.shared.stack import LocalStack
from trainwarden.errors import ConfigError, WardenError
from trainwarden.records import EventKind, EventRecord, Record
from trainwarden.settings import DEFAULT_BUS, Settings, load
from trainwarden.topics import EVENTS

log = logging.getLogger("trainwarden.cli")

EMBEDDED: Final = "embedded"  # without a path: the run's own
LOOK_S = 0.1
DRAIN_S = 8.0
LAST_WORDS_S = 1.5  # longer than detection holds an exception that may be the echo of another rank's death
EXIT_BY_SIGNAL = 128  # a shell's exit code for a command ended by signal n is 128 + n


def settings_for(config: Path | None, job: str | None, prefix: str) -> Settings:
    """Settings of one run; without a name the job gets a fresh one that starts with `prefix`."""
    settings = load(config)
    if job is None and config is None:
        job = f"{prefix}-{uuid.uuid4().hex[:8]}"
    if job is not None:
        settings = msgspec.convert({**msgspec.structs.asdict(settings), "job": job}, Settings, from_attributes=True)
    return settings


def services_here(settings: Settings, config: Path | None, *wanted: str) -> tuple[str, ...]:
    """The services that a single run starts: no detector where a settings file names the bus of running services.

    A second one would join their group, take jobs over from them and let go of them again when the run ends.

    Examples
    --------
    >>> services_here(Settings(), None, "agent", "detector")
    ('agent', 'detector')
    >>> services_here(Settings(bus="kafka://broker:9092"), Path("site.toml"), "agent", "detector")
    ('agent',)
    """
    return tuple(one for one in wanted if not (one == "detector" and elsewhere(settings, config)))


def elsewhere(settings: Settings, config: Path | None) -> bool:
    """Whether a settings file names the bus of services that run already."""
    return config is not None and settings.bus not in (DEFAULT_BUS, EMBEDDED)


def exit_code_of(returncode: int) -> int:
    """The exit code that a shell would show for what `subprocess` says of an ended process.

    Examples
    --------
    >>> exit_code_of(3), exit_code_of(-9)
    (3, 137)
    """
    return returncode if returncode >= 0 else EXIT_BY_SIGNAL - returncode


class JobRun:
    """Everything around the training command itself.

    Parameters
    ----------
    settings : Settings
        Checked settings; `bus` may name running services elsewhere.
    notice : callable, optional
        Called with every incident and action record as it comes.
    own_services : tuple of str
        Services to start here: of ``agent``, ``detector``, ``engine``.
    config : Path, optional
        The settings file, passed on to the services.
    overrides : mapping, optional
        ``TRAINWARDEN_*`` settings of the services that the file does not decide.
    command : sequence of str
        What is run, for whoever looks at the kept run later.

    Attributes
    ----------
    words : list of str
        What a person should know of where the records lie.
    beside : set of int
        Processes that were started beside the services; whoever started them waits for their end.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        own_services: tuple[str, ...],
        notice: Callable[[Record], None] | None = None,
        config: Path | None = None,
        overrides: Mapping[str, str] | None = None,
        command: Sequence[str] = (),
    ) -> None:
        self.settings = settings
        self._own = None if settings.run_dir else self._begin(settings, command)
        self.run_dir = self._own.path if self._own else rundir.prepare(Path(settings.run_dir or ""))
        self.words = self._own.words if self._own else []
        try:
            self.bus_address = self._address(settings.bus)
            self._services = own_services
            self.bus = buses.connect(self.bus_address, settings.kafka)
            self.follower = Follower(self.bus, settings.job, notice)
            environ = {
                "TRAINWARDEN_JOB": settings.job,
                "TRAINWARDEN_NODE": settings.node,
                "TRAINWARDEN_BUS": self.bus_address,
                **(overrides or {}),
            }
            self.stack = LocalStack(self.run_dir, environ, config)
        except BaseException:
            self._discard()
            raise
        self.started_at_s = time.time()
        self._blind = self._followed = False
        self._page: PageBeside | None = None
        self.beside: set[int] = set()
        self._orphans = OrphansOfAll()

    @staticmethod
    def _begin(settings: Settings, command: Sequence[str]) -> kept_runs.OwnRun:
        try:
            return kept_runs.begin(settings.job, command, settings.runs)
        except OSError as error:
            raise ConfigError(f"a run folder cannot be made: {error}") from error

    def _discard(self) -> None:
        if self._own is not None:
            self._own.discard()

    def _address(self, bus: str) -> str:
        """The bus to use; the default embedded file goes into the run folder, so that runs do not mix."""
        return f"embedded:{rundir.bus_file(self.run_dir)}" if bus in (DEFAULT_BUS, EMBEDDED) else bus

    def __enter__(self) -> Self:
        for service in self._services:
            self.stack.start(service)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stack.stop()
        self.follower.close()
        self.bus.close()
        if isinstance(error, ConfigError):  # refused: nothing has run
            self._discard()
        elif self._own is not None:
            self._own.close()

    def environ(self) -> dict[str, str]:
        """What the training command needs in its environment so that the hook comes in."""
        inject = str(PACKAGE / "inject")
        inherited = os.environ.get("PYTHONPATH")
        return {
            "TRAINWARDEN_JOB": self.settings.job,
            "TRAINWARDEN_NODE": self.settings.node,
            "TRAINWARDEN_RUN_DIR": str(self.run_dir),
            "TRAINWARDEN_HOOK_DIR": str((self.run_dir / rundir.HOOK).resolve()),
            "PYTHONPATH": f"{inject}{os.pathsep}{inherited}" if inherited else inject,
            **nccl_profiler.offer(os.environ),
        }

    def tell(self, kind: EventKind, **fields: Any) -> None:
        """Put a fact of this command onto the bus by way of the run folder's events file."""
        record = EventRecord(
            id=f"{kind}/{self.settings.job}/{uuid.uuid4().hex[:12]}",
            job=self.settings.job,
            node=self.settings.node,
            time_s=time.time(),
            kind=kind,
            fields=fields,
        )
        try:
            with (self.run_dir / rundir.EVENTS).open("ab", buffering=0) as file:
                file.write(EVENTS.encode(record) + b"\n")
        except OSError as error:  # a full disk is no reason to let go of somebody's training command
            log.warning("fact not written", extra={"fields": {"kind": kind, "error": str(error)}})

    def open_page(self, config: Path | None) -> None:
        """Serve the page beside the command, which has begun; a settings file's own services have one already."""
        if self.settings.runs.page and not elsewhere(self.settings, config):
            with suppress(OSError):  # a full disk
                self._page = PageBeside(self.stack, self.run_dir, "--listen", "127.0.0.1:0")

    def look(self, voice: Voice) -> None:
        """Follow the bus for a moment. Whatever goes wrong with that, the command goes on: it needs us to be there."""
        self.stack.limit_logs()
        self._orphans.bury(self.beside | self.stack.pids())
        with suppress(OSError):
            if self._page is not None and (sentence := self._page.news()) is not None:
                voice.say(f"trainwarden: {sentence}")
        if self._blind:
            time.sleep(LOOK_S)
            return
        try:
            self.follower.poll(LOOK_S)
            self._followed = True
        except Exception as error:  # noqa: BLE001 - of anything at all
            self._blind = True
            voice.say(f"trainwarden: watching has ended ({type(error).__name__}: {error}); the command goes on")

    def drain(self, voice: Voice) -> None:
        """Follow until the job's end has been seen and judged, so that the last seconds count too.

        Where nothing can be followed any more nothing is waited for: the exit code is the command's own.
        """
        view = self.follower.view
        deadline = time.monotonic() + DRAIN_S
        while time.monotonic() < deadline and not self._blind:
            self.look(voice)
            if view.ended and any(verdict.phase == "ended" for verdict in view.verdicts):
                break
        # Last words of ranks may still be on their way from the agent.
        last_s = time.monotonic() + LAST_WORDS_S
        while time.monotonic() < last_s and not self._blind:
            self.look(voice)

    def keep(self, folder: Path | None, voice: Voice) -> None:
        """Write what is on the bus of this job as a recorded folder, if one was asked for.

        Where that fails it is said: the exit code is the command's own, whatever becomes of our records.
        """
        if folder is not None:
            from trainwarden.recorded.writing import write_recording

            try:
                write_recording(self.bus, self.settings.job, folder)
            except (WardenError, OSError) as error:
                voice.say(f"trainwarden: no recorded folder could be written: {error}")

    def result(self, exit_code: int | None) -> dict[str, Any]:
        """The object of contracts for watch and launch, which the kept run keeps too."""
        view = self.follower.view
        made = {
            "job": self.settings.job,
            "exit_code": exit_code,
            "steps": view.steps_done() if self._followed else None,  # of a job on several nodes nobody counts them
            "iteration_s": {"median": view.iteration_s()},
            "incidents": view.incident_objects(),
            "actions": view.action_objects(),
        }
        if self._own is not None:
            self._own.finished(made)
        return made

    def summary(self, result: Mapping[str, Any]) -> list[str]:
        """What `result` comes to, and where the records are: the last lines for a person."""
        median, incidents = result["iteration_s"]["median"], result["incidents"]
        pace = "no steps seen" if median is None else f"{result['steps']} steps, {median:.3f} s a step"
        kinds = ", ".join(sorted({incident["kind"] for incident in incidents}))
        found = f"{len(incidents)} incident(s): {kinds}" if incidents else "no incident"
        lines = [f"job {self.settings.job} ended with exit code {result['exit_code']}: {pace}, {found}"]
        bus = rundir.bus_file(self.run_dir)
        if bus.exists() and bus.stat().st_size > 0.95 * self.settings.runs.bus_bytes:
            lines.append("the run's bus has reached its limit (runs.bus_bytes): the oldest records are gone")
        return [*lines, f"records and logs: {self.run_dir}"]
