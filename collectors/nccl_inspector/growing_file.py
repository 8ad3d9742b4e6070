"""A file that one process appends whole lines to, read bit by bit."""

from __future__ import annotations

import os
import stat
from typing import Final, NamedTuple

from trainwarden.collectors.nccl_inspector.lines import MAX_LINE_BYTES
from trainwarden.protocols import JsonObject

READ_BYTES: Final = 8 * 1024 * 1024  # in one look
BEHIND_BYTES: Final = 64 * 1024 * 1024  # further behind than this, what lies between is passed over


class Line(NamedTuple):
    """A line without its newline, and where it begins."""

    at: int
    text: bytes


class GrowingFile:
    """The regular file at `path`, begun near its end if it is long already.

    Parameters
    ----------
    path : str

    Attributes
    ----------
    skipped_bytes : int
        What was passed over since too much had been written.

    Raises
    ------
    OSError
        If it cannot be read, or is no regular file.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.skipped_bytes = 0
        self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        found = os.fstat(self._descriptor)
        if not stat.S_ISREG(found.st_mode):
            self.close()
            raise OSError(f"{path} is no regular file")
        self._inode = found.st_ino
        self._offset = max(0, found.st_size - READ_BYTES)
        self._in_line = self._offset > 0  # what comes up to the next newline is no whole line

    def close(self) -> None:
        """Let go of the file. Safe twice."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def position(self, from_offset: int | None) -> JsonObject:
        """Where to go on from; `from_offset` where what was read from there on is not told yet."""
        return {"inode": self._inode, "offset": self._offset if from_offset is None else from_offset}

    def restore(self, position: JsonObject) -> None:
        """Go on from `position` if it is of this very file."""
        offset = int(position.get("offset", 0))
        if position.get("inode") == self._inode and 0 <= offset <= os.fstat(self._descriptor).st_size:
            self._offset, self._in_line = offset, False

    def lines(self) -> list[Line]:
        """Whole lines not read before; asking moves on.

        Raises
        ------
        OSError
            If the file cannot be read any more.
        """
        size = os.fstat(self._descriptor).st_size
        if size < self._offset:  # emptied, and begun anew
            self._offset, self._in_line = 0, False
        if size - self._offset > BEHIND_BYTES:
            self.skipped_bytes += size - READ_BYTES - self._offset
            self._offset, self._in_line = size - READ_BYTES, True
        data = os.pread(self._descriptor, min(READ_BYTES, size - self._offset), self._offset)
        whole = data.rfind(b"\n") + 1
        if not whole and len(data) > MAX_LINE_BYTES:  # a line without end is none of the inspector's
            self._offset, self._in_line = self._offset + len(data), True
            return []
        at, found = self._offset, []
        for text in data[:whole].split(b"\n")[:-1]:
            if not self._in_line:
                found.append(Line(at, text))
            self._in_line = False
            at += len(text) + 1
        self._offset = at
        return found
