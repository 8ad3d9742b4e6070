"""The folder in memory that the ranks' checkpoints go to, and the keeper that looks after it. No torch here."""

from __future__ import annotations

import errno
import json
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from trainwarden.checkpoint.slots import SOCKET, Slots, folder_job, job_folder
from trainwarden.checkpoints.newest import Checkpoint, Search
from trainwarden.torchrun.files import opened, put_whole, read_whole
from trainwarden.torchrun.signals import held_back

log = logging.getLogger("trainwarden.torchrun")

STORE: Final = "TRAINWARDEN_CHECKPOINTS_STORE"
EVERY: Final = "TRAINWARDEN_CHECKPOINTS_FLUSH_S"
DOMAIN: Final = "TRAINWARDEN_FAILURE_DOMAIN"
LOG_NAME: Final = "keeper.log"
_KEEPER_S: Final = 60.0  # it is up after a few seconds, on a busy node after some tens
_FILL_S: Final = 600.0  # a checkpoint may come from the store
_LOOK_S: Final = 0.2
_TRIES: Final = 3  # a keeper that has ended so often will not run
_STILL_S: Final = 60.0  # without a byte for the store: what is synced to a slow one takes some tens
_SAY_S: Final = 5.0
_KILL_S: Final = 5.0
_MOST_ANSWER_BYTES: Final = 1024 * 1024


class Overtaken(Exception):
    """Another round is wanted before the folder was given a checkpoint."""


class NotFilled(Exception):
    """The folder could not be given a checkpoint; the message says why."""


