"""Runs of watch, launch and demo, kept for their user: one folder each, newest first, the oldest expire.

::

    $XDG_STATE_HOME/trainwarden/runs/20261121T221500-NAME-1f2e3d4c/     (default ~/.local/state)
    ├── run.json        job, command, when, and at the end what `watch --json` says
    ├── run.lock        locked by the command as long as it runs
    └── ...             the run folder of `trainwarden.rundir`, whose hook files alone lie on tmpfs

Put XDG_STATE_HOME on a local disk where the home directory is on a network: the embedded bus is a SQLite file.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
import secrets
import shutil
import tempfile
import time
import zlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from trainwarden import rundir
from trainwarden.settings import RunsSettings
from trainwarden.state import load_json, save_json

log = logging.getLogger("trainwarden.cli")

LEAST_FREE_BYTES = 32 * 2**20  # an embedded bus, and the logs of a short run
DETECT = ("detect",)  # the command of what `detect` keeps
_ABOUT = "run.json"
_LOCK = "run.lock"
UNTOLD_S = 86_400.0  # a folder that does not say what it was is given so long
_NAME = re.compile(r"^\d{8}T\d{6}-.+-[0-9a-f]{8}$")


class About(msgspec.Struct, frozen=True, omit_defaults=True):
    """What run.json says; `result` is absent while it runs, and for good if its command was killed."""

    job: str
    command: tuple[str, ...]
    started_at_s: float
    result: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class KeptRun:
    """One kept run."""

    path: Path
    about: About
    running: bool

    @property
    def is_finding(self) -> bool:
        """Whether it is what ``detect`` has found in a recording, and no job that ran."""
        return self.about.command == DETECT

    @property
    def bus(self) -> str:
        """Address of its embedded bus."""
        return f"embedded:{rundir.bus_file(self.path)}"


class OwnRun:
    """The run of this very process: its folder, locked until `close`."""

    def __init__(self, path: Path, job: str, command: Sequence[str]) -> None:
        self.path = path
        self.words: list[str] = []
        self._about = About(job, tuple(map(readable, command)), time.time())
        self._lock = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._keep(self._about)

    def finished(self, result: Mapping[str, Any]) -> None:
        """Write down how it ended, where the disk lets us."""
        try:
            self._keep(msgspec.structs.replace(self._about, result=dict(result)))
        except OSError as error:
            log.warning("result of the run not kept", extra={"fields": {"error": str(error)}})

    def _keep(self, about: About) -> None:
        save_json(self.path / _ABOUT, about, durable=False)

    def close(self) -> None:
        """Give tmpfs back what was its; the rest stays. Safe twice."""
        rundir.leave_memory(self.path)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def discard(self) -> None:
        """As if it had never been: of a command that was refused."""
        self.close()
        shutil.rmtree(self.path, ignore_errors=True)


def place(environ: Mapping[str, str] | None = None) -> Path:
    """The folder of this user's runs."""
    environ = os.environ if environ is None else environ
    state = environ.get("XDG_STATE_HOME", "")
    home = Path(state) if state.startswith("/") else Path(environ.get("HOME") or tempfile.gettempdir()) / ".local/state"
    return home / "trainwarden" / "runs"


def readable(word: str) -> str:
    """`word` of a command line as text that can be written: bytes that are no UTF-8 are replaced."""
    return os.fsencode(word).decode(errors="replace")


def begin(job: str, command: Sequence[str], limits: RunsSettings) -> OwnRun:
    """A fresh run folder of this user; older runs that `limits` do not keep are removed.

    Raises
    ------
    OSError
        If there is room neither where runs are kept nor in the temporary folder.
    """
    words: list[str] = []
    runs = place()
    try:
        words += expire(limits)
        name = f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{job[:24]}-{secrets.token_hex(4)}"
        runs.mkdir(mode=0o700, parents=True, exist_ok=True)
        if shutil.disk_usage(runs).free < LEAST_FREE_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        (runs / name).mkdir(mode=0o700)
        run, on_memory = _make(runs / name, job, command)
    except OSError as error:
        path = Path(tempfile.mkdtemp(prefix=_prefix(runs)))
        run, on_memory = _make(path, job, command)
        words.append(f"runs cannot be kept in {runs} ({error.strerror}): this one is in {path}")
    if not on_memory:
        words.append("there is too little room on /dev/shm: the hook's files go to disk")
    run.words = words
    return run


def _make(path: Path, job: str, command: Sequence[str]) -> tuple[OwnRun, bool]:
    """The run of the folder `path`, and whether the hook's files are on tmpfs; on an error nothing of it is left."""
    try:
        on_memory = rundir.create(path)
        return OwnRun(path, job, command), on_memory
    except BaseException:
        rundir.leave_memory(path)
        shutil.rmtree(path, ignore_errors=True)
        raise


def kept() -> list[KeptRun]:
    """This user's runs, newest first; also those for which there was no room where runs are kept."""
    found = [run for path in (*_folders(), *_elsewhere()) if (run := _read(path)) is not None]
    return sorted(found, key=lambda run: -run.about.started_at_s)


def killed_jobs(runs: Iterable[KeptRun]) -> set[str]:
    """The jobs of `runs` whose command has ended without a result."""
    return {run.about.job for run in runs if not run.running and run.about.result is None}


def _prefix(runs: Path) -> str:
    """How names of folders in the temporary folder begin that stand in for `runs`."""
    return f"trainwarden-run-{zlib.crc32(os.fsencode(runs)):08x}-"


def _elsewhere() -> list[Path]:
    """Folders of runs in the temporary folder, but for what another user has put there."""
    prefix = _prefix(place())
    try:
        folders = [one for one in os.scandir(tempfile.gettempdir()) if one.name.startswith(prefix)]
        return [Path(one.path) for one in folders if one.stat(follow_symlinks=False).st_uid == os.getuid()]
    except OSError:
        return []


def _folders() -> list[Path]:
    """Folders of runs, newest first."""
    runs = place()
    try:
        return [runs / name for name in sorted(os.listdir(runs), reverse=True) if _NAME.match(name)]
    except OSError:
        return []


def _read(path: Path) -> KeptRun | None:
    try:
        return KeptRun(path, msgspec.convert(load_json(path / _ABOUT), About), _is_running(path))
    except (OSError, msgspec.ValidationError):
        return None


def _is_running(path: Path) -> bool:
    try:
        lock = os.open(path / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(lock)
    return False


def expire(limits: RunsSettings) -> list[str]:
    """Remove runs beyond `limits`, oldest first, never one that runs; a sentence if there were any."""
    now_s = time.time()
    removed = size = 0
    for path in _folders():  # a disk that was full may have kept no word of what the run was
        with suppress(OSError):
            if _read(path) is None and not _is_running(path) and now_s - path.stat().st_mtime > UNTOLD_S:
                shutil.rmtree(path, ignore_errors=True)
                removed += 1
    for count, run in enumerate(kept(), start=1):
        if not run.running:
            rundir.leave_memory(run.path)  # its command was killed
        size += size_of(run.path)
        too_old = now_s - run.about.started_at_s > limits.keep_days * 86_400.0
        too_many = limits.keep is not None and count > limits.keep
        if not run.running and (too_old or too_many or size > limits.total_bytes):
            shutil.rmtree(run.path, ignore_errors=True)
            removed += 1
    return [f"{removed} earlier run(s) expired in {place()} (settings: runs)"] if removed else []


def size_of(path: Path) -> int:
    """Bytes on the disk of everything in `path`."""
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            with suppress(OSError):  # it went while we looked
                total += Path(folder, name).lstat().st_blocks * 512
    return total
