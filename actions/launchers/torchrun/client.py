"""The engine's way to jobs that people start with torchrun: the rendezvous service at one of its endpoints."""

from __future__ import annotations

import socket
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol, TypeVar

import msgspec

from trainwarden.actions.launchers.torchrun.messages import (
    ENCODE,
    MAX_BYTES,
    AskJobs,
    AskState,
    Poll,
    Question,
    Reply,
    Submit,
)
from trainwarden.actions.launchers.torchrun.operations import CAPABILITIES, CAPABILITIES_HERE
from trainwarden.clock import Clock
from trainwarden.errors import ConfigError, LauncherError, LauncherUnavailable
from trainwarden.launching import Capabilities, LauncherState, Operation, Report, Targets, Verb, refused
from trainwarden.metrics_http.access import read_token
from trainwarden.metrics_http.tls import peer_tls, trouble
from trainwarden.network.host_port import host_and_port
from trainwarden.protocols import Scope
from trainwarden.records import TaskRecord
from trainwarden.settings import Config, PositiveSeconds

BETWEEN_S: Final = 0.25  # between two questions of a person's command
_KEPT_ENDS: Final = 100  # an engine asks about one of its actions for minutes, and begins a few an hour


T = TypeVar("T")


class TorchrunConfig(Config, frozen=True, kw_only=True):
    """The service's endpoints, ``HOST:PORT[,HOST:PORT]`` as in PET_RDZV_ENDPOINT, its token and the files of TLS.

    `timeout_s` is for one question. `validates`: all ranks are on the service's machine, which measures them.
    `restarts_itself`: ranks that have failed start again though nobody asks for that.
    """

    endpoint: str = "127.0.0.1:29402"
    token_file: str | None = None
    tls_ca: str | None = None
    tls_certificate: str | None = None
    tls_key: str | None = None
    timeout_s: PositiveSeconds = 2.0
    validates: bool = False
    restarts_itself: bool = True


class TorchrunLauncher:
    """Client of `trainwarden rendezvous`."""

    Config = TorchrunConfig

    def __init__(self, config: TorchrunConfig, scope: Scope) -> None:
        where = "launcher_settings.endpoint"
        self._addresses = [host_and_port(one.strip(), where) for one in config.endpoint.split(",") if one.strip()]
        if not self._addresses:
            raise ConfigError(f"{where}: no endpoint is named")
        self._token = "" if config.token_file is None else read_token(Path(config.token_file))
        tls = peer_tls(config.tls_ca, config.tls_certificate, config.tls_key)
        self._tls = None if tls is None else tls.asking()
        self._timeout_s, self._job = config.timeout_s, scope.job
        able = CAPABILITIES_HERE if config.validates else CAPABILITIES
        self._able = msgspec.structs.replace(able, restarts_itself=config.restarts_itself)
        self._ended: dict[str, Report] = {}  # a service that was killed once the job is over knows it no more

    @property
    def job(self) -> str:
        """The job of the settings, by its rendezvous id."""
        return self._job

    def capabilities(self) -> Capabilities:
        """See `trainwarden.launching.Launcher.capabilities`."""
        return self._able

    def state(self, job: str) -> LauncherState:
        """See `trainwarden.launching.Launcher.state`."""
        if job != self._job:
            raise LauncherError(f"this launcher runs job '{self._job}', not '{job[:200]}'")
        reply = self._ask(AskState(job))
        if reply.state is None:
            raise LauncherUnavailable("the rendezvous service answers without a state")
        return reply.state

    def submit(self, operation: Operation) -> Report:
        """See `trainwarden.launching.Launcher.submit`."""
        if operation.job != self._job:
            return refused(operation, "unknown_job", f"this launcher runs job '{self._job}'")
        try:
            msgspec.json.decode(ENCODE(operation), type=Operation)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:  # bounds are checked where it is read
            return refused(operation, "unfit", str(error)[:500])
        return self._ended.get(operation.id) or self._report(self._ask(Submit(operation)))

    def poll(self, job: str, operation: str) -> Report:
        """See `trainwarden.launching.Launcher.poll`."""
        return self._ended.get(operation) or self._report(self._ask(Poll(self._job, operation)))

    def _report(self, reply: Reply) -> Report:
        report = reply.report
        if reply.later is not None:
            raise LauncherUnavailable(reply.later)
        if report is None:
            raise LauncherUnavailable("the rendezvous service answers without a report")
        if report.state in ("done", "failed"):
            self._ended[report.operation] = report
            while len(self._ended) > _KEPT_ENDS:
                del self._ended[next(iter(self._ended))]
        return report

    def jobs(self) -> Sequence[TaskRecord]:
        """Jobs at the service whose nodes were started with a weight, for the coordinator."""
        return [
            TaskRecord(
                id=one.job, job=one.job, at_s=0.0, weight=one.weight, minimum=one.minimum, maximum=one.maximum,
                by="rendezvous",
            )
            for one in self._ask(AskJobs()).jobs
        ]  # fmt: skip

    def _ask(self, ask: AskState | AskJobs | Submit | Poll) -> Reply:
        """The answer of the first endpoint whose service hears agents of the job.

        Raises
        ------
        LauncherUnavailable
            If there is none.
        """
        why = []
        for host, port in self._addresses:
            try:
                said = self._exchange(host, port, ENCODE(Question(ask=ask, token=self._token)))
                answer = msgspec.json.decode(said, type=Reply)
                if answer.error is None:
                    return answer
                why.append(f"{host}:{port}: {answer.error[:300]}")
            except (OSError, msgspec.DecodeError, ValueError, RecursionError) as error:
                why.append(f"{host}:{port}: {trouble(error)[:300]}")
        raise LauncherUnavailable(f"rendezvous service at {'; '.join(why)}")

    def _exchange(self, host: str, port: int, question: bytes) -> bytes:
        """One line for one line, over a connection of its own."""
        until_s, said = time.monotonic() + self._timeout_s, bytearray()
        connection = socket.create_connection((host, port), timeout=self._timeout_s)
        try:
            if self._tls is not None:
                connection = self._tls.wrap_socket(connection, server_hostname=host)
            connection.sendall(question + b"\n")
            while b"\n" not in said:
                connection.settimeout(max(0.01, until_s - time.monotonic()))
                piece = connection.recv(1 << 16)
                if not piece or len(said) > 4 * MAX_BYTES:
                    raise ConnectionError("it hangs up without an answer")
                said += piece
        finally:
            with suppress(OSError):
                connection.close()
        return bytes(said[: said.index(b"\n")])


