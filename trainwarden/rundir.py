"""The folder of one run of one job on one node: where hook, launcher and agent meet.

::

    RUN_DIR/
    ├── hook/           one memory-mapped file per training process (with NCCL two), and agent.sock (datagrams);
    │                   rank-RANK-PID.begun of each program that has begun (`trainwarden.inject`);
    │                   resilient-TORCHRUN-ATTEMPT-RANK while others can go on without that rank
    ├── logs/           rank-N.log: output of rank N; any other *.log: output of the whole job
    ├── events.jsonl    facts that launchers know first hand, one EventRecord as JSON a line, appended whole
    ├── plan.json       the micro-batch plan in force, written whole by the launcher
    ├── pause.json      a request to stand still between two iterations (`trainwarden.hook.standing`)
    ├── validation.json  what the launcher's last validation found, and validation.log
    └── torchrun.json   there while the plug-in of torchrun reports the ends of ranks itself

Of a run folder that the command line makes, the hook's part lives on tmpfs, so that disk write-back cannot stall a
training step; nothing else does.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from trainwarden.errors import ConfigError

HOOK = "hook"
LOGS = "logs"
EVENTS = "events.jsonl"
PLAN = "plan.json"
PAUSE = "pause.json"
VALIDATION = "validation.json"
VALIDATION_LOG = "validation.log"
AGENT_SOCKET = "agent.sock"
TORCHRUN = "torchrun.json"

HOOK_ROOM_BYTES = 16 * 1024 * 1024  # 15 ranks of 0.5 MB each, and of 0.6 MB of NCCL's calls
_SHM = Path("/dev/shm")  # tmpfs by intent
_MEMORY_PREFIX = "trainwarden-"
_RANK_LOG = re.compile(r"^rank-(\d{1,6})\.log$")


def create(run_dir: Path) -> bool:
    """Make `run_dir` with its subfolders; only the hook's goes to tmpfs (``/dev/shm``), as a link to a folder there.

    Containers have 64 MB of it by default, and NCCL and data loaders live on them: where less than `HOOK_ROOM_BYTES`
    are free, the hook's files go to disk as well.

    Returns
    -------
    bool
        Whether the hook's files are on tmpfs.

    Raises
    ------
    OSError
        If a folder cannot be made.
    """
    for folder in (run_dir, run_dir / LOGS):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    memory = _folder_on_memory(f"{_MEMORY_PREFIX}{os.getuid()}-")
    if memory is None:
        (run_dir / HOOK).mkdir(mode=0o700)
        return False
    (run_dir / HOOK).symlink_to(memory)
    return True


def _folder_on_memory(prefix: str) -> Path | None:
    try:
        if _SHM.is_dir() and shutil.disk_usage(_SHM).free >= HOOK_ROOM_BYTES:
            return Path(tempfile.mkdtemp(prefix=prefix, dir=_SHM))  # mode 0700
    except OSError:
        pass
    return None


def leave_memory(run_dir: Path) -> None:
    """Remove the hook's folder on tmpfs, if `run_dir` has one. Safe twice."""
    link = run_dir / HOOK
    try:
        target = link.readlink()
    except OSError:
        return
    if target.parent == _SHM and target.name.startswith(f"{_MEMORY_PREFIX}{os.getuid()}-"):
        shutil.rmtree(target, ignore_errors=True)
        with suppress(OSError):
            link.unlink()


def bus_file(run_dir: Path) -> Path:
    """Where a run without a bus of its own settings keeps its records."""
    return run_dir / "bus.db"


def prepare(run_dir: Path) -> Path:
    """`run_dir` with its subfolders, made where they do not exist.

    Raises
    ------
    ConfigError
        If one cannot be made.
    """
    for folder in (run_dir, run_dir / HOOK, run_dir / LOGS):
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"run_dir: folder '{folder}' cannot be made ({error.strerror})") from error
    return run_dir


def rank_log(run_dir: Path, rank: int) -> Path:
    """The file that rank `rank` writes its output to."""
    return run_dir / LOGS / f"rank-{rank}.log"


def rank_of_log(path: Path) -> int | None:
    """The rank whose output `path` holds; None if it is the whole job's.

    Examples
    --------
    >>> rank_of_log(Path("logs/rank-12.log"))
    12
    >>> rank_of_log(Path("logs/job.log")) is None
    True
    """
    found = _RANK_LOG.match(path.name)
    return int(found.group(1)) if found else None
