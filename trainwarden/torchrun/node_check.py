"""This node's part of a validation in the middle of a job: its ranks stand still, and what is measured is alone.

The service says by each of its words what is to be done; where one says nothing of it, or no word comes, all goes on.
The ranks go on by themselves as well (`trainwarden.hook.standing`), whatever becomes of this process.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from trainwarden import rundir
from trainwarden.hook import Header, files_in
from trainwarden.torchrun.standing import progress_of, put_pause
from trainwarden.torchrun.validation import ValidationChild

log = logging.getLogger("trainwarden.torchrun")

IDLE_S: Final = 1.0  # between two looks while nothing is asked
BUSY_S: Final = 0.1
PROGRESS_S: Final = 0.5
SILENT_S: Final = 5.0  # without a word of the service nothing is measured any more
MOST_FOR_S: Final = 1500.0  # of a pause; the hook has a limit of its own
MOST_RESULT_BYTES: Final = 400_000  # trainwarden.actions.launchers.torchrun.messages
MOST_ERROR_CHARS: Final = 500

Fields = dict[str, Any]


class NodeCheck:
    """See the module.

    Parameters
    ----------
    running : callable
        The pids of this node's ranks.
    update : callable
        Told what has changed of ``holds`` and ``check`` (`Beat` of the service).
    heard_s : callable
        When the service was heard last, by the monotonic clock.
    """

    def __init__(
        self, run_dir: Path, node: str, environ: Mapping[str, str], *, running: Callable[[], Collection[int]],
        update: Callable[..., None], heard_s: Callable[[], float],
    ) -> None:  # fmt: skip
        kept = {name: value for name, value in environ.items() if not name.startswith(("PET_", "TRAINWARDEN_"))}
        self._run_dir, self._node, self._environ = run_dir, node, kept
        self._running, self._update, self._heard_s = running, update, heard_s
        self._wake = threading.Event()
        self._wanted: Fields | None = None
        self._current: _Current | None = None
        self._given_up = 0  # the number of a validation that is over here, whatever the service says
        self._said: Fields = {"holds": False, "check": None}
        self._over = False

    def start(self) -> None:
        """Look in the background, and take back what a torchrun that was killed has asked of its ranks."""
        with suppress(OSError):
            (self._run_dir / rundir.PAUSE).unlink(missing_ok=True)
        threading.Thread(target=self._run, name="trainwarden-check", daemon=True).start()

    def want(self, word: Fields | None) -> None:
        """What the service's newest word says; called where nothing may wait."""
        if word != self._wanted:
            self._wanted = word
            self._wake.set()

    def close(self) -> None:
        """This torchrun ends."""
        self._over = True
        self._wake.set()

    def _run(self) -> None:
        while not self._over:
            try:
                self.look()
            except Exception as error:  # noqa: BLE001 - the one place: whatever breaks here, ranks and beats go on
                log.warning("trainwarden: this node takes no part in the validation (%s)", error)
                self._wanted = None  # until the service says something else
                self._end("its agent broke: " + str(error))
            self._wake.wait(IDLE_S if self._current is None else BUSY_S)
            self._wake.clear()
        self._end()

    def look(self) -> None:
        """One step further."""
        wanted, current = self._wanted, self._current
        silent = time.monotonic() - self._heard_s() > SILENT_S
        if current is not None and (silent or wanted is None or wanted.get("number") != current.number):
            self._given_up = current.number if silent else self._given_up
            self._end()
            current = None
        pids = set(self._running())
        files = {one[1].pid: one for one in files_in(self._run_dir / rundir.HOOK) if one[1].pid in pids}
        holds = bool(pids) and len(files) == len(pids) and all(one[1].stands is not None for one in files.values())
        if wanted is not None and not silent and wanted["number"] > self._given_up:
            if current is None:
                current = self._current = _Current(wanted["number"], len(pids))
            current.follow(wanted, self._start, self._run_dir / rundir.PAUSE, list(files.values()))
        self._say(holds=holds, check=None if current is None else current.said)

    def _start(self, words: list[str]) -> ValidationChild:
        return ValidationChild(self._run_dir, self._node, words, self._environ)

    def _say(self, **fields: Any) -> None:
        if fields != self._said:
            self._said = fields
            self._update(**fields)

    def _end(self, error: str | None = None) -> None:
        """Let all go on."""
        current, self._current = self._current, None
        if current is None:
            return
        current.end(self._run_dir / rundir.PAUSE)
        if error is not None:
            self._given_up = current.number
            self._say(holds=False, check={"number": current.number, "error": error[:MOST_ERROR_CHARS]})


class _Current:
    """One validation, and what is said of it."""

    def __init__(self, number: int, ranks: int) -> None:
        self.number, self._ranks = number, ranks
        self.said: Fields = {"number": number}
        self._child: ValidationChild | None = None
        self._asked = self._begun = False
        self._progress_s = 0.0

    def follow(
        self, word: Fields, start: Callable[[list[str]], ValidationChild], pause: Path, files: list[tuple[Path, Header]]
    ) -> None:  # fmt: skip
        """Do what `word` says next. Whatever the system raises."""
        if "error" in self.said or "result" in self.said:
            return
        if not word.get("port") and word["place"] == 0 and "port" not in self.said:
            self._add(port=_free_port())
        if self._child is None and word.get("port"):
            try:
                self._child = start(self._words(word))
            except OSError as error:
                self._add(error=f"the validation could not be started ({error.strerror})")
        child = self._child
        if child is None:
            return
        if "ready" not in self.said and child.ready:
            self._add(ready=True)
        if word.get("for_s") is not None and not self._asked:
            self._asked = True
            until_s = time.time() + min(float(word["for_s"]), MOST_FOR_S)
            put_pause(pause, self.number, until_s, word.get("step"), files)
        self._tell_ranks(files)
        if word.get("measures") and not self._begun:
            self._begun = True
            child.begin()
        if child.ended:
            self._conclude(child, first=word["place"] == 0)

    def _words(self, word: Fields) -> list[str]:
        return [
            "--nproc", str(self._ranks), "--nnodes", str(int(word["nodes"])), "--node-rank", str(int(word["place"])),
            "--master-addr", str(word["host"]), "--port", str(int(word["port"])),
            "--checks", ",".join(map(str, word["checks"])),
        ]  # fmt: skip

    def _tell_ranks(self, files: list[tuple[Path, Header]]) -> None:
        stands = sorted(header.rank for _, header in files if header.stands == self.number)
        if stands != self.said.get("stands", []):
            self._add(stands=stands)
        now_s = time.monotonic()
        if not self._begun and now_s - self._progress_s >= PROGRESS_S:
            self._progress_s = now_s
            now = progress_of(files)
            self._add(progress=None if now is None else list(now))

    def _conclude(self, child: ValidationChild, *, first: bool) -> None:
        found = child.result()
        if isinstance(found, bytes) and len(found) <= MOST_RESULT_BYTES:
            self._add(**({"result": found.decode("utf-8", "replace")} if first else {}))
        elif isinstance(found, bytes):
            self._add(error=f"the result has {len(found)} bytes")
        else:
            self._add(error=found[:MOST_ERROR_CHARS])

    def _add(self, **fields: Any) -> None:
        self.said = {**self.said, **fields}

    def end(self, pause: Path) -> None:
        """Let the ranks go on, and end the process."""
        with suppress(OSError):
            pause.unlink(missing_ok=True)
        if self._child is not None:
            self._child.kill()


def _free_port() -> int:
    """One at which nothing listens now, of any address."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as made:
        made.bind(("", 0))
        return int(made.getsockname()[1])
