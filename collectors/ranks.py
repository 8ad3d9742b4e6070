"""Which training processes of this node are which ranks, by the names of the hook's files."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import msgspec

from trainwarden import hook, rundir

_HOOK_FILE = re.compile(r"^rank-(\d{1,6})-(\d{1,10})\.hook$")

_TICKS = os.sysconf("SC_CLK_TCK")
_START_SLACK_S = 2.0  # the kernel's boot time, by which the hook reckons, is whole seconds


class RankProcess(msgspec.Struct, frozen=True):
    """One training process that has, or had, a hook file."""

    rank: int
    pid: int
    path: str


def rank_processes(run_dir: Path) -> list[RankProcess]:
    """Every process that has a hook file in `run_dir`, dead ones too, by rank.

    Examples
    --------
    >>> import tempfile
    >>> run = Path(tempfile.mkdtemp())
    >>> (run / "hook").mkdir()
    >>> (run / "hook" / "rank-3-4711.hook").touch()
    >>> [(process.rank, process.pid) for process in rank_processes(run)]
    [(3, 4711)]
    """
    folder = run_dir / rundir.HOOK
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    found = [
        RankProcess(int(match.group(1)), int(match.group(2)), f"{folder}/{name}")
        for name in names
        if (match := _HOOK_FILE.match(name))
    ]
    return sorted(found, key=lambda process: (process.rank, process.pid))


def rank_of_pid(run_dir: Path) -> dict[int, int]:
    """Rank by process id."""
    return {process.pid: process.rank for process in rank_processes(run_dir)}


def is_another(start_ticks: int, header: hook.Header) -> bool:
    """True if a process that began `start_ticks` after boot is not the one that made the hook file, whose pid it has.

    Told by clocks that nobody sets: a step of the wall clock ends no process.
    """
    now_s = time.monotonic()
    begun_s = start_ticks / _TICKS + now_s - time.clock_gettime(time.CLOCK_BOOTTIME)
    before_boot = header.start_monotonic_s > now_s + _START_SLACK_S
    return before_boot or begun_s > header.start_monotonic_s + _START_SLACK_S
