"""One watched run of one job: run folder, services, bus, follower; what watch, launch and demo have in common."""

from __future__ import annotations

import logging
import os
import signal
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from trainwarden import rundir
from trainwarden.bus import address as buses
from trainwarden.cli.run.outcome.job_answer import (
    ENDS_NO_JOB,
    answer_of,
    bare_incident,
    blindness,
    closed,
    last_word,
    said,
    service_lost,
    service_unstarted,
    watched,
)
from trainwarden.cli.run.outcome.last_look import last_look
from trainwarden.cli.run.outcome.left_behind import left_behind
from trainwarden.cli.shared import kept_runs
from trainwarden.cli.shared.answers import Blind
from trainwarden.cli.shared.extras import check_services
from trainwarden.cli.shared.follow import Follower
from trainwarden.cli.shared.machine import PACKAGE
from trainwarden.cli.shared.options import job_name
from trainwarden.cli.shared.orphans import OrphansOfAll
from trainwarden.cli.shared.output import Voice
from trainwarden.cli.shared.page_beside import PageBeside
from trainwarden.cli.shared.stack import LocalStack
from trainwarden.collectors.nccl_profiler import build as nccl_profiler
from trainwarden.errors import ConfigError, WardenError
from trainwarden.records import EventKind, EventRecord, IncidentRecord, Record
from trainwarden.settings import DEFAULT_BUS, Settings, load
from trainwarden.topics import EVENTS, INCIDENTS
from trainwarden.torchrun.files import opened

log = logging.getLogger("trainwarden.cli")

EMBEDDED: Final = "embedded"  # without a path: the run's own
LOOK_S = 0.1
UNTRAINED_S: Final = 60.0  # imports take less, unless all of a node's ranks read them from a network
DRAIN_S = 8.0
LAST_WORDS_S = 1.5  # longer than detection holds an exception that may be the echo of another rank's death
_STOPS: Final = frozenset({signal.SIGHUP, signal.SIGINT, signal.SIGTERM})
EXIT_BY_SIGNAL = 128  # a shell's exit code for a command ended by signal n is 128 + n


