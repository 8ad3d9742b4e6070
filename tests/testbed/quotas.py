"""Shares of a processor for nodes: a control group each, in a folder that says whose it is.

A kernel ends nothing here with the test that made it, as it does with namespaces; so the next testbed sweeps what
belongs to processes that are gone.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import Final

from tests.servers.kafka import ServerMissing

PREFIX: Final = "trainwarden-testbed"
PERIOD_US: Final = 100_000  # the kernel's own default; Documentation/scheduler/sched-bwc
GONE_S: Final = 5.0
_VERSION_1: Final = (Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup/cpu,cpuacct"))
_VERSION_2: Final = Path("/sys/fs/cgroup")


class Quotas:
    """Control groups of one testbed, made in `root` (default: where this machine has its processor groups).

    Raises
    ------
    ServerMissing
        If this machine lets nobody, or not us, make such groups.
    """

    def __init__(self, root: Path | None = None) -> None:
        self._root = root or processor_groups()
        sweep(self._root)
        self._folder = self._root / f"{PREFIX}-{identity(os.getpid())}-{time.monotonic_ns():x}"
        try:
            self._folder.mkdir()
            if (self._folder / "cgroup.subtree_control").exists():
                (self._folder / "cgroup.subtree_control").write_text("+cpu")
        except OSError as error:
            raise ServerMissing(f"no control group can be made in {self._root} ({error.strerror})") from error

    def give(self, node: str, cpus: float) -> Path:
        """A group for `node` that gets `cpus` processors' worth of time; processes come in by its `cgroup.procs`."""
        group = self._folder / node
        group.mkdir(exist_ok=True)
        quota_us = round(cpus * PERIOD_US)
        if (group / "cpu.max").exists():
            (group / "cpu.max").write_text(f"{quota_us} {PERIOD_US}")
        else:
            (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (group / "cpu.cfs_quota_us").write_text(str(quota_us))
        return group / "cgroup.procs"

    def remove(self) -> None:
        """Nothing of them stays; who is still in one is killed."""
        _remove(self._folder)


def processor_groups() -> Path:
    """Where groups for processor time are made here.

    Raises
    ------
    ServerMissing
        If there is no such place.
    """
    for root in _VERSION_1:
        if (root / "cpu.cfs_quota_us").exists() or (root / "cgroup.procs").exists():
            return root
    control = _VERSION_2 / "cgroup.subtree_control"
    if control.exists() and "cpu" in control.read_text().split():
        return _VERSION_2
    raise ServerMissing("there are no control groups for processor time here")


def identity(pid: int) -> str | None:
    """A name for the process that no other process gets: its number and its start. None if it is gone."""
    try:
        # proc(5): the command, which may hold spaces, ends at the last parenthesis; field 22 is the start.
        start = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None
    return f"{pid}-{start}"


def sweep(root: Path) -> list[str]:
    """Remove groups in `root` whose owners are gone; their names."""
    swept = []
    for folder in root.glob(f"{PREFIX}-*"):
        owner = folder.name.removeprefix(f"{PREFIX}-").rpartition("-")[0]
        pid = owner.partition("-")[0]
        if pid.isdigit() and identity(int(pid)) != owner:
            _remove(folder)
            swept.append(folder.name)
    return swept


def _remove(folder: Path) -> None:
    """Remove `folder` with its groups, once nobody is in them."""
    until_s = time.monotonic() + GONE_S
    while folder.is_dir():
        for group in [*(path for path in folder.glob("*") if path.is_dir()), folder]:
            with contextlib.suppress(OSError):  # gone meanwhile, or still in use: looked at again
                for pid in (group / "cgroup.procs").read_text().split():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(int(pid), signal.SIGKILL)
                group.rmdir()
        if time.monotonic() >= until_s:
            return
        time.sleep(0.01)
