"""`trainwarden watch`: somebody else's training command with the warden beside it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TextIO

from trainwarden import rundir
from trainwarden.cli.run.job_run import JobRun, exit_code_of, services_here, settings_for
from trainwarden.cli.run.watched import JobOutput, PassedOn, start
from trainwarden.cli.shared.follow import record_line
from trainwarden.cli.shared.kept_runs import readable
from trainwarden.cli.shared.options import Command, ConfigFile, JobName, Json, Keep
from trainwarden.cli.shared.output import Voice
from trainwarden.errors import ConfigError


def watch(
    command: Command, *, job: JobName = None, json: Json = None, keep: Keep = None, config: ConfigFile = None
) -> int:
    """Watch someone else's training command; print incidents as they happen; never touch it.

    Example: trainwarden watch -- torchrun --nproc-per-node 4 train.py
    """
    # The command's own output keeps its streams; ours goes to standard error.
    voice = Voice(json, stream=sys.stderr)
    settings = settings_for(config, job, "watch")
    services = services_here(settings, config, "agent", "detector")
    with (
        PassedOn() as signals,
        JobRun(
            settings, own_services=services, notice=lambda r: voice.say(record_line(r)), config=config, command=command
        ) as run,
    ):
        for word in run.words:
            voice.say(f"trainwarden: {word}")
        run.tell("job_start", command=" ".join(map(readable, command))[:1000])
        try:
            watched = _Watched(command, run, signals, sys.stderr if json == "-" else sys.stdout)
        except OSError as error:
            raise ConfigError(f"watch: '{command[0]}' cannot be started ({error.strerror})") from error
        run.open_page(config)
        code = watched.follow(voice)
        run.end(code)
        run.drain(voice)
        result = run.result(code)
        run.keep(keep, voice)
        for line in run.summary(result):
            voice.say(f"trainwarden: {line}")
    voice.answer_if_possible(result)
    return code


class _Watched:
    """The command, its two streams passed on as they come and kept in the run folder's job.log."""

    def __init__(self, command: Sequence[str], run: JobRun, signals: PassedOn, out: TextIO) -> None:
        environ = {**os.environ, **run.environ()}
        log = run.run_dir / rundir.LOGS / "job.log"
        self._output = JobOutput(log, run.settings.runs.log_bytes, out.fileno(), os.environ)
        try:
            self._child = start(command, environ, self._output)
        finally:
            self._output.begun()
        self._run = run
        signals.begin(self._child, self._output, run.stopped_by)
        run.beside.update(pid for pid in (self._child.pid, self._output.pid) if pid is not None)

    def follow(self, voice: Voice) -> int:
        """Follow the bus until the command ends."""
        while self._child.poll() is None:
            self._run.look(voice)
            for sentence in self._output.tend():
                voice.say(f"trainwarden: {sentence}")
        code = self._child.wait()
        self._output.end()
        return exit_code_of(code)
