"""How much memory the control groups of a process leave it, in either version of the kernel's interface.

A limit holds for all below it, so the least room on the way up counts. Files that were not read of late can be
dropped, and make room (`inactive_file` in the kernel's memory controller).
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Final

from trainwarden.collectors.host.proc_files import numbered_lines, read_whole

NO_LIMIT: Final = 1 << 60  # version 1 states the largest number of pages for none
MAX_DEPTH: Final = 32
# Limit, use, and the line of memory.stat that counts files not read of late.
_VERSION_1: Final = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_VERSION_2: Final = ("memory.max", "memory.current", "inactive_file")


class MemoryRoom:
    """Room in control groups, each of which is read once by one such object: its ranks share one number.

    Parameters
    ----------
    proc, groups : str
        Where the kernel shows processes, and control groups.
    """

    def __init__(self, proc: str, groups: str) -> None:
        self._proc, self._groups = proc, Path(groups)
        self._known: dict[Path, float | None] = {}

    def of(self, pid: int) -> float | None:
        """Bytes that process `pid` may still use; None where no group limits it."""
        rooms = []
        for line in read_whole(f"{self._proc}/{pid}/cgroup").decode(errors="replace").splitlines():
            _, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            if not controllers:
                rooms += self._up(("", "unified"), path, _VERSION_2)
            elif "memory" in controllers.split(","):
                rooms += self._up(("memory",), path, _VERSION_1)
        return min(rooms, default=None)

    def _up(self, roots: tuple[str, ...], path: str, files: tuple[str, str, str]) -> list[float]:
        """The room in a group and in all that it lies in. A container sees its own group at the root."""
        parts = [part for part in PurePosixPath(path).parts if part not in ("/", "..")][:MAX_DEPTH]
        folders = [self._groups.joinpath(root, *parts[:depth]) for root in roots for depth in range(len(parts) + 1)]
        for folder in folders:
            if folder not in self._known:
                self._known[folder] = _room(folder, files)
        return [room for folder in folders if (room := self._known[folder]) is not None]


def _room(folder: Path, files: tuple[str, str, str]) -> float | None:
    limit_file, use_file, droppable = files
    try:
        limit, used = int(read_whole(f"{folder}/{limit_file}")), int(read_whole(f"{folder}/{use_file}"))
    except ValueError:  # no such group to be seen, or "max"
        return None
    files_bytes = numbered_lines(read_whole(f"{folder}/memory.stat"), (droppable,)).get(droppable, 0.0)
    return max(0.0, limit - used + files_bytes) if limit < NO_LIMIT else None
