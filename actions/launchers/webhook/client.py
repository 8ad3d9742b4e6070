"""The webhook launcher's plug-in: every question of the engine is one signed POST to a service of yours.

The service keeps what was accepted; nothing is tried again here. The engine asks again under the same id after every
silence, and begins with the question how far that operation is.
"""

from __future__ import annotations

import threading
from typing import Final, TypeVar

import msgspec

from trainwarden.actions.launchers.breakers import Breakers
from trainwarden.actions.launchers.webhook.exchange import Exchange
from trainwarden.actions.launchers.webhook.questions import (
    KEY_HEADER,
    AskCapabilities,
    AskState,
    Poll,
    Problem,
    Question,
    Submit,
)
from trainwarden.clock import SystemClock
from trainwarden.errors import LauncherError, LauncherUnavailable
from trainwarden.launching import Capabilities, LauncherState, Operation, Report, refusal, refused
from trainwarden.protocols import Scope
from trainwarden.settings import Config, PositiveSeconds
from trainwarden.signing import read_secret

_MAX_SAID_CHARS: Final = 300
T = TypeVar("T", Capabilities, LauncherState, Report)


class WebhookConfig(Config, frozen=True, kw_only=True):
    """Where the service is, and the file with the secret that it and the engine share.

    `timeout_s` is for one answer; for as long after a silence it is not asked about that job again. With `dry_run` all
    is asked and nothing is submitted.
    """

    url: str
    secret_file: str
    timeout_s: PositiveSeconds = 5.0
    dry_run: bool = False


class WebhookLauncher:
    """Hands operations to a service that you have written."""

    Config = WebhookConfig

    def __init__(self, config: WebhookConfig, scope: Scope) -> None:
        clock = SystemClock()
        secret = read_secret(config.secret_file, "launcher_settings.secret_file")
        self._exchange = Exchange(config.url, secret, config.timeout_s, clock)
        self._config, self._clock = config, clock
        self._lock = threading.Lock()
        self._breakers = Breakers(config.timeout_s)
        self._generations: dict[str, int] = {}
        self._accepted: set[str] = set()

    @property
    def job(self) -> None:
        """A service may run many jobs."""
        return None

    def capabilities(self) -> Capabilities:
        """See `trainwarden.launching.Launcher.capabilities`."""
        return self._ask(AskCapabilities(), Capabilities)

    def state(self, job: str) -> LauncherState:
        """See `trainwarden.launching.Launcher.state`. What is older than what was told before is no answer."""
        with self._breakers.about(job):
            state = self._ask(AskState(job), LauncherState)
        if state.job != job:
            raise LauncherUnavailable(f"{self._exchange.host} was asked of job {job} and tells of {state.job[:80]}")
        with self._lock:
            seen = self._generations.get(job, 0)
            if state.generation < seen:
                older = f"generation {state.generation} of job {job} after {seen}"
                raise LauncherUnavailable(f"{self._exchange.host} answers with an older state: {older}")
            self._generations[job] = state.generation
        return state

    def submit(self, operation: Operation) -> Report:
        """See `trainwarden.launching.Launcher.submit`."""
        if self._config.dry_run:
            return self._dry(operation)
        with self._breakers.about(operation.job):
            return self._report(operation.id, Submit(operation), **{KEY_HEADER: _header(operation.id)})

    def poll(self, job: str, operation: str) -> Report:
        """See `trainwarden.launching.Launcher.poll`. What a service has accepted it may not forget."""
        with self._breakers.about(job):
            report = self._report(operation, Poll(job, operation))
        if report.state == "unknown" and operation in self._accepted:
            raise LauncherUnavailable(f"{self._exchange.host} has forgotten {operation}, which it had accepted")
        return report

    def _dry(self, operation: Operation) -> Report:
        known = self.poll(operation.job, operation.id)
        if known.state != "unknown":
            return known
        no = refusal(operation, self.capabilities(), self.state(operation.job).generation)
        of = ", ".join(operation.targets.nodes)
        what = f"{operation.kind}{f' {of}' if of else ''} of job {operation.job}"
        text = f"this is a dry run: nothing was done; else {self._exchange.host} would be asked for {what}"
        return no or refused(operation, "unsupported", text)

    def _report(self, operation: str, question: Question, **headers: str) -> Report:
        report = self._ask(question, Report, **headers)
        if report.operation != operation:
            raise LauncherUnavailable(
                f"{self._exchange.host} was asked of {operation} and tells of {report.operation[:80]}"
            )
        if report.state in ("accepted", "running"):
            self._accepted.add(operation)
        elif report.ended:
            self._accepted.discard(operation)
        return report

    def _ask(self, question: Question, kind: type[T], **headers: str) -> T:
        """The answer to `question`.

        Raises
        ------
        LauncherUnavailable
            If there is none that can be read; whatever else than 200 comes may come from a proxy before the service.
        LauncherError
            If there is no such job.
        """
        self._breakers.admit(self._clock.monotonic_s())
        try:
            answer = self._exchange.ask(msgspec.json.encode(question), **headers)
        except LauncherUnavailable as error:
            self._breakers.silent(str(error), self._clock.monotonic_s())
            raise
        self._breakers.answered()
        host = self._exchange.host
        if answer.status != 200:
            said = _problem(answer.body) if answer.media == "application/problem+json" else ""
            text = f"{host} answers {answer.status}{f': {said}' if said else ''}"
            if answer.status == 404 and said:
                raise LauncherError(text)
            raise LauncherUnavailable(text)
        try:
            return msgspec.json.decode(answer.body, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise LauncherUnavailable(f"{host} answers no {kind.__name__} ({str(error)[:_MAX_SAID_CHARS]})") from error


def _problem(body: bytes) -> str:
    try:
        said = msgspec.json.decode(body, type=Problem)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""
    return (said.detail or said.title)[:_MAX_SAID_CHARS]


def _header(text: str) -> str:
    """`text` as a header may carry it."""
    return "".join(letter if letter.isascii() and letter.isprintable() else "?" for letter in text)
