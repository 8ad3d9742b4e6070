"""A real agent process over a run folder, to be killed and started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Mapping
from pathlib import Path

from trainwarden import rundir
from trainwarden.bus.embedded.engine import EmbeddedBus
from trainwarden.collectors import CATALOG
from trainwarden.protocols import Message
from trainwarden.records import Record
from trainwarden.topics import Topic

_PROGRAM = """
import os, sys
from pathlib import Path
from trainwarden.collectors.agent.agent import serve
from trainwarden.cli.serve.process import StopFlag
from trainwarden.self_metrics import log_to_stderr
from trainwarden.settings import load
log_to_stderr()
serve(load(), Path(sys.argv[1]), Path(sys.argv[2]), StopFlag(with_parent=os.getppid()))
"""


def _only(collectors: str) -> str:
    """The inline table with every other collector of the CATALOG off."""
    named = tomllib.loads(f"it = {collectors}")["it"]
    return f"{{{', '.join([f'{name} = false' for name in CATALOG if name not in named] + [collectors.strip()[1:-1]])}}}"


class AgentProcess:
    """The agent as a service on an embedded bus in `folder`.

    Parameters
    ----------
    folder : Path
        Gets ``run``, ``state``, ``bus.db`` and ``agent.err``.
    collectors : str
        ``agent.collectors`` as an inline table of TOML; those that it does not name are switched off.
    environ : mapping, optional
        Further environment variables.
    """

    def __init__(self, folder: Path, collectors: str, environ: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.run_dir = rundir.prepare(folder / "run")
        self.bus_path = folder / "bus.db"
        self.errors = folder / "agent.err"
        self._environ = {
            **{key: value for key, value in os.environ.items() if not key.startswith("TRAINWARDEN_")},
            "TRAINWARDEN_JOB": "job",
            "TRAINWARDEN_NODE": "node0",
            "TRAINWARDEN_BUS": f"embedded:{self.bus_path}",
            "TRAINWARDEN_AGENT_COLLECTORS": _only(collectors),
            **(environ or {}),
        }
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; what it says goes to ``agent.err``."""
        command = [sys.executable, "-c", _PROGRAM, str(self.run_dir), str(self.folder / "state")]
        with self.errors.open("ab") as errors:
            self.process = subprocess.Popen(
                command, env=self._environ, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors
            )

    def kill(self) -> None:
        """SIGKILL, reaped."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """SIGTERM, reaped."""
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        if self.process is not None:
            self.process.send_signal(number)
            try:
                self.process.wait(30.0)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                raise AssertionError(f"the agent did not end on {number.name}\n{self.tail()}") from None
            self.process = None

    def tail(self) -> str:
        """The end of what it said."""
        return self.errors.read_text(errors="replace")[-3000:]

    def messages(self, topic: Topic[Record]) -> list[Message]:
        """Everything of one topic on the bus now."""
        bus = EmbeddedBus(str(self.bus_path))
        try:
            return list(bus.read(topic))
        finally:
            bus.close()

    def wait_for(self, what: str, topic: Topic[Record], enough: int, timeout_s: float = 90.0) -> list[Message]:
        """The messages of `topic` once there are `enough`.

        Raises
        ------
        AssertionError
            With the end of the agent's log if that takes longer than `timeout_s`.
        """
        deadline_s = time.monotonic() + timeout_s
        while len(found := self.messages(topic)) < enough:
            if time.monotonic() > deadline_s:
                raise AssertionError(f"waited {timeout_s} s for {what}, found {len(found)}\n{self.tail()}")
            if self.process is None or self.process.poll() is not None:
                raise AssertionError(f"the agent ended while waiting for {what}\n{self.tail()}")
            time.sleep(0.1)
        return found
