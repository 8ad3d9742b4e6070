"""The services that one command needs on this machine, each a process of its own, gone when it goes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from trainwarden.cli.shared.formatting import how_ended
from trainwarden.errors import NotJudged
from trainwarden.torchrun.files import last_lines, opened, read_part
from trainwarden.torchrun.signals import held_back

STOP_GRACE_S = 8.0
LOG_BYTES = 32 * 1024 * 1024  # of one service's log, the older half included


class LocalStack:
    """Starts ``trainwarden agent|detector|engine`` for one run folder and stops them again.

    Parameters
    ----------
    run_dir : Path
        The run folder; service logs go to its ``services`` subfolder.
    environ : mapping
        ``TRAINWARDEN_*`` settings of the services, laid over this process's environment.
    config : Path, optional
        A settings file that the services read as well.
    """

    def __init__(self, run_dir: Path, environ: Mapping[str, str], config: Path | None = None) -> None:
        self._run_dir = run_dir
        self._environ = {**os.environ, **environ, "PYTHONUNBUFFERED": "1"}
        # The services work on small arrays: more than one BLAS thread only takes CPU from the training job.
        self._environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        self._environ.setdefault("OMP_NUM_THREADS", "1")
        self._config = config
        self._logs = run_dir / "services"
        self._logs.mkdir(mode=0o700, exist_ok=True)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, service: str, *arguments: str, stdout: IO[str] | None = None) -> None:
        """Start one service, again if it has ended; its output goes to ``services/<service>.log``.

        What it writes to standard output goes to `stdout` instead, if there is one.
        """
        if service in self._processes:
            self._processes[service].wait()
        command = [sys.executable, "-P", "-m", "trainwarden.cli.main", service]
        command += ["--run-dir", str(self._run_dir), "--with-parent", str(os.getpid())]
        if self._config is not None:
            command += ["--config", str(self._config)]
        command += arguments  # last: they may end in `--` and a training command, whose every word is its own
        with self.open_log(service) as log, held_back():
            self._processes[service] = subprocess.Popen(
                command,
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=log if stdout is None else stdout,
                stderr=log,
                # A group of its own: Ctrl-C in the terminal is for the training command, we stop ours in order.
                start_new_session=True,
            )

    def open_log(self, service: str) -> IO[bytes]:
        """Its log, to write at the end of.

        Raises
        ------
        OSError
            If something else lies there, or the log cannot be written.
        """
        return open(opened(self.log_path(service), os.O_APPEND, 0o666), "ab")

    def log_path(self, service: str) -> Path:
        """Where the output of `service` goes."""
        return self._logs / f"{service}.log"

    def pid(self, service: str) -> int:
        """Process id of `service`."""
        return self._processes[service].pid

    def pids(self) -> set[int]:
        """Process ids of all services that were started last."""
        return {process.pid for process in self._processes.values()}

    def signal(self, service: str, number: int) -> None:
        """Send signal `number` to `service`, if it runs."""
        if service in self._processes:
            self._processes[service].send_signal(number)

    def returncode(self, service: str) -> int | None:
        """Exit code of `service`; None while it runs."""
        return self._processes[service].poll()

    def ask_to_stop(self, service: str) -> None:
        """Ask `service` to end, and do not wait for it."""
        self._processes[service].terminate()

    def kill(self, service: str) -> None:
        """End `service` for good, and do not wait for it."""
        self._processes[service].kill()

    def limit_logs(self, limit_bytes: int = LOG_BYTES) -> None:
        """Keep each log below its limit: what is half as large becomes ``<service>.log.1``, in place of the one before.

        A service goes on writing at the end of its file, so that is copied and cut, not renamed.
        """
        for service in self._processes:
            path, half = self.log_path(service), limit_bytes // 2
            with suppress(OSError), self.open_log(service) as log:  # a full disk ends no command
                if os.fstat(log.fileno()).st_size > half:
                    before = path.with_suffix(".log.1")
                    before.unlink(missing_ok=True)
                    with open(opened(before, os.O_EXCL, 0o666), "wb") as copy:
                        copy.write(read_part(path, -half, half))
                    os.ftruncate(log.fileno(), 0)

    def check(self, services: Sequence[str]) -> None:
        """Raise if one of `services` has ended.

        Raises
        ------
        NotJudged
            With the end of that service's log.
        """
        self.limit_logs()
        for service in services:
            if service not in self._processes:
                raise NotJudged(f"{service} could not be started: {sys.executable}")
            code = self.returncode(service)
            if code is not None:
                tail = "\n".join(last_lines(self.log_path(service), 2000))
                raise NotJudged(f"{service} {how_ended(code)}:\n{tail}")

    def stop(self, *services: str, more_s: float = 0.0) -> None:
        """Stop `services` (all if none are named): politely, then for good; `more_s` is for what they stop first."""
        names = services or tuple(self._processes)
        processes = [self._processes[name] for name in names if name in self._processes]
        for process in processes:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + STOP_GRACE_S + more_s
        for process in processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
