"""The webhook launcher's plug-in: every question of the engine is one signed POST to a service of yours.

The service keeps what was accepted; nothing is tried again here. The engine asks again under the same id after every
silence, and begins with the question how far that operation is.

One signed request to one URL and its answer, within a limit of time and of size, whatever the other side does.

What a service is asked and what it answers, one JSON object each: the types of `docs/webhook.openapi.json`.
"""

from __future__ import annotations

import http.client
import threading
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import msgspec

from trainwarden import __version__
from trainwarden.actions.launchers.breakers import Breakers
from trainwarden.clock import Clock, SystemClock
from trainwarden.errors import ConfigError, LauncherError, LauncherUnavailable
from trainwarden.launching import Capabilities, LauncherState, Operation, OperationId, Report, refusal, refused
from trainwarden.network.in_time import AnswerInTime
from trainwarden.protocols import Scope
from trainwarden.settings import Config, PositiveSeconds
from trainwarden.signing import SIGNATURE_HEADER, STAMP_HEADER, read_secret, signed_headers


class AskCapabilities(msgspec.Struct, frozen=True, tag="capabilities", tag_field="ask"):
    """What can you do at all? Answered by a Capabilities."""


class AskState(msgspec.Struct, frozen=True, tag="state", tag_field="ask"):
    """What is true of `job` now? Answered by a LauncherState, or 404 with a Problem where there is no such job."""

    job: str


class Submit(msgspec.Struct, frozen=True, tag="submit", tag_field="ask"):
    """Begin with `operation`, once by its id however often it comes; answered at once by a Report."""

    operation: Operation


class Poll(msgspec.Struct, frozen=True, tag="poll", tag_field="ask"):
    """How far is the operation of that id? Answered by a Report: `unknown` if it was never accepted."""

    job: str
    operation: OperationId


Question = AskCapabilities | AskState | Submit | Poll


class Problem(msgspec.Struct, frozen=True):
    """Why there is no answer (RFC 9457, ``application/problem+json``); `detail` is shown to people."""

    title: str = ""
    detail: str = ""


KEY_HEADER: Final = "Idempotency-Key"
_REF: Final = "#/components/schemas/{name}"
_ASKS: Final = (AskCapabilities, AskState, Submit, Poll)
_ANSWERS: Final = (Capabilities, LauncherState, Report)
_HEADERS: Final = (
    (STAMP_HEADER, True, "Unix seconds at which it was signed; refuse what is more than five minutes off."),
    (SIGNATURE_HEADER, True, "HMAC-SHA256 over `timestamp:body` by the shared secret, in hexadecimal digits."),
    (KEY_HEADER, False, "Of `submit` alone: the id of the operation, the same at every try."),
)
_REFUSALS: Final = {"401": "The signature is another's, or old.", "404": "There is no such job.", "503": "Ask later."}


def document() -> dict[str, Any]:
    """The OpenAPI 3.1 page of the service.

    Examples
    --------
    >>> list(document()["paths"]["/"])
    ['post']
    """
    found, schemas = msgspec.json.schema_components([*_ASKS, *_ANSWERS, Problem], ref_template=_REF)
    asked, answered, problem = found[: len(_ASKS)], found[len(_ASKS) : -1], found[-1]
    mapping = {tag: ref["$ref"] for tag, ref in zip(("capabilities", "state", "submit", "poll"), asked, strict=True)}
    refusals = {
        status: {"description": why, "content": {"application/problem+json": {"schema": problem}}}
        for status, why in _REFUSALS.items()
    }
    answer = {"description": "The answer.", "content": {"application/json": {"schema": {"oneOf": answered}}}}
    question = {"oneOf": asked, "discriminator": {"propertyName": "ask", "mapping": mapping}}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "trainwarden webhook launcher",
            "version": __version__,
            "summary": "What a service answers that speaks for whatever started the jobs.",
            "description": "Every request is a POST to the one URL that the settings name. See docs/webhook.md.",
        },
        "paths": {
            "/": {
                "post": {
                    "operationId": "ask",
                    "summary": "One question.",
                    "parameters": [
                        {"name": name, "in": "header", "required": always, "description": what,
                         "schema": {"type": "string"}}
                        for name, always, what in _HEADERS
                    ],
                    "requestBody": {"required": True, "content": {"application/json": {"schema": question}}},
                    "responses": {"200": answer, **refusals},
                }
            }
        },
        "components": {"schemas": schemas},
    }  # fmt: skip


MAX_ANSWER_BYTES: Final = 8 * 2**20  # the state of 100,000 ranks takes 2 MB


class Answer(msgspec.Struct, frozen=True):
    """What came back."""

    status: int
    media: str
    body: bytes


class Exchange:
    """Asks `url`. It follows no redirect and knows no proxy: what is sent was signed for that address alone.

    Parameters
    ----------
    secret : bytes
        Known to both sides.
    timeout_s : float
        For one answer as a whole; connecting may take as long again.

    Raises
    ------
    ConfigError
        If `url` is none.
    """

    def __init__(self, url: str, secret: bytes, timeout_s: float, clock: Clock) -> None:
        try:
            parts = urlsplit(url)
            host, port = parts.hostname or "", parts.port
        except ValueError as error:
            raise ConfigError(f"launcher_settings.url: '{url}' is no address ({error})") from error
        if parts.scheme not in ("http", "https") or not host or parts.username is not None or parts.fragment:
            raise ConfigError(f"launcher_settings.url: '{url}' is no address like https://HOST:PORT/PATH")
        self.host = parts.netloc
        self._kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._place = (host, port)
        self._target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._secret, self._timeout_s, self._clock = secret, timeout_s, clock

    def ask(self, body: bytes, **headers: str) -> Answer:
        """What is answered to `body`, which is signed with the time.

        Raises
        ------
        LauncherUnavailable
            If nothing, or too much, is answered in time.
        """
        sent = {"User-Agent": "trainwarden", "Content-Type": "application/json", **headers}
        sent |= signed_headers(self._secret, body, self._clock.now_s())
        host, port = self._place
        connection = self._kind(host, port, timeout=self._timeout_s)
        try:
            connection.connect()
            deadline_s = self._clock.monotonic_s() + self._timeout_s
            connection.response_class = lambda sock, **more: AnswerInTime(
                sock, deadline_s, self._clock.monotonic_s, **more
            )  # type: ignore[assignment]
            connection.request("POST", self._target, body, sent)
            response = connection.getresponse()
            said = response.read(MAX_ANSWER_BYTES + 1)
            if len(said) > MAX_ANSWER_BYTES:
                raise LauncherUnavailable(f"{self.host} answers more than {MAX_ANSWER_BYTES} bytes")
            return Answer(response.status, response.headers.get_content_type(), said)
        except TimeoutError:
            raise LauncherUnavailable(f"{self.host} did not answer within {self._timeout_s:g} s") from None
        except (OSError, http.client.HTTPException, UnicodeError) as error:  # the last of a host that is no name
            raise LauncherUnavailable(f"{self.host} cannot be asked ({str(error) or type(error).__name__})") from error
        finally:
            connection.close()


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
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise LauncherUnavailable(f"{host} answers no {kind.__name__} ({str(error)[:_MAX_SAID_CHARS]})") from error


def _problem(body: bytes) -> str:
    try:
        said = msgspec.json.decode(body, type=Problem)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
    return (said.detail or said.title)[:_MAX_SAID_CHARS]


def _header(text: str) -> str:
    """`text` as a header may carry it."""
    return "".join(letter if letter.isascii() and letter.isprintable() else "?" for letter in text)