class JobClient:
    """`launcher` for its one job, as a person asks it."""

    def __init__(self, launcher: TorchrunLauncher) -> None:
        self._launcher = launcher

    def state(self) -> LauncherState:
        """What is true of the job."""
        return self._launcher.state(self._launcher.job)

    def submit(self, operation: Operation) -> Report:
        """Have `operation` carried out, once by its id."""
        return self._launcher.submit(operation)

    def poll(self, operation: str) -> Report:
        """How far that operation is; ``unknown`` if nothing of it was begun."""
        return self._launcher.poll(self._launcher.job, operation)


class JobQuestions(Protocol):
    """What answers for one job."""

    def state(self) -> LauncherState:
        """What is true of the job."""
        ...

    def submit(self, operation: Operation) -> Report:
        """Have `operation` carried out, once by its id."""
        ...

    def poll(self, operation: str) -> Report:
        """How far that operation is."""
        ...


class Patient:
    """Asks again for as long as `wait_s` lasts, counted from when it was made, while nobody can be reached."""

    def __init__(self, client: JobQuestions, clock: Clock, wait_s: float) -> None:
        self._client, self._clock = client, clock
        self._until_s = clock.monotonic_s() + wait_s

    def state(self) -> LauncherState:
        """What is true of the job."""
        return self._again(self._client.state)

    def carry_out(self, kind: Verb, job: str, why: str, node: str | None = None, *, by: str = "") -> Report:
        """Have `kind` done, of `node` if it is one of nodes, once; its end, or how far it was when the time was over.

        What is unknown to a service that came after one that was killed is asked for again, under the same id and from
        the same state: it is refused where another operation was quicker.
        """
        state = self._again(self._client.state)
        operation = Operation(
            id=f"{job}/{kind}/{uuid.uuid4().hex}", job=job, kind=kind, expected_generation=state.generation,
            targets=Targets(nodes=() if node is None else (node,)), why=why, by=by,
        )  # fmt: skip
        report = self._again(lambda: self._client.submit(operation))
        try:
            while not report.ended and self._wait():
                report = self._again(lambda: self._client.poll(operation.id))
                if report.state == "unknown":
                    report = self._again(lambda: self._client.submit(operation))
        except LauncherUnavailable:
            if report.state != "accepted":
                raise
        return report

    def _again(self, ask: Callable[[], T]) -> T:
        while True:
            try:
                return ask()
            except LauncherUnavailable:
                if not self._wait():
                    raise

    def _wait(self) -> bool:
        """Wait a moment; whether there was time for that."""
        if self._clock.monotonic_s() >= self._until_s:
            return False
        self._clock.sleep(BETWEEN_S)
        return True
