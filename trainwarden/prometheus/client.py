"""The HTTP API of a Prometheus: few kinds of question, answers of bounded size, one sentence for each failure."""

from __future__ import annotations

import ssl
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import httpx
import msgspec

from trainwarden.errors import ConfigError, DataError

MAX_ANSWER_BYTES: Final = 96 * 1024 * 1024  # unpacked; 300,000 samples are about 7 MB
MAX_SECRET_BYTES: Final = 64 * 1024
SAID_CHARS: Final = 200  # of a server's own words
_TOO_MUCH: Final = frozenset({413, 422, 429, 503, 504})
_REFUSED: Final = frozenset({401, 403})
T = TypeVar("T")


class TooMuch(DataError):
    """The server can't give that much at once: ask for less."""


class TooSlow(TooMuch):
    """The server did not answer in time: ask for less, or it hangs."""


class Refused(DataError):
    """Nothing will be answered, whatever is asked: the wrong token, or nobody there."""


class Series(msgspec.Struct):
    """One series of an answer: its labels, and pairs of stamp and number (as text)."""

    metric: dict[str, str]
    values: list[tuple[float, str]] = []
    value: tuple[float, str] | None = None


class _Data(msgspec.Struct, rename="camel"):
    result_type: str = ""
    result: list[Series] = []


class _Answer(msgspec.Struct):
    status: str
    data: Any = None
    error: str = ""
    warnings: list[str] = []


class Found(_Answer):
    """An answer of series; with `warnings` it is a part of what there is."""

    data: _Data = msgspec.field(default_factory=_Data)


class _Words(_Answer):
    data: list[str] = []


class _Labels(_Answer):
    data: list[dict[str, str]] = []


@dataclass(frozen=True, slots=True)
class Access:
    """Where a Prometheus is and what it takes to be let in.

    Attributes
    ----------
    url : str
        Without ``/api/v1``; a user and password in it are basic authentication.
    token_file, ca_file, client_cert : Path, optional
        A bearer token; authorities to believe; certificate and key (PEM, one file) to show.
    timeout_s : float
        For one answer, from question to last byte.
    """

    url: str
    token_file: Path | None = None
    ca_file: Path | None = None
    client_cert: Path | None = None
    timeout_s: float = 120.0


