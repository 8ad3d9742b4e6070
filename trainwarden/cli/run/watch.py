"""`trainwarden watch`: somebody else's training command with the warden beside it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import IO, TextIO

from trainwarden import rundir
from trainwarden.cli.run.job_run import JobRun, exit_code_of, settings_for
from trainwarden.cli.shared.follow import record_line
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
    services = ("agent",) if config is not None else ("agent", "detector")
    with JobRun(settings, own_services=services, notice=lambda r: voice.say(record_line(r)), config=config) as run:
        run.tell("job_start", command=" ".join(command)[:1000])
        try:
            child = _start(command, run, sys.stderr if json == "-" else sys.stdout)
        except FileNotFoundError as error:
            raise ConfigError(f"watch: there is no command '{command[0]}'") from error
        code = _follow(child, run)
        run.tell("job_end", exit_code=code)
        run.drain()
        result = run.result(code)
        run.keep(keep)
    voice.answer(result)
    return code


def _start(command: Sequence[str], run: JobRun, out: TextIO) -> subprocess.Popen[bytes]:
    """The command, its two streams passed on as they come and written to the run folder's job.log."""
    child = subprocess.Popen(
        list(command), env={**os.environ, **run.environ()}, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    log = (run.run_dir / rundir.LOGS / "job.log").open("ab", buffering=0)
    assert child.stdout is not None  # asked for above
    assert child.stderr is not None
    for source, target in ((child.stdout, out), (child.stderr, sys.stderr)):
        threading.Thread(target=_pass_on, args=(source, target, log), daemon=True).start()
    return child


def _pass_on(source: IO[bytes], target: TextIO, log: IO[bytes]) -> None:
    """Copy whole lines, so that the two streams do not cut each other's lines in the log."""
    for line in source:
        target.buffer.write(line)
        target.flush()
        log.write(line)


def _follow(child: subprocess.Popen[bytes], run: JobRun) -> int:
    """Follow the bus until the command ends; signals to us are passed on to it."""

    def forward(number: int, _frame: object) -> None:
        if child.poll() is None:
            child.send_signal(number)

    # Ctrl-C reaches the command by itself (same terminal group); we only must not die of it first.
    signal.signal(signal.SIGINT, lambda *_: None)
    signal.signal(signal.SIGTERM, forward)
    while child.poll() is None:
        run.follower.poll(0.1)
    return exit_code_of(child.wait())
