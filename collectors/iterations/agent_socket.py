"""The agent's socket in the run folder, by which hooks tell rare facts at once."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from trainwarden import rundir
from trainwarden.collectors.iterations.hook_source import MAX_NOTE_BYTES, Note, decode_note

_MAX_DATAGRAMS = 1000  # per turn


class AgentSocket:
    """Receives notes of the hooks whose files lie in `folder`; nothing while it is not open.

    Parameters
    ----------
    folder : Path
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._socket: socket.socket | None = None

    @property
    def fds(self) -> tuple[int, ...]:
        """Readable when there is a note."""
        return () if self._socket is None else (self._socket.fileno(),)

    def open(self) -> None:
        """Bind, once the folder exists; a socket that another agent left behind is replaced.

        Raises
        ------
        OSError
            If it cannot be bound.
        """
        if self._socket is not None or not self._folder.is_dir():
            return
        path = self._folder / rundir.AGENT_SOCKET
        try:
            path.unlink(missing_ok=True)
        except PermissionError:
            return  # a folder of another user's, which we may only read: the same facts lie in its files
        opened = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        # A socket's address holds 107 bytes at most; through the open folder any path is short.
        os.fchmod(opened.fileno(), 0o600)  # before it has a name: by its name another file might be meant
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            opened.bind(f"/proc/self/fd/{folder}/{rundir.AGENT_SOCKET}")
        except OSError as error:
            opened.close()
            if isinstance(error, PermissionError):
                return  # as above
            raise
        finally:
            os.close(folder)
        self._socket = opened

    def notes(self) -> Iterator[Note | None]:
        """Notes that have come, at most 1,000; None for each datagram that is none."""
        for _ in range(_MAX_DATAGRAMS):
            if self._socket is None:
                return
            try:
                line = self._socket.recv(MAX_NOTE_BYTES + 1)
            except BlockingIOError:
                return
            yield decode_note(line)

    def close(self) -> None:
        """Let go of the socket and its name. Safe twice."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
            with suppress(PermissionError):
                (self._folder / rundir.AGENT_SOCKET).unlink(missing_ok=True)
