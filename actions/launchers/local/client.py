"""The local launcher's plug-in: asks the supervisor of this machine's ranks (`supervisor`) by its control socket."""

from __future__ import annotations

import socket
from pathlib import Path

import msgspec

from trainwarden import rundir
from trainwarden.actions.launchers.local import journal
from trainwarden.actions.launchers.local.control import (
    CAPABILITIES,
    MAX_LINE_BYTES,
    AskState,
    Poll,
    Reply,
    Request,
    Submit,
    short_path,
)
from trainwarden.errors import LauncherError, LauncherUnavailable
from trainwarden.launching import Capabilities, LauncherState, Operation, Report, refused
from trainwarden.protocols import Scope
from trainwarden.settings import Config, PositiveSeconds


class LocalConfig(Config, frozen=True, kw_only=True):
    """Where the supervisor listens, if not in the run folder: `socket` wins over `run_dir`.

    `timeout_s` is for one question and its answer, which comes at once.
    """

    run_dir: str | None = None
    socket: str | None = None
    timeout_s: PositiveSeconds = 5.0


class LocalLauncher:
    """Client of the supervisor that `trainwarden launch` runs in a run folder."""

    Config = LocalConfig

    def __init__(self, config: LocalConfig, scope: Scope) -> None:
        run_dir = Path(config.run_dir or scope.run_dir)
        self._path = Path(config.socket) if config.socket else run_dir / rundir.LAUNCHER_SOCKET
        self._job = scope.job
        self._timeout_s = config.timeout_s

    @property
    def job(self) -> str:
        """The job of the run folder."""
        return self._job

    def capabilities(self) -> Capabilities:
        """See `trainwarden.launching.Launcher.capabilities`."""
        return CAPABILITIES

    def state(self, job: str) -> LauncherState:
        """See `trainwarden.launching.Launcher.state`."""
        reply = self._ask(AskState(job))
        if reply.state is None:
            raise LauncherError(reply.error or "the local launcher answered without a state")
        return reply.state

    def submit(self, operation: Operation) -> Report:
        """See `trainwarden.launching.Launcher.submit`."""
        reply = self._ask(Submit(operation))
        return reply.report or refused(operation, "unfit", reply.error or "the local launcher did not say why")

    def poll(self, job: str, operation: str) -> Report:
        """See `trainwarden.launching.Launcher.poll`. A launcher that has ended left its last word in its file."""
        try:
            reply = self._ask(Poll(job, operation))
        except LauncherUnavailable:
            kept = journal.read(self._path.parent)
            left = journal.report(kept, operation)
            if kept.job == job and left.ended:
                return left
            raise
        return reply.report or Report(operation=operation, state="unknown", text=reply.error or "")

    def _ask(self, request: Request) -> Reply:
        """The answer to `request`; a fresh connection each time, so nothing has to be kept alive or mended."""
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
                client.settimeout(self._timeout_s)
                with short_path(self._path) as short:
                    client.connect(short)
                client.sendall(msgspec.json.encode(request) + b"\n")
                return msgspec.json.decode(_line(client), type=Reply)
        except (OSError, msgspec.DecodeError) as error:
            raise LauncherUnavailable(f"local launcher at {self._path}: {error}") from error


def _line(client: socket.socket) -> bytes:
    """One line from `client`.

    Raises
    ------
    ConnectionError
        If the other side hangs up first or does not end the line.
    """
    buffer = bytearray()
    while b"\n" not in buffer:
        piece = client.recv(1 << 16)
        if not piece:
            raise ConnectionError("hung up without an answer")
        buffer += piece
        if len(buffer) > 16 * MAX_LINE_BYTES:
            raise ConnectionError("the answer does not end")
    return bytes(buffer[: buffer.index(b"\n")])
