"""Disk and memory of one node, each checked by a child that may hang or be killed without harm to us."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil

from trainwarden.actions.validation.results import NodeReport
from trainwarden.launching import Check

DISK_BYTES: Final = 64 << 20
MEMORY_SHARE: Final = 0.02  # of what is available: room for the job's own start stays
MOST_MEMORY_BYTES: Final = 256 << 20  # some 0.3 s of a processor
_HERE = Path(__file__).parent
_KILLED_WAIT_S = 0.5


class NodeChecks:
    """The checks of `node`, under way from the start; `poll` says when they are done.

    Parameters
    ----------
    node : str
    checks : iterable of Check
        ``disk`` and ``memory`` of them are for us.
    checkpoints : Path, optional
        The folder whose disk is checked; without it the disk is left out.
    limit_s : float
        After so long a child counts as one that hangs.
    """

    def __init__(self, node: str, checks: Iterable[Check], checkpoints: Path | None, limit_s: float) -> None:
        self._node, self._limit_s, self._until_s = node, limit_s, time.monotonic() + limit_s
        self._mb_per_s: dict[str, float] = {}
        self._wrong: dict[Check, str] = {}
        self._left_out: dict[Check, str] = {}
        self._children: dict[Check, subprocess.Popen[bytes]] = {}
        wanted = set(checks)
        if "disk" in wanted and checkpoints is None:
            self._left_out["disk"] = "no folder of checkpoints is named"
        elif "disk" in wanted and checkpoints is not None:
            self._start("disk", "disk_child.py", str(checkpoints), str(DISK_BYTES))
        if "memory" in wanted:
            self._start("memory", "memory_child.py", str(memory_bytes()))

    def _start(self, check: Check, script: str, *arguments: str) -> None:
        command = [sys.executable, "-I", "-S", str(_HERE / script), *arguments]
        try:
            self._children[check] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
        except OSError as error:
            self._left_out[check] = f"no process can be started ({error.strerror})"

    def poll(self) -> NodeReport | None:
        """What they answered; None while one of them is under way and its time is not over."""
        for check, child in [*self._children.items()]:
            if child.poll() is not None:
                self._judge(check, child)
            elif time.monotonic() > self._until_s:
                # Memory answers or kills: no answer is for want of a processor. Jobs hang on disks that do not answer.
                told = self._wrong if check == "disk" else self._left_out
                told[check] = f"no answer within {self._limit_s:.0f} s"
            else:
                continue
            self._let_go(self._children.pop(check))
        if self._children:
            return None
        return NodeReport(node=self._node, mb_per_s=self._mb_per_s, wrong=self._wrong, left_out=self._left_out)

    def close(self) -> None:
        """End what is under way; a child that waits for a disk that hangs cannot be ended and is left."""
        while self._children:
            self._let_go(self._children.popitem()[1])

    def _judge(self, check: Check, child: subprocess.Popen[bytes]) -> None:
        assert child.stdout is not None
        said = child.stdout.read(1000).decode(errors="replace")
        if child.returncode == 0:
            names = ("write", "read") if check == "disk" else ("memory",)
            self._mb_per_s |= dict(zip(names, map(float, said.split()), strict=True))
        elif child.returncode > 0 and said:
            self._wrong[check] = said
        else:
            how = f"signal {-child.returncode}" if child.returncode < 0 else f"code {child.returncode}"
            self._left_out[check] = f"its process ended with {how}"

    def _let_go(self, child: subprocess.Popen[bytes]) -> None:
        child.kill()
        with suppress(subprocess.TimeoutExpired):
            child.wait(_KILLED_WAIT_S)
        if child.stdout is not None:
            child.stdout.close()


def memory_bytes(available: int | None = None) -> int:
    """How much memory is checked.

    Examples
    --------
    >>> memory_bytes(1 << 30), memory_bytes(1 << 40)
    (21474836, 268435456)
    """
    if available is None:
        available = min(psutil.virtual_memory().available, _left_in_cgroup() or sys.maxsize)
    return min(int(MEMORY_SHARE * available), MOST_MEMORY_BYTES)


def _left_in_cgroup(root: Path = Path("/sys/fs/cgroup")) -> int | None:
    """What a container's limit leaves; None where there is none to be seen."""
    for limit, usage in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        try:
            return max(0, int((root / limit).read_text()) - int((root / usage).read_text()))
        except (OSError, ValueError):
            continue
    return None
