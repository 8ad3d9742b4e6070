"""The files of one network port in sysfs, kept open: a second's look at a port is then one read for each of them.

Opening and closing a file of sysfs costs five times what reading it does, and a node with eight InfiniBand ports has
three hundred of them.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Mapping

_READ_BYTES = 4096  # what sysfs gives at most (kernel documentation, filesystems/sysfs)
_SHARE = 4  # of the files that this process may have open, one in so many may be kept here


class OpenFiles:
    """How many files all ports keep open together, and how many they may."""

    def __init__(self) -> None:
        self.kept = 0
        self.most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // _SHARE


class PortFiles:
    """The files below one folder, for as long as it is the same folder.

    Parameters
    ----------
    folder : str
        An interface's or port's folder in sysfs.
    opened : OpenFiles
        What all ports have open; where that is enough, files are opened and closed at each read.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> folder = tempfile.mkdtemp()
    >>> _ = pathlib.Path(folder, "speed").write_text("100000\\n")
    >>> port = PortFiles(folder, OpenFiles())
    >>> port.number("speed"), port.text("operstate")
    (100000.0, None)
    >>> port.close()
    """

    def __init__(self, folder: str, opened: OpenFiles) -> None:
        self.folder = folder
        self._opened = opened
        self._kept: dict[str, int] = {}
        self._identity = self._now()

    def same(self) -> bool:
        """Whether its name still means what it meant: an interface may have been exchanged, or renamed."""
        return self._identity is not None and self._identity == self._now()

    def text(self, file: str) -> str | None:
        """The word or line in `file`; None if it is not there or does not answer (a port that is down)."""
        kept = self._kept.get(file)
        try:
            if kept is not None:
                return os.pread(kept, _READ_BYTES, 0).decode("ascii", "replace").strip()
            descriptor = os.open(f"{self.folder}/{file}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        keep = self._opened.kept < self._opened.most
        try:
            if keep:
                self._kept[file] = descriptor
                self._opened.kept += 1
            return os.pread(descriptor, _READ_BYTES, 0).decode("ascii", "replace").strip()
        except OSError:
            return None
        finally:
            if not keep:
                os.close(descriptor)

    def number(self, file: str) -> float | None:
        """The number in `file`; None if there is none."""
        text = self.text(file)
        return float(text) if text is not None and text.lstrip("-").isdigit() else None

    def numbers(self, folder: str, wanted: Mapping[str, str]) -> dict[str, float]:
        """Values of those files of `folder` within the port's that are there, by metric name."""
        found = ((name, self.number(f"{folder}/{file}")) for file, name in wanted.items())
        return {name: value for name, value in found if value is not None}

    def close(self) -> None:
        """Let go of all. Safe twice."""
        for descriptor in self._kept.values():
            os.close(descriptor)
        self._opened.kept -= len(self._kept)
        self._kept.clear()

    def _now(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self.folder)  # noqa: PTH116 - every second for every port
        except OSError:
            return None
        return found.st_dev, found.st_ino