def settings_for(config: Path | None, job: str | None, prefix: str) -> Settings:
    """Settings of one run; without a name the job gets a fresh one that starts with `prefix`."""
    settings = load(config)
    if job is None and config is None:
        job = f"{prefix}-{uuid.uuid4().hex[:8]}"
    if job is not None:
        settings = msgspec.structs.replace(settings, job=job_name(job))
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
    services = tuple(one for one in wanted if not (one == "detector" and elsewhere(settings, config)))
    check_services(settings, services)
    return services


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
    prepare : callable, optional
        Called with the run folder and the bus before the services start; more of their settings, laid over `overrides`.

    Attributes
    ----------
    words : list of str
        What a person should know of where the records lie.
    beside : set of int
        Processes that were started beside the services; whoever started them waits for their end.
    buries : bool
        Whether `look` buries orphans; else somebody does who knows of more children than `beside` and the services.
    interrupted : str or None
        The signal by which a person or a scheduler has stopped the command.
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
        prepare: Callable[[Path, str], Mapping[str, str]] = lambda run_dir, bus: {},
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
                **prepare(self.run_dir, self.bus_address),
            }
            self.stack = LocalStack(self.run_dir, environ, config)
        except BaseException:
            self._discard()
            raise
        self.started_at_s = time.time()
        self._blind = self._followed = False
        self.interrupted: str | None = None
        self._unstarted: dict[str, OSError] = {}
        self._lost: dict[str, Blind] = {}
        self._end: EventRecord | None = None
        self._page: PageBeside | None = None
        self._idle: set[str] = set()  # sentences about programs that do not train, which were said
        self.beside: set[int] = set()
        self._orphans, self.buries = OrphansOfAll(), True

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
            try:
                self.stack.start(service)
            except OSError as error:  # no process slot is left, or the interpreter may not be run by this user
                self._unstarted[service] = error
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
        if kind == "job_end":
            self._end = record
        try:
            with open(opened(self.run_dir / rundir.EVENTS, os.O_APPEND), "ab", buffering=0) as file:
                file.write(EVENTS.encode(record) + b"\n")
        except OSError as error:  # a full disk is no reason to let go of somebody's training command
            log.warning("fact not written", extra={"fields": {"kind": kind, "error": str(error)}})

    def end(self, exit_code: int) -> None:
        """Tell that the command has ended, and whether somebody had asked for it."""
        if self.interrupted is None and exit_code - EXIT_BY_SIGNAL in _STOPS:
            self.interrupted = signal.Signals(exit_code - EXIT_BY_SIGNAL).name
        self.tell("job_end", exit_code=exit_code, interrupted=self.interrupted)

    def stopped_by(self, number: int, _frame: object = None) -> None:
        """A person or a scheduler asks the command to end by signal `number`; also as a handler of signals."""
        self.interrupted = self.interrupted or signal.Signals(number).name

    def open_page(self, config: Path | None) -> None:
        """Serve the page beside the command, which has begun; a settings file's own services have one already."""
        if self.settings.runs.page and not elsewhere(self.settings, config):
            with suppress(OSError):  # a full disk
                self._page = PageBeside(self.stack, self.run_dir, "--listen", "127.0.0.1:0")

    def look(self, voice: Voice) -> None:
        """Follow the bus for a moment. Whatever goes wrong with that, the command goes on: it needs us to be there."""
        self.stack.limit_logs()
        self._miss_services(voice)
        if self.buries:
            self._orphans.bury(self.beside | self.stack.pids())
        with suppress(OSError):
            if self._page is not None and (sentence := self._page.news(terminal=voice.terminal)) is not None:
                voice.say(f"trainwarden: {sentence}")
        if self._blind:
            time.sleep(LOOK_S)
            return
        try:
            self.follower.poll(LOOK_S)
            self._followed = True
            for sentence in self.follower.view.idle(UNTRAINED_S):
                if sentence not in self._idle:
                    self._idle.add(sentence)
                    voice.say(f"trainwarden: NOT JUDGED so far: {sentence}")
        except Exception as error:  # noqa: BLE001 - of anything at all
            self._blind = True
            why = f"watching has ended ({type(error).__name__}: {error})"
            self._lost["follower"] = Blind(why, "what the detector found is on the bus: trainwarden incidents")
            voice.say(f"trainwarden: {why}; the command goes on")

    def _miss_services(self, voice: Voice) -> None:
        """Report a service of ours that did not start, or has ended while the command runs: it judges nothing."""
        for name in self._services:
            if name in self._lost:
                continue
            if (error := self._unstarted.get(name)) is not None:
                self._lost[name] = service_unstarted(name, error)
            elif (code := self.stack.returncode(name)) is not None:
                after_s = time.time() - self.started_at_s
                self._lost[name] = service_lost(name, code, self.stack.log_path(name), after_s)
            else:
                continue
            voice.say(f"trainwarden: NOT JUDGED from now on: {self._lost[name]}; the command goes on")

    def drain(self, voice: Voice) -> None:
        """Follow until the job's end has been seen and judged, so that the last seconds count too.

        Where nothing can be followed any more nothing is waited for: the exit code is the command's own.
        """
        view = self.follower.view
        self.look(voice)
        if not self._may_tell_more():
            return
        deadline = time.monotonic() + DRAIN_S
        while time.monotonic() < deadline and not self._blind and not {"agent", "detector"} & self._lost.keys():
            if view.ended and any(verdict.phase == "ended" for verdict in view.verdicts):
                break
            self.look(voice)
        # Last words of ranks may still be on their way from the agent.
        last_s = time.monotonic() + (LAST_WORDS_S if self._failed() or self._trained() else 0.0)
        while time.monotonic() < last_s and not self._blind:
            self.look(voice)

    def _may_tell_more(self) -> bool:
        """Whether anything that a detector could judge may still come: not of a quiet command that was no training."""
        written = any((self.run_dir / rundir.LOGS).glob("*.log"))
        return written or self._failed() or self._trained() or bool(self.follower.view.verdicts)

    def _failed(self) -> bool:
        return self._end is None or self._end.fields.get("exit_code") != 0

    def _trained(self) -> bool:
        """Whether any rank was heard of, by its hook or by the agent."""
        return bool(self.follower.view.ranks()) or any((self.run_dir / rundir.HOOK).glob("rank-*"))

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
        found = self._conclude(exit_code)
        seen = watched(view, self.run_dir, self.started_at_s, followed=self._followed)
        own = "detector" in self._services
        hook = (self.run_dir / rundir.HOOK).resolve()
        if self._end is not None and (left := left_behind(hook, self.beside | self.stack.pids(), seen.steps)):
            self._lost.setdefault("command", left)
        blind = blindness(
            seen, self._lost.values(), bus=self.bus_address, own_detector=own, failed=bool(found and exit_code),
            untrained=view.untrained(),
        )  # fmt: skip
        made = {
            "job": self.settings.job,
            "answer": answer_of(found, blind),
            "exit_code": exit_code,
            "interrupted": self.interrupted,
            "steps": seen.steps,  # of a job on several nodes nobody counts them
            "iteration_s": {"median": view.iteration_s()},
            "incidents": found,
            "actions": view.action_objects(),
            "watched": msgspec.to_builtins(seen),
            "not_judged": msgspec.to_builtins(blind),
        }
        if self._own is not None:
            self._own.finished(made)
        return made

    def _conclude(self, exit_code: int | None) -> list[dict[str, Any]]:
        """All incidents: a failed command has one whatever the detector did; those of a run that is over close."""
        view, own = self.follower.view, self._end is not None and "detector" in self._services
        if own:  # a detector that is late would tell after us what nobody closes any more
            self.stack.stop("detector")
            with suppress(Exception):
                self.follower.poll(0.0)
        if exit_code and not self.interrupted and not self._known() and self._end is not None:
            self._judge_end(self._end)
        if own:
            how = f"was stopped by {self.interrupted}" if self.interrupted else f"ended with exit code {exit_code}"
            for one in [one for one in view.incidents.values() if one.wants_action]:
                self._publish(closed(one, time.time(), f"the job {how}"))
        return view.incident_objects()

    def _known(self) -> list[IncidentRecord]:
        """What may have ended the job, but for what a detector has closed that is not there any more."""
        found = [one for one in self.follower.view.incidents.values() if one.kind not in ENDS_NO_JOB]
        return [one for one in found if one.wants_action or not self._lost]

    def _judge_end(self, end: EventRecord) -> None:
        """Judge by what the run has left, unless its detector was only late: on a busy host this look takes seconds."""
        try:
            found = last_look(self.run_dir, end)
        except Exception as error:  # noqa: BLE001 - what broke the detector may break this too
            log.warning("end not judged", extra={"fields": {"error": f"{type(error).__name__}: {error}"}})
            found = []
        with suppress(Exception):  # whatever a follower breaks of is said by then
            self.follower.poll(0.0)
        for one in [] if self._known() else found or [bare_incident(end)]:
            self._publish(one)

    def _publish(self, record: IncidentRecord) -> None:
        """Put `record` among what was found, and where whoever asks later finds it."""
        self.follower.view.feed(record)
        if "detector" not in self._services and self.follower.view.verdicts:
            return  # the detector that answers there has the last word
        try:
            self.bus.publish(INCIDENTS, record.job, record)
            self.bus.flush()
        except (WardenError, OSError) as error:
            log.warning("incident not kept", extra={"fields": {"id": record.id, "error": str(error)}})

    def summary(self, result: Mapping[str, Any]) -> list[str]:
        """What `result` comes to, and where the records are: the last lines for a person."""
        median = result["iteration_s"]["median"]
        pace = "no steps seen" if median is None else f"{result['steps']} steps, {median:.3f} s a step"
        lines = [f"records and logs: {self.run_dir}"]
        bus = rundir.bus_file(self.run_dir)
        if bus.exists() and bus.stat().st_size > 0.95 * self.settings.runs.bus_bytes:
            lines.append("the run's bus has reached its limit (runs.bus_bytes): the oldest records are gone")
        how = f"ended with exit code {result['exit_code']}"
        if self.interrupted:
            how = f"was interrupted ({self.interrupted}), exit code {result['exit_code']}"
        lines.append(f"job {self.settings.job} {how}: {pace}, {said(result)}")
        return [*lines, *last_word(self.follower.view.incidents.values())]
