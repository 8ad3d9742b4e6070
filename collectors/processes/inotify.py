"""Being told by the kernel that a file or folder has changed (inotify, through the C library)."""

from __future__ import annotations

import ctypes
import os

# sys/inotify.h
MODIFY, MOVED_TO, CREATE, DELETE = 0x2, 0x80, 0x100, 0x200
_READ_BYTES = 65_536


class Inotify:
    """One file descriptor that is readable once something watched has changed.

    Examples
    --------
    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> notify = Inotify()
    >>> notify.watch(folder, CREATE)
    True
    >>> open(f"{folder}/new", "wb").close()
    >>> notify.drain(), notify.drain()
    (True, False)
    >>> notify.close()
    """

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        try:
            fd = int(self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        except AttributeError:  # a C library without inotify
            fd = -1
        self._fd: int | None = fd if fd >= 0 else None

    @property
    def fds(self) -> tuple[int, ...]:
        """The descriptor; empty where the kernel has given none (a limit per user, or none at all)."""
        return () if self._fd is None else (self._fd,)

    def watch(self, path: str, events: int) -> bool:
        """Watch `path` for `events`; again for the same file changes nothing. False if it cannot be watched."""
        if self._fd is None:
            return False
        return int(self._libc.inotify_add_watch(self._fd, os.fsencode(path), events)) >= 0

    def drain(self) -> bool:
        """Forget what has been told so far; whether there was anything."""
        anything = False
        while self._fd is not None:
            try:
                anything = bool(os.read(self._fd, _READ_BYTES)) or anything
            except BlockingIOError:
                break
        return anything

    def close(self) -> None:
        """Let go of the descriptor. Safe twice."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