class MemoryFolder:
    """See the module.

    Parameters
    ----------
    store : str
        The folder on storage that checkpoints go to in the end.
    node : str
        This node's name.
    alone : bool
        Whether the job has this node alone. Else keepers know each other by the rendezvous service.
    found : callable
        Told where the keeper of one of several nodes listens and what it asks for, whenever that is new.
    """

    def __init__(
        self, job: str, store: str, environ: MutableMapping[str, str], run_dir: Path, *, node: str, alone: bool,
        found: Callable[[dict[str, Any]], None],
    ) -> None:  # fmt: skip
        self._job, self._store, self._environ, self._node, self._alone = job, store, environ, node, alone
        self._log, self._meeting, self._found = run_dir / LOG_NAME, run_dir / "keeper", found
        self._path = job_folder(folder_job(job), environ.get("TRAINWARDEN_CHECKPOINT_MEMORY"))
        self._keeper: subprocess.Popen[bytes] | None = None
        self._host: str | None = None
        self._request = b""
        self._ends = 0  # of keepers, one after the other
        self._guard, self._over = threading.Lock(), threading.Event()

    def start(self) -> None:
        """Keep a keeper running, once it is known by which address other nodes reach this one."""
        threading.Thread(target=self._tend, name="trainwarden-keeper", daemon=True).start()

    def tell(self, said: dict[str, Any]) -> None:
        """Other nodes reach this one by ``host``, or the keepers of the newest round are the ``ring``. May wait."""
        self._host = said.get("host", self._host)
        if (ring := said.get("ring")) is None:
            return
        with self._guard, suppress(OSError):
            put_whole(self._meeting / "ring.json", json.dumps(ring))

    def _tend(self) -> None:
        while not self._over.is_set():
            with self._guard:
                process = self._keeper
                if process is not None and process.poll() is not None and not self._over.is_set():
                    self._ends, process, self._keeper = self._ends + 1, None, None
                if process is None and (self._alone or self._host) and not self._over.is_set():
                    self._start()
            if self._keeper is not None and not self._alone:
                self._look_for_request(self._keeper.pid)
            self._over.wait(_LOOK_S if self._ends == 0 else min(_LOOK_S * 2**self._ends, _KEEPER_S))

    def _start(self) -> None:
        environ = {name: one for name, one in self._environ.items() if not name.startswith(("PET_", "TRAINWARDEN_"))}
        memory = self._environ.get("TRAINWARDEN_CHECKPOINT_MEMORY")
        words = ["--job", self._job, "--folder", "--store", self._store, *(("--memory", memory) if memory else ())]
        words += ["--node", self._node, "--with-parent", str(os.getpid())]
        if self._every is not None:
            words += ["--flush-every", self._every]
        try:
            if not self._alone:
                self._make_meeting()
                for name in ("request.json", "ring.json"):  # of a keeper before, whose key is gone
                    (self._meeting / name).unlink(missing_ok=True)
                words += ["--joins", str(self._meeting), "--listen", str(self._host)]
            with open(opened(self._log, os.O_APPEND), "ab") as said, held_back():
                self._keeper = subprocess.Popen(
                    [sys.executable, "-P", "-m", "trainwarden", "keeper", *words], env=environ,
                    stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True,
                )  # fmt: skip
        except OSError as error:
            self._ends += 1
            log.warning("trainwarden: no keeper can be started here (%s)", error)

    def _make_meeting(self) -> None:
        """Make the folder where keeper and torchrun meet; a link that lies there in its place is not followed."""
        with suppress(FileExistsError):
            self._meeting.mkdir(mode=0o700)
        if self._meeting.is_symlink():
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(self._meeting))

    @property
    def _every(self) -> str | None:
        """The least time between two checkpoints in the store, in seconds, where somebody has said it."""
        said = self._environ.get(EVERY, "")
        return said if said.replace(".", "", 1).isdigit() else None

    def _look_for_request(self, pid: int) -> None:
        try:
            said = read_whole(self._meeting / "request.json", _MOST_ANSWER_BYTES)
            fields = json.loads(said)
            if said != self._request and fields["pid"] == pid:
                self._request = said
                domain = self._environ.get(DOMAIN, "")[:512]
                self._found({"port": fields["port"], "request": fields["request"], "domain": domain})
        except (OSError, ValueError, KeyError, TypeError):
            pass  # not there yet

    def fill(self, key: str, number: int, overtaken: Callable[[], bool]) -> tuple[str | None, int]:
        """Put the newest checkpoint where the ranks of the round `number` look for it, before they start.

        Returns
        -------
        tuple of str and int
            Its path, if there is one, and its step, or 0.

        Raises
        ------
        NotFilled
            If other nodes go on from a checkpoint that cannot be had here, or the store does not say what it has.
        Overtaken
            Once `overtaken` says so.
        """
        try:
            answer = self._ask({"ask": "fill", "key": key, "round": 0 if self._alone else number}, overtaken)
            if (error := answer.get("error")) is not None:
                raise ValueError(error)
            folder, path, said = str(answer["folder"]), answer["path"], str(answer["words"])
            step = int(answer["step"] or 0)
        except (OSError, ValueError, KeyError, TypeError) as error:
            why = f"no checkpoint can be had from this node's keeper ({error})"
            if not self._alone:
                raise NotFilled(f"{why}; what it says: {self._log}") from error
            log.warning("trainwarden: %s, so ranks read and write %s itself", why, self._store)
            kept = self._kept(overtaken)
            folder, path, said = self._store, None if kept is None else str(kept.path), "in the store"
            step = 0 if kept is None else kept.step
        log.warning("trainwarden: checkpoints: %s", said)
        self._environ["TRAINWARDEN_CHECKPOINTS"] = folder
        return None if path is None else str(path), step

    def _kept(self, overtaken: Callable[[], bool]) -> Checkpoint | None:
        """The newest whole checkpoint in the store, which may stand still for ever."""
        search, since_s, said = Search(Path(self._store)), time.monotonic(), False
        while not search.wait(_LOOK_S):
            if overtaken():
                raise Overtaken
            waited_s = time.monotonic() - since_s
            if waited_s > _STILL_S:
                raise NotFilled(f"the store {self._store} did not answer within {_STILL_S:.0f} s")
            if waited_s > _SAY_S and not said:
                said = True
                log.warning("trainwarden: waiting for the store %s to say what it has", self._store)
        return search.found

    def keep_soon(self) -> None:
        """Ask the keeper to bring what the ranks save now to where it outlives this node. May wait."""
        with suppress(OSError, ValueError, Overtaken):
            self._ask({"ask": "keep"}, self._over.is_set)

    def newest(self) -> tuple[int, str, int | None] | None:
        """Step and path of the checkpoint that a restart would go on from, and the step that outlives this node."""
        try:
            slots = Slots(self._path)
            note = slots.note("folder.json") or {}
            slots.close()
        except Exception:  # noqa: BLE001 - another user's, or gone: the job goes on
            return None
        step, path, outlives = note.get("step"), note.get("path"), note.get("outlives")
        if not isinstance(step, int) or not isinstance(path, str):
            return None
        return step, path, outlives if isinstance(outlives, int) else None

    def close(self) -> None:
        """Ranks have ended for good. The memory stays: another start of the job may go on from it."""
        self._over.set()
        held = self._guard.acquire(timeout=_KILL_S)  # a disk that stands still may hold it
        process = self._keeper
        if held:
            self._guard.release()
        if process is None:
            return
        with suppress(OSError):
            process.terminate()
        if not self._ended(process):
            log.warning(
                "trainwarden: the store %s has taken no byte for %.0f s, so the last checkpoint is left in memory (%s)",
                self._store, _STILL_S, self._path,
            )  # fmt: skip
            process.kill()
            with suppress(subprocess.TimeoutExpired):  # what hangs in a file system does not even end by this
                process.wait(_KILL_S)

    def _ended(self, process: subprocess.Popen[bytes]) -> bool:
        """Wait for its end for as long as it writes; whether it has ended."""
        written, since_s, said = _written_bytes(process.pid), time.monotonic(), False
        while True:
            try:
                process.wait(_LOOK_S)
                return True
            except subprocess.TimeoutExpired:
                now_s, now = time.monotonic(), _written_bytes(process.pid)
            if now != written:
                written, since_s = now, now_s
            elif now_s - since_s > _STILL_S:
                return False
            elif now_s - since_s > _SAY_S and not said:
                said = True
                log.warning("trainwarden: waiting for the store %s to take the last checkpoint", self._store)

    def _ask(self, question: dict[str, Any], overtaken: Callable[[], bool]) -> dict[str, Any]:
        since_s, said, told = time.monotonic(), b"", False
        with self._connected(overtaken) as line:
            line.sendall(json.dumps(question).encode() + b"\n")
            while not said.endswith(b"\n"):
                if overtaken():
                    raise Overtaken
                if not told and time.monotonic() - since_s > _SAY_S:
                    told = True
                    log.warning("trainwarden: waiting for a checkpoint, from other nodes or the store %s", self._store)
                if time.monotonic() - since_s > _FILL_S or len(said) > _MOST_ANSWER_BYTES:
                    raise TimeoutError(f"it has not answered within {_FILL_S:.0f} s")
                with suppress(TimeoutError):
                    if not (piece := line.recv(1 << 16)):
                        raise ConnectionError("it has hung up")
                    said += piece
        answer = json.loads(said)
        if not isinstance(answer, dict):
            raise ValueError("it answers what is no object")
        return answer

    def _connected(self, overtaken: Callable[[], bool]) -> socket.socket:
        deadline_s = time.monotonic() + float(self._environ.get("TRAINWARDEN_KEEPER_TIMEOUT_S") or _KEEPER_S)
        while True:
            line = socket.socket(socket.AF_UNIX)
            try:
                line.settimeout(_LOOK_S)
                folder = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                try:
                    line.connect(f"/proc/self/fd/{folder}/{SOCKET}")  # a path of any length
                finally:
                    os.close(folder)
                return line
            except OSError:
                line.close()
                if time.monotonic() >= deadline_s or self._ends > _TRIES:
                    raise
                if overtaken():
                    raise Overtaken from None
                time.sleep(0.1)


def _written_bytes(pid: int) -> str:
    """What a process has written so far, as the kernel says it (proc(5), ``/proc/PID/io``)."""
    try:
        lines = Path(f"/proc/{pid}/io").read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeError):
        return ""
    return next((line for line in lines if line.startswith("wchar")), "")
