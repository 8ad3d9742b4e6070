"""The folder in memory that the ranks' checkpoints go to, and the keeper that looks after it. No torch here."""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import MutableMapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from trainwarden.checkpoint.slots import SOCKET, Slots, folder_job, job_folder
from trainwarden.checkpoints.newest import newest
from trainwarden.torchrun.files import opened

log = logging.getLogger("trainwarden.torchrun")

STORE: Final = "TRAINWARDEN_CHECKPOINTS_STORE"
LOG_NAME: Final = "keeper.log"
_KEEPER_S: Final = 60.0  # it is up after a few seconds, on a busy node after some tens
_FILL_S: Final = 600.0  # a checkpoint may come from the store
_LAST_S: Final = 600.0  # for the keeper to write the last checkpoint to the store
_MOST_ANSWER_BYTES: Final = 1024 * 1024


class NotFilled(Exception):
    """The folder could not be given a checkpoint; the message says why."""


class MemoryFolder:
    """See the module.

    Parameters
    ----------
    store : str
        The folder on storage that checkpoints go to in the end.
    alone : bool
        Whether the job has this node alone. Its keeper is ours then; those of several nodes are started by a person,
        as they need certificates.
    """

    def __init__(self, job: str, store: str, environ: MutableMapping[str, str], run_dir: Path, *, alone: bool) -> None:
        self._job, self._store, self._environ, self._alone = job, store, environ, alone
        self._run_dir = run_dir
        self._path = job_folder(folder_job(job), environ.get("TRAINWARDEN_CHECKPOINT_MEMORY"))
        self._keeper: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the keeper, if it is ours and does not run."""
        if not self._alone or (self._keeper is not None and self._keeper.poll() is None):
            return
        memory = self._environ.get("TRAINWARDEN_CHECKPOINT_MEMORY")
        words = ["--job", self._job, "--folder", "--store", self._store, *(("--memory", memory) if memory else ())]
        environ = {name: one for name, one in self._environ.items() if not name.startswith(("PET_", "TRAINWARDEN_"))}
        try:
            with open(opened(self._run_dir / LOG_NAME, os.O_APPEND), "ab") as said:
                self._keeper = subprocess.Popen(
                    [sys.executable, "-P", "-m", "trainwarden", "keeper", *words, "--with-parent", str(os.getpid())],
                    env=environ, stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True,
                )  # fmt: skip
        except OSError as error:
            log.warning("trainwarden: no keeper can be started here (%s)", error)

    def fill(self, key: str) -> str | None:
        """Put the newest checkpoint where ranks look for it, before they start; returns its path.

        Raises
        ------
        NotFilled
            If other nodes go on from a checkpoint that cannot be had here.
        """
        self.start()
        try:
            answer = self._ask({"ask": "fill", "key": key})
            if (error := answer.get("error")) is not None:
                raise ValueError(error)
            folder, path, said = str(answer["folder"]), answer["path"], str(answer["words"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            why = f"no checkpoint can be had from this node's keeper ({error})"
            if not self._alone:
                raise NotFilled(why) from error
            log.warning("trainwarden: %s, so ranks read and write %s itself", why, self._store)
            found = newest(Path(self._store))
            folder, path, said = self._store, None if found is None else str(found.path), "in the store"
        log.warning("trainwarden: checkpoints: %s", said)
        self._environ["TRAINWARDEN_CHECKPOINTS"] = folder
        return None if path is None else str(path)

    def newest(self) -> tuple[int, str] | None:
        """Step and path of the checkpoint that a restart would go on from."""
        try:
            slots = Slots(self._path)
            note = slots.note("folder.json") or {}
            slots.close()
        except Exception:  # noqa: BLE001 - another user's, or gone: the job goes on
            return None
        step, path = note.get("step"), note.get("path")
        return (step, path) if isinstance(step, int) and isinstance(path, str) else None

    def close(self) -> None:
        """Ranks have ended for good. The memory stays: another start of the job may go on from it."""
        if self._keeper is not None:
            with suppress(OSError, subprocess.TimeoutExpired):
                self._keeper.terminate()
                self._keeper.wait(_LAST_S)
            if self._keeper.poll() is None:
                self._keeper.kill()
                self._keeper.wait()

    def _ask(self, question: dict[str, str]) -> dict[str, Any]:
        with self._connected() as line:
            line.sendall(json.dumps(question).encode() + b"\n")
            answer = json.loads(line.makefile("rb").readline(_MOST_ANSWER_BYTES))
        if not isinstance(answer, dict):
            raise ValueError("it answers what is no object")
        return answer

    def _connected(self) -> socket.socket:
        deadline_s = time.monotonic() + float(self._environ.get("TRAINWARDEN_KEEPER_TIMEOUT_S") or _KEEPER_S)
        while True:
            line = socket.socket(socket.AF_UNIX)
            try:
                line.settimeout(_FILL_S)
                folder = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                try:
                    line.connect(f"/proc/self/fd/{folder}/{SOCKET}")  # a path of any length
                finally:
                    os.close(folder)
                return line
            except OSError:
                line.close()
                if time.monotonic() >= deadline_s or (self._keeper is not None and self._keeper.poll() is not None):
                    raise
                time.sleep(0.1)
