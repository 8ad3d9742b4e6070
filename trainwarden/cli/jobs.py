"""`watch` and `launch`: a training command with the warden beside it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import IO, TextIO

import msgspec

from trainwarden import rundir
from trainwarden.cli.follow import record_line
from trainwarden.cli.output import Voice, check_json_target, write_json
from trainwarden.cli.run import JobRun
from trainwarden.errors import ConfigError
from trainwarden.settings import Settings, load

EXIT_NOT_FOUND = 127  # a shell's exit code for a command that does not exist
EXIT_BY_SIGNAL = 128  # a shell's exit code for a command ended by signal n is 128 + n


def settings_for(config: Path | None, job: str | None, prefix: str) -> Settings:
    """Settings of one run; without a name the job gets a fresh one that starts with `prefix`."""
    settings = load(config)
    if job is None and config is None:
        job = f"{prefix}-{uuid.uuid4().hex[:8]}"
    if job is not None:
        settings = msgspec.convert({**msgspec.structs.asdict(settings), "job": job}, Settings, from_attributes=True)
    return settings


def watch(command: Sequence[str], *, job: str | None, json: str | None, keep: Path | None, config: Path | None) -> int:
    """Run `command` with the hook in its processes, print incidents as they happen, act on nothing.

    Returns
    -------
    int
        The command's own exit code; 128 + n if signal n ended it.
    """
    check_json_target(json)
    # The command's own output keeps its streams; ours goes to standard error.
    voice = Voice(stream=sys.stderr)
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
        _keep(run, keep)
    write_json(result, json)
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
    code = child.wait()
    return code if code >= 0 else EXIT_BY_SIGNAL - code


def launch(
    command: Sequence[str],
    *,
    nproc: int,
    mode: str,
    job: str | None,
    json: str | None,
    keep: Path | None,
    config: Path | None,
) -> int:
    """Start `nproc` ranks of `command` under the local launcher; in mode auto the engine may act."""
    check_json_target(json)
    voice = Voice(json)
    settings = settings_for(config, job, "launch")
    overrides = {"TRAINWARDEN_ENGINE_MODE": mode}
    services = ("agent", "detector", "engine")
    with JobRun(
        settings, own_services=services, notice=lambda r: voice.say(record_line(r)), config=config, overrides=overrides
    ) as run:
        voice.say(f"job {settings.job}: {nproc} ranks, mode {mode}, bus {run.bus_address}")
        code = supervise(run, command, nproc, mode, voice)
        run.drain()
        result = run.result(code)
        _keep(run, keep)
    write_json(result, json)
    return code


def supervise(run: JobRun, command: Sequence[str], nproc: int, mode: str, voice: Voice | None = None) -> int:
    """Start the supervisor of the ranks and follow the bus until it ends; the job's exit code."""
    run.tell("job_start", world_size=nproc, command=" ".join(command)[:1000])
    run.stack.start("supervise", "--nproc", str(nproc), "--mode", mode, "--", *command)
    asked = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda n, _frame: asked.append(n))
    while (code := run.stack.returncode("supervise")) is None:
        run.follower.poll(0.1)
        if asked:
            run.stack.stop("supervise")
    if voice is not None and code not in (0, None):
        voice.say(run.stack.log_path("supervise").read_text(errors="replace")[-2000:].rstrip())
    run.tell("job_end", exit_code=code)
    return code if code >= 0 else EXIT_BY_SIGNAL - code


def _keep(run: JobRun, keep: Path | None) -> None:
    if keep is not None:
        from trainwarden.recorded.writing import write_recording

        write_recording(run.bus, run.settings.job, keep)
