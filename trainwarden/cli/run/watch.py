"""`trainwarden watch`: somebody else's training command with the warden beside it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from typing import Final, TextIO

from trainwarden import rundir
from trainwarden.cli.run.job_run import JobRun, exit_code_of, services_here, settings_for
from trainwarden.cli.shared.follow import record_line
from trainwarden.cli.shared.options import Command, ConfigFile, JobName, Json, Keep
from trainwarden.cli.shared.output import Voice
from trainwarden.errors import ConfigError
from trainwarden.launching.job_output import Drain, LogKeeper, Outlet, join_all

LAST_OUTPUT_S: Final = 2.0  # how long a child of the command may still hold its output when the command has ended


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
    with JobRun(
        settings, own_services=services, notice=lambda r: voice.say(record_line(r)), config=config, command=command
    ) as run:
        for word in run.words:
            voice.say(f"trainwarden: {word}")
        run.tell("job_start", command=" ".join(command)[:1000])
        try:
            watched = _Watched(command, run, sys.stderr if json == "-" else sys.stdout)
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

    def __init__(self, command: Sequence[str], run: JobRun, out: TextIO) -> None:
        self._child = subprocess.Popen(
            list(command), env={**os.environ, **run.environ()}, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self._run = run
        self._logs = LogKeeper(run.settings.runs.log_bytes)
        keep = partial(self._logs.keep, run.run_dir / rundir.LOGS / "job.log")
        assert self._child.stdout is not None  # asked for above
        assert self._child.stderr is not None
        streams = ((self._child.stdout, out), (self._child.stderr, sys.stderr))
        self._drains = [Drain(os.dup(source.fileno()), Outlet(target.fileno()), keep) for source, target in streams]
        for source, _ in streams:
            source.close()

    def follow(self, voice: Voice) -> int:
        """Follow the bus until the command ends; signals to us are passed on to it."""
        # Ctrl-C reaches the command by itself (same terminal group); we only must not die of it first.
        signal.signal(signal.SIGINT, self._run.stopped_by)
        signal.signal(signal.SIGTERM, self._forward)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as under nohup
            signal.signal(signal.SIGHUP, self._forward)
        while self._child.poll() is None:
            self._run.look(voice)
            for sentence in self._logs.news():
                voice.say(f"trainwarden: {sentence}")
        code = self._child.wait()
        join_all(self._drains, LAST_OUTPUT_S)
        self._logs.close()
        return exit_code_of(code)

    def _forward(self, number: int, frame: object) -> None:
        self._run.stopped_by(number, frame)
        if self._child.poll() is None:
            self._child.send_signal(number)
