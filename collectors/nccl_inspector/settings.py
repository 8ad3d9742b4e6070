"""Where the inspector of a process writes, and what it must be told so that its lines can be used."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

_ENABLE = "NCCL_INSPECTOR_ENABLE"
_FOLDER = "NCCL_INSPECTOR_DUMP_DIR"
_JOB = "SLURM_JOBID"
_EVERY_US = "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS"
_VERBOSE = "NCCL_INSPECTOR_DUMP_VERBOSE"
_PROMETHEUS = "NCCL_INSPECTOR_PROM_DUMP"
_MOST_US = (
    2_000_000  # steps of ranks that are told further apart are not joined (trainwarden.detectors.calls.board.LATE_S)
)
_MAX_ENVIRON_BYTES = 1 << 20


def environment(proc: str, pid: int) -> dict[str, str]:
    """The inspector's variables with which process `pid` was started; empty if they may not be read.

    Raises
    ------
    OSError
        If the process cannot be looked into.
    """
    with open(f"{proc}/{pid}/environ", "rb") as file:
        pairs = file.read(_MAX_ENVIRON_BYTES).split(b"\0")
    found = (
        os.fsdecode(pair).partition("=") for pair in pairs if pair.startswith((b"NCCL_INSPECTOR_", b"SLURM_JOBID="))
    )
    return {name: value for name, _, value in found}


def is_on(variables: Mapping[str, str]) -> bool:
    """Whether the inspector was asked for."""
    return _number(variables.get(_ENABLE)) not in (None, 0)


def wanting(variables: Mapping[str, str]) -> str | None:
    """What must be set for its lines to be of use; None if nothing.

    Examples
    --------
    >>> wanting({"NCCL_INSPECTOR_DUMP_VERBOSE": "1", "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS": "500000"})
    >>> wanting({"NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS": "500000"})
    'NCCL_INSPECTOR_DUMP_VERBOSE=1'
    """
    if _number(variables.get(_PROMETHEUS)):
        return f"{_PROMETHEUS}=0"
    if not _number(variables.get(_VERBOSE)):
        return f"{_VERBOSE}=1"
    every_us = _number(variables.get(_EVERY_US))
    if every_us is None or not 0 <= every_us <= _MOST_US:
        return f"{_EVERY_US}=500000"
    return None


def paths(variables: Mapping[str, str], folder: str, own_pid: int, here: tuple[str, int]) -> Iterator[str]:
    """Where the file of a process may lie, by its own `own_pid` and by proc folder and pid as seen from here.

    ``gethostname`` of a container is what its ``/etc/hostname`` says.
    """
    proc, pid = here
    root = f"{proc}/{pid}/root"
    hosts = [os.uname().nodename]
    with suppress(OSError, UnicodeDecodeError):
        hosts.insert(0, Path(f"{root}/etc/hostname").read_text(encoding="utf-8")[:255].strip())
    job = _number(variables.get(_JOB))
    folder = folder or variables.get(_FOLDER) or f"nccl-inspector-{'unknown-jobid' if job is None else job}"
    with suppress(OSError):
        folder = str(Path(os.readlink(f"{proc}/{pid}/cwd"), folder))  # noqa: PTH115 - a kernel's name
    for host in dict.fromkeys(hosts):
        if host and "/" not in host:
            for top in (root, ""):
                yield f"{top}{folder}/{host}-pid{own_pid}.log"


def _number(text: str | None) -> int | None:
    try:
        return None if text is None else int(text[:20])
    except ValueError:
        return None
