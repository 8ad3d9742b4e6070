"""The folder of one run of one job on one node: where hook, launcher and agent meet.

::

    RUN_DIR/
    ├── hook/           one memory-mapped file per training process, and agent.sock (datagrams)
    ├── logs/           rank-N.log: output of rank N; any other *.log: output of the whole job
    ├── events.jsonl    facts that launchers know first hand, one EventRecord as JSON a line, appended whole
    ├── plan.json       the micro-batch plan in force, written whole by the launcher
    ├── launcher.sock   the local launcher's control socket (mode 0600)
    └── launcher.json   the local launcher's durable state

The hook's part lives on tmpfs where there is one, so that disk write-back cannot stall a training step.
"""

from __future__ import annotations

import os
import re
import secrets
import tempfile
from pathlib import Path

from trainwarden.errors import ConfigError

HOOK = "hook"
LOGS = "logs"
EVENTS = "events.jsonl"
PLAN = "plan.json"
AGENT_SOCKET = "agent.sock"
LAUNCHER_SOCKET = "launcher.sock"
LAUNCHER_STATE = "launcher.json"

_RANK_LOG = re.compile(r"^rank-(\d{1,6})\.log$")


def create(job: str) -> Path:
    """A fresh run folder with its subfolders, readable by its owner alone.

    On tmpfs (``/dev/shm``) where that is writable, else in the temporary folder.

    Parameters
    ----------
    job : str
        Part of the folder's name.
    """
    shm = Path("/dev/shm")  # tmpfs by intent; the folder below has mode 0700 and a random name
    parent = shm if shm.is_dir() and os.access(shm, os.W_OK) else Path(tempfile.gettempdir())
    # Unix socket paths end at 107 bytes, so the job's name is cut.
    run_dir = parent / f"trainwarden-{os.getuid()}-{job[:24]}-{secrets.token_hex(4)}"
    return prepare(run_dir)


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
