"""The local launcher: asks the supervisor of this machine's ranks (`supervisor`) by its control socket."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path

import msgspec

from actions.launchers.local.control import MAX_LINE_BYTES, Operation, Rebalance, Reply, Request, Restart, State, Stop
from trainwarden import rundir
from trainwarden.errors import ConfigError, LauncherError, LauncherUnavailable
from trainwarden.protocols import LauncherState
from trainwarden.settings import Config, PositiveSeconds


class LocalConfig(Config, frozen=True, kw_only=True):
    """`socket` wins over `run_dir`; `timeout_s` covers a whole restart, stop grace included."""

    run_dir: str | None = None
    socket: str | None = None
    timeout_s: PositiveSeconds = 20.0


class LocalLauncher:
    """Client of the supervisor that `trainwarden launch` runs in a run folder.

    Raises
    ------
    ConfigError
        If neither `run_dir` nor `socket` is given.
    """

    Config = LocalConfig

    def __init__(self, config: LocalConfig) -> None:
        if config.socket is None and config.run_dir is None:
            raise ConfigError("local launcher: one of 'run_dir' and 'socket' is needed")
        self._path = Path(config.socket) if config.socket else Path(str(config.run_dir)) / rundir.LAUNCHER_SOCKET
        self._timeout_s = config.timeout_s

    def state(self, job: str) -> LauncherState:
        """See `trainwarden.protocols.Launcher.state`."""
        reply = self._ask(State(job=job))
        if reply.state is None:
            raise LauncherUnavailable("the local launcher answered without a state")
        return reply.state

    def restart(self, job: str, operation: str, ranks: Sequence[int] | None, why: str) -> None:
        """See `trainwarden.protocols.Launcher.restart`."""
        self._do(Restart(job, operation, None if ranks is None else tuple(ranks), why[:2000]))

    def rebalance(self, job: str, operation: str, micro_batches: Sequence[int], why: str) -> None:
        """See `trainwarden.protocols.Launcher.rebalance`."""
        self._do(Rebalance(job, operation, tuple(micro_batches), why[:2000]))

    def stop(self, job: str, operation: str, ranks: Sequence[int] | None, why: str) -> None:
        """See `trainwarden.protocols.Launcher.stop`."""
        self._do(Stop(job, operation, None if ranks is None else tuple(ranks), why[:2000]))

    def _do(self, operation: Operation) -> None:
        self._ask(operation)

    def _ask(self, request: Request) -> Reply:
        """The answer to `request`; a fresh connection each time, so nothing has to be kept alive or mended."""
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
                client.settimeout(self._timeout_s)
                client.connect(str(self._path))
                client.sendall(msgspec.json.encode(request) + b"\n")
                reply = msgspec.json.decode(_line(client), type=Reply)
        except (OSError, msgspec.DecodeError) as error:
            raise LauncherUnavailable(f"local launcher at {self._path}: {error}") from error
        if reply.error is not None:
            raise LauncherError(reply.error)
        return reply


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
