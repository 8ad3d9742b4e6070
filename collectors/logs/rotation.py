"""The files of one path under rotation, told apart by device and inode: names change while we look."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

_LOOKS = 5  # at a folder in which files are being renamed
_ROTATED = re.compile(r"[.-](\d{1,14})\Z")

Identity = tuple[int, int]
"""Device and inode."""


class RotatedFiles:
    """The file at `path` and those that a rotation has renamed.

    Parameters
    ----------
    path : Path
        Need not exist.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> for name in ("a.log", "a.log.1", "a.log.2", "b.log"):
    ...     (folder / name).touch()
    >>> [path.name for path, _ in RotatedFiles(folder / "a.log").chain()]
    ['a.log.2', 'a.log.1', 'a.log']
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def chain(self) -> list[tuple[Path, Identity]]:
        """This path's files that exist, oldest first; looked at until two looks agree, as renames go on meanwhile."""
        before: list[tuple[Path, Identity]] | None = None
        chain: list[tuple[Path, Identity]] = []
        for _ in range(_LOOKS):
            found = [(path, stat_of(path)) for path in (*self._rotated(), self._path)]
            chain = [(path, (facts.st_dev, facts.st_ino)) for path, facts in found if facts is not None]
            if chain == before:
                break
            before = chain
        return chain

    def after(self, identity: Identity) -> tuple[Path, Identity] | None:
        """The file begun after `identity`, or the one at the path if `identity` is gone; None if there is neither."""
        chain = self.chain()
        places = [place for place, (_, known) in enumerate(chain) if known == identity]
        following = chain[places[0] + 1 :] if places else [file for file in chain if file[0] == self._path]
        return following[0] if following else None

    def find(self, identity: Identity) -> int | None:
        """Open the file with `identity` among this path's files; None if it is gone."""
        for _ in range(_LOOKS):  # a rename moves it to a name that the next look sees
            for path in (self._path, *self._rotated()):
                fd = open_as(path, identity)
                if fd is not None:
                    return fd
        return None

    def oldest(self) -> int | None:
        """Open the oldest of them; None if there is none."""
        for _ in range(_LOOKS):  # a rename moves it to a name that the next look sees
            oldest = next(iter(self.chain()), None)
            if oldest is None:
                return None
            fd = open_as(*oldest)
            if fd is not None:
                return fd
        return None

    def _rotated(self) -> list[Path]:
        """Rotated files of this path, oldest first: NAME.2 before NAME.1, NAME-20240101 before NAME-20240102."""
        found: list[tuple[int, Path]] = []
        try:
            names = os.listdir(self._path.parent)
        except FileNotFoundError:
            return []
        for name in names:
            match = _ROTATED.fullmatch(name[len(self._path.name) :]) if name.startswith(self._path.name) else None
            if match:
                number = int(match.group(1))
                found.append((number if len(match.group(1)) > 4 else -number, self._path.with_name(name)))
        return [path for _, path in sorted(found)]


def unrotated(name: str) -> str:
    """`name` without the number that a rotation gave it.

    Examples
    --------
    >>> unrotated("rank-1.log.2"), unrotated("rank-1.log")
    ('rank-1.log', 'rank-1.log')
    """
    return _ROTATED.sub("", name)


def open_as(path: Path, identity: Identity | None) -> int | None:
    """Open `path` if it is a regular file, and the one with `identity` where that is given; else None."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    found = os.fstat(fd)
    if stat.S_ISREG(found.st_mode) and identity in (None, (found.st_dev, found.st_ino)):
        return fd
    os.close(fd)
    return None


def stat_of(path: Path) -> os.stat_result | None:
    """Facts of the file at `path`; None if there is none, or it may not be looked at."""
    try:
        return os.stat(path)  # noqa: PTH116 - a third of the time of Path.stat, and this runs for every file, 5 times a second
    except OSError:
        return None
