"""The agent that watches this node's ranks, where none does yet: a process of its own, which ends with torchrun."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from trainwarden.torchrun.files import last_words, opened
from trainwarden.torchrun.signals import held_back

log = logging.getLogger("trainwarden.torchrun")

LAST_WORDS_S: Final = 5.0  # for what the ranks have said last
LOG_NAME: Final = "agent.log"


class NodeAgent:
    """`trainwarden agent` for the run folder `run_dir`, on the bus that the rendezvous service names.

    It needs what `pip install trainwarden` brings; where that is missing nothing watches the node, and ranks go on.
    """

    def __init__(self, job: str, node: str, run_dir: Path, environ: Mapping[str, str]) -> None:
        kept = {name: value for name, value in environ.items() if not name.startswith(("PET_", "TRAINWARDEN_"))}
        self._environ = {**kept, "TRAINWARDEN_JOB": job, "TRAINWARDEN_NODE": node, "OMP_NUM_THREADS": "1"}
        self._run_dir = run_dir
        self._guard = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._begun = False

    def watch(self, bus: str) -> None:
        """Begin, once. Called where nothing may wait, so a thread starts it."""
        with self._guard:
            if self._begun:
                return
            self._begun = True
        threading.Thread(target=self._start, args=(bus,), name="trainwarden-agent", daemon=True).start()

    def _start(self, bus: str) -> None:
        parent = str(os.getpid())  # it may be gone before the agent has imported what it needs
        command = [sys.executable, "-P", "-m", "trainwarden", "agent", "--run-dir", str(self._run_dir)]
        command += ["--with-parent", parent]
        try:
            with open(opened(self._run_dir / LOG_NAME, os.O_APPEND), "ab") as said, self._guard, held_back():
                self._process = subprocess.Popen(
                    command, env={**self._environ, "TRAINWARDEN_BUS": bus}, stdin=subprocess.DEVNULL, stdout=said,
                    stderr=said, start_new_session=True,
                )  # fmt: skip
        except OSError as error:
            log.warning("trainwarden: nothing watches this node (%s); the job goes on", error)

    def close(self) -> None:
        """Let it pass on what it has, and end it."""
        with self._guard:
            process, self._begun = self._process, True
        if process is None:
            return
        if (code := process.poll()) is not None:
            said = last_words(self._run_dir / LOG_NAME)
            log.warning("trainwarden: this node's agent had ended with code %d: %s", code, said)
        with suppress(OSError, subprocess.TimeoutExpired):
            process.terminate()
            process.wait(LAST_WORDS_S)
        if process.poll() is None:
            process.kill()
            process.wait()