class PrometheusClient:
    """Asks one Prometheus (or whatever answers like it); may be used by several threads at once.

    Raises
    ------
    ConfigError
        If the address or one of the files is wrong.
    """

    def __init__(self, access: Access) -> None:
        try:
            url = httpx.URL(access.url)
        except (httpx.InvalidURL, TypeError, ValueError) as error:
            raise ConfigError(f"--prometheus: '{access.url[:SAID_CHARS]}' is no address ({error})") from error
        if url.scheme not in {"http", "https"} or not url.host:
            raise ConfigError("--prometheus: the address must be like http://prometheus:9090")
        self.name = str(url.copy_with(username=None, password=None, query=None, fragment=None)).rstrip("/")
        self._timeout_s = access.timeout_s
        headers = {"Accept": "application/json", "User-Agent": "trainwarden"}
        if access.token_file is not None:
            headers["Authorization"] = f"Bearer {_secret(access.token_file)}"
        each_s = httpx.Timeout(access.timeout_s, connect=min(10.0, access.timeout_s))
        auth = (url.username, url.password) if url.username else None
        self._http = httpx.Client(headers=headers, timeout=each_s, auth=auth, verify=_trust(access))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def names(self, selector: str, start_s: float, end_s: float) -> list[str]:
        """Names of the metrics that fit `selector` in that time."""
        asked = {"match[]": selector, "start": f"{start_s:.3f}", "end": f"{end_s:.3f}"}
        return self._ask("GET", "label/__name__/values", asked, _Words).data

    def labels(self, selector: str, start_s: float, end_s: float) -> list[dict[str, str]]:
        """Labels of the series that fit `selector` in that time."""
        asked = {"match[]": selector, "start": f"{start_s:.3f}", "end": f"{end_s:.3f}"}
        return self._ask("GET", "series", asked, _Labels).data

    def query(self, expression: str, at_s: float) -> Found:
        """The answer to `expression` at one moment; a range selector gives samples with their own stamps."""
        return self._ask("POST", "query", {"query": expression, "time": f"{at_s:.3f}"}, Found)

    def query_range(self, expression: str, start_s: float, end_s: float, step_s: float) -> Found:
        """The answer to `expression` at every step; after a series ends it is repeated for five minutes."""
        asked = {"query": expression, "start": f"{start_s:.3f}", "end": f"{end_s:.3f}", "step": f"{step_s:g}"}
        return self._ask("POST", "query_range", asked, Found)

    def _ask(self, method: str, path: str, asked: dict[str, str], kind: type[T]) -> T:
        """One question; what fails on the way is asked once more."""
        for attempt in range(2):
            try:
                return self._answer(*self._sent(method, path, asked), kind)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                raise Refused(f"no Prometheus answers at {self.name}: {_why(error)}") from error
            except httpx.TimeoutException as error:
                raise TooSlow(f"the Prometheus at {self.name} did not answer within {self._timeout_s:g} s") from error
            except httpx.HTTPError as error:
                if "_ALERT_" in str(error):  # as OpenSSL names what a server says of a handshake
                    raise Refused(
                        f"{self.name} does not take our certificate (--client-cert): {_why(error)}"
                    ) from error
                if attempt:
                    raise DataError(f"the answer of the Prometheus at {self.name} broke off: {_why(error)}") from error
        raise AssertionError("unreachable")

    def _sent(self, method: str, path: str, asked: dict[str, str]) -> tuple[int, bytes]:
        where = f"{self.name}/api/v1/{path}"
        until_s = time.monotonic() + self._timeout_s
        body = bytearray()
        how = {"params": asked} if method == "GET" else {"data": asked}
        with self._http.stream(method, where, **how) as response:  # type: ignore[arg-type]
            for part in response.iter_bytes():
                body += part
                if len(body) > MAX_ANSWER_BYTES:
                    raise TooMuch(f"an answer of the Prometheus at {self.name} is larger than {MAX_ANSWER_BYTES} bytes")
                if time.monotonic() > until_s:
                    raise TooSlow(f"the Prometheus at {self.name} did not answer within {self._timeout_s:g} s")
            return response.status_code, bytes(body)

    def _answer(self, code: int, body: bytes, kind: type[T]) -> T:
        said = _said(body)
        if code in _REFUSED:
            raise Refused(f"the Prometheus at {self.name} lets nobody in with this token or password (HTTP {code})")
        if code in _TOO_MUCH:
            raise TooMuch(f"the Prometheus at {self.name} cannot answer that much (HTTP {code}{said})")
        if code == 400:
            raise DataError(f"the Prometheus at {self.name} does not take the question{said}")
        if code != 200:
            raise Refused(f"what answers at {self.name} is no Prometheus: HTTP {code}{said}")
        try:
            answer = msgspec.json.decode(body, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise DataError(f"what answers at {self.name} is no Prometheus: {error}") from error
        if getattr(answer, "status", "") != "success":
            raise DataError(f"the Prometheus at {self.name} failed{said}")
        return answer


def _said(body: bytes) -> str:
    """The server's own words on an error, fit to be shown."""
    try:
        text = msgspec.json.decode(body[:65_536], type=_Answer).error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
    shown = "".join(char if char.isprintable() else " " for char in text[:SAID_CHARS])
    return f": {shown}" if shown.strip() else ""


def _why(error: Exception) -> str:
    return str(error)[:SAID_CHARS] or type(error).__name__


def _secret(path: Path) -> str:
    try:
        with path.open("rb") as file:
            token = file.read(MAX_SECRET_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"--token-file: '{path}' cannot be read ({error.strerror})") from error
    word = token.decode("ascii", "replace").strip()
    if not word or len(token) > MAX_SECRET_BYTES or not word.isprintable() or " " in word or "\ufffd" in word:
        raise ConfigError(f"--token-file: '{path}' must hold one token of printable characters and nothing else")
    return word


def _trust(access: Access) -> ssl.SSLContext | bool:
    if access.ca_file is None and access.client_cert is None:
        return True
    try:
        context = ssl.create_default_context(cafile=None if access.ca_file is None else str(access.ca_file))
        if access.client_cert is not None:
            # An empty password: a key that asks for one must not stop the command at a prompt.
            context.load_cert_chain(str(access.client_cert), password="")
    except (OSError, ValueError) as error:
        raise ConfigError(f"--ca-file or --client-cert cannot be used ({error})") from error
    return context
