"""One growing file, read line by line: rotation, truncation, lines not finished yet, lines without end.

Nothing is kept in memory between two reads but numbers: a line not finished yet is simply read again, so the
numbers in `Tail.state` are all that a restart needs.
"""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from typing import Any

import msgspec

from trainwarden.collectors.logs.rotation import RotatedFiles, open_as, stat_of

MAX_PARTIAL_BYTES = 32_768  # a line longer than this is delivered cut; the rest up to its newline is passed over
_HEAD_BYTES = 256  # a file is recognised by inode and the checksum of so many bytes at its beginning
_BACKLOG_BYTES = 64 * 1024 * 1024  # further behind than this, a tail skips ahead ...
_BACKLOG_KEPT_BYTES = 1024 * 1024  # ... to so many bytes before the end, and counts what it skipped

Line = tuple[int, bytes]
"""Position just after the line in the whole sequence of this path's files, and the line without its newline."""


class TailState(msgspec.Struct):
    """How far a path has been read; `base` is what earlier files of that path held, so positions only grow."""

    device: int = 0
    inode: int = 0
    offset: int = 0
    base: int = 0
    head_bytes: int = 0
    head_crc: int = 0
    in_long_line: bool = False


class Tail:
    """Follows the file at `path`.

    Parameters
    ----------
    path : Path
        Need not exist yet.
    rotate_wait_s : float
        How long the old file is still read after a new one has appeared: its writer may not have noticed yet.
    partial_wait_s : float
        A line without newline that has not grown for so long is delivered as it is.
    rotated_too : bool
        Whether a path never read before begins with its oldest rotated file.
    """

    def __init__(
        self, path: Path, *, rotate_wait_s: float = 0.5, partial_wait_s: float = 5.0, rotated_too: bool = False
    ) -> None:
        self.path = path
        self.state = TailState()
        self.more = False
        self.skipped_bytes = 0
        self._rotate_wait_s = rotate_wait_s
        self._partial_wait_s = partial_wait_s
        self._rotated_too = rotated_too
        self._files = RotatedFiles(path)
        self._fd: int | None = None
        self._looked = False  # a file that a restarted agent knows may be there under a rotated name alone
        self._seen: tuple[int, int, int] | None = None
        self._rotated_since_s: float | None = None
        self._quiet: tuple[int, float] | None = None  # how far it had been read, and since when
        self._partial: tuple[int, float] | None = None  # where the unfinished line ends, and since when

    def restore(self, raw: Any) -> None:
        """Go on from an earlier `state` (as plain JSON)."""
        self.state = msgspec.convert(raw, TailState)

    def skip_to_end(self) -> None:
        """Begin after what is there now."""
        found = stat_of(self.path)
        if found is not None and self._open(self.path):
            self.state.offset = found.st_size
            self._note_head()

    def close(self) -> None:
        """Let go of the file. Safe twice."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def quiet_s(self, now_s: float) -> float:
        """For how long nothing has come, so that nothing waits to be read either; 0 where that is not known."""
        place = self.state.base + self.state.offset
        unread = self._fd is not None and os.fstat(self._fd).st_size > self.state.offset
        if self.more or unread or self._quiet is None or self._quiet[0] != place:
            self._quiet = (place, now_s)
        return now_s - self._quiet[1]

    def read(self, now_s: float, limit_bytes: int) -> list[Line]:
        """Lines that are complete now, about `limit_bytes` of them; `more` says whether there are more.

        Raises
        ------
        OSError
            If the file is there and cannot be read.
        """
        self.more = False
        current = stat_of(self.path)
        seen = (current.st_ino, current.st_size, current.st_mtime_ns) if current is not None else None
        if self._looked and seen == self._seen and self._rotated_since_s is None and self._partial is None:
            return []
        self._looked = True
        lines: list[Line] = []
        if self._fd is None and not self._resume(current):
            self._seen = seen
            return lines
        size = 0
        while size < limit_bytes:
            size += self._read_open(lines, now_s, max(limit_bytes - size, 2 * MAX_PARTIAL_BYTES))
            if self.more or not self._go_to_next_file(lines, current, now_s):
                break
        self._seen = None if self.more else seen
        return lines

    def _read_open(self, lines: list[Line], now_s: float, limit_bytes: int) -> int:
        """Read on in the open file; how many bytes that were."""
        assert self._fd is not None
        state = self.state
        size = os.fstat(self._fd).st_size
        if size < state.offset or not self._head_fits():
            # Truncated in place (copytruncate, `: > file`), perhaps grown again since.
            self._begin_anew()
        if size - state.offset > _BACKLOG_BYTES:
            self.skipped_bytes += size - _BACKLOG_KEPT_BYTES - state.offset
            state.offset, state.in_long_line = size - _BACKLOG_KEPT_BYTES, True
        # No more than there is: the buffer for it is made, and touched, before anything is read.
        data = os.pread(self._fd, max(0, min(limit_bytes, size - state.offset)), state.offset)
        self.more = len(data) == limit_bytes
        if data.startswith(b"\0") and not state.in_long_line:
            data = self._pass_hole(data)
        self._split(lines, data, now_s)
        self._note_head()
        return len(data)

    def _split(self, lines: list[Line], data: bytes, now_s: float) -> None:
        """Append the complete lines of `data`, which begins at the state's offset, and move the offset behind them."""
        state = self.state
        whole = data.rfind(b"\n") + 1
        place = state.base + state.offset
        for line in data[:whole].split(b"\n")[:-1]:
            place += len(line) + 1
            if state.in_long_line:
                state.in_long_line = False
            else:
                lines.append((place, line))
        state.offset += whole
        rest = data[whole:]
        if state.in_long_line:
            state.offset += len(rest)
            return
        if len(rest) > MAX_PARTIAL_BYTES:
            state.offset += len(rest)
            state.in_long_line = True
            lines.append((state.base + state.offset, rest))
            rest = b""
        # A progress bar rewrites its line: only what follows its last carriage return will count. One at the very
        # end may be half of a line end.
        rewritten = rest.rfind(b"\r", 0, max(0, len(rest) - 1)) + 1
        state.offset += rewritten
        self._hold_back(lines, rest[rewritten:], now_s)

    def _hold_back(self, lines: list[Line], rest: bytes, now_s: float) -> None:
        """Wait for the end of an unfinished line, but not for ever."""
        end = self.state.offset + len(rest)
        if not rest:
            self._partial = None
        elif self._partial is None or self._partial[0] != end:
            self._partial = (end, now_s)
        elif now_s - self._partial[1] >= self._partial_wait_s:
            self.state.offset = end
            lines.append((self.state.base + end, rest))
            self._partial = None

    def _pass_hole(self, data: bytes) -> bytes:
        """Step over zero bytes: what a writer leaves that went on at its old place in a truncated file."""
        assert self._fd is not None
        rest = data.lstrip(b"\0")
        self.state.offset += len(data) - len(rest)
        if not rest:
            try:
                self.state.offset = max(self.state.offset, os.lseek(self._fd, self.state.offset, os.SEEK_DATA))
            except OSError:
                self.more = False  # ENXIO: nothing but hole up to the end
        return rest

    def _go_to_next_file(self, lines: list[Line], current: os.stat_result | None, now_s: float) -> bool:
        """If the open file is read to its end and rotated away, go on with the next one; True if there is one.

        The old file is kept until the next one is open, so that the state names a real file whenever it is kept.
        """
        state = self.state
        if current is not None and (current.st_dev, current.st_ino) == (state.device, state.inode):
            self._rotated_since_s = None
            return False
        if self._rotated_since_s is None:
            self._rotated_since_s = now_s
        following = self._files.after((state.device, state.inode))
        if following is None:
            return False
        path, identity = following
        # The newest of the rotated files may still be written to.
        if path == self.path and now_s - self._rotated_since_s < self._rotate_wait_s:
            return False
        fd = open_as(path, identity)
        if fd is None:  # renamed meanwhile: look again at the next read
            return False
        self._rotated_since_s = None
        if self._partial is not None:
            assert self._fd is not None
            end = self._partial[0]
            rest = os.pread(self._fd, end - state.offset, state.offset)
            state.offset = end
            lines.append((state.base + end, rest))
        self.close()
        self._begin_anew()
        self._take(fd)
        return True

    def _resume(self, current: os.stat_result | None) -> bool:
        """Open the file that the state speaks of, wherever it has been rotated to, else the one at the path."""
        state = self.state
        if state.inode:
            fd = self._files.find((state.device, state.inode))
            if fd is not None:
                self._fd = fd
                if os.fstat(fd).st_size >= state.offset and self._head_fits():
                    return True
                self.close()
            self._begin_anew()
        elif self._rotated_too and not state.base:
            fd = self._files.oldest()
            return fd is not None and self._take(fd)
        return current is not None and self._open(self.path)

    def _open(self, path: Path) -> bool:
        """Open whatever regular file is at `path` now."""
        fd = open_as(path, None)
        return fd is not None and self._take(fd)

    def _take(self, fd: int) -> bool:
        """Read from `fd` from now on; always True."""
        self.close()
        found = os.fstat(fd)
        self._fd = fd
        self.state.device, self.state.inode = found.st_dev, found.st_ino
        return True

    def _begin_anew(self) -> None:
        """The next byte read is the first of a file."""
        state = self.state
        state.base += state.offset
        state.offset = state.head_bytes = state.head_crc = 0
        state.in_long_line = False
        self._partial = None
        if self._fd is None:
            state.device = state.inode = 0

    def _note_head(self) -> None:
        wanted = min(self.state.offset, _HEAD_BYTES)
        if wanted > self.state.head_bytes and self._fd is not None:
            self.state.head_bytes = wanted
            self.state.head_crc = zlib.crc32(os.pread(self._fd, wanted, 0))

    def _head_fits(self) -> bool:
        assert self._fd is not None
        return not self.state.head_bytes or (
            zlib.crc32(os.pread(self._fd, self.state.head_bytes, 0)) == self.state.head_crc
        )
