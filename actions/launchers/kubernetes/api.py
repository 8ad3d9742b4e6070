"""The API server, asked through the official client with limits of time and size, and what it says in one sentence.

Of the client serve its ways in (kubeconfig, service account, plug-ins of clouds) and its connections; its models, which
refuse values that they do not know, do not.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from typing import Any, Final, TypeVar
from urllib.parse import urlencode

import msgspec

from trainwarden.actions.launchers.breakers import Breakers
from trainwarden.errors import ConfigError, LauncherError, LauncherUnavailable
from trainwarden.network.in_time import urllib3_pools

MAX_ANSWER_BYTES: Final = 64 * 2**20  # a page of pods has 10 KB each
PAGE: Final = 500
_PIECE_BYTES: Final = 65_536
_MAX_SAID_CHARS: Final = 300
MERGE: Final = "application/merge-patch+json"
STRATEGIC: Final = "application/strategic-merge-patch+json"  # lists of conditions are merged by their type
T = TypeVar("T")


class Missing(LauncherError):
    """There is no such object."""


class Conflict(LauncherUnavailable):
    """The object has changed since it was read: read it again, and think again."""


class Denied(LauncherError):
    """Not now: a disruption budget, or another pod of that name."""


class _Status(msgspec.Struct):
    message: str = ""


class _ListMeta(msgspec.Struct, rename={"more": "continue"}):
    more: str | None = None


class _Page(msgspec.Struct):
    items: list[msgspec.Raw] | None = None
    metadata: _ListMeta = msgspec.field(default_factory=_ListMeta)


class Api:
    """One API server. While it does not answer each question costs `timeout_s`; when it is asked again, `Breakers` say.

    Questions within `about(job)` are about that job.

    Parameters
    ----------
    kubeconfig : str or None
        A file; None: the pod's own service account within a cluster, else where kubectl looks.

    Raises
    ------
    ConfigError
        If the official client is not installed.
    """

    def __init__(
        self,
        kubeconfig: str | None,
        context: str | None,
        timeout_s: float,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        try:
            from kubernetes import client, config
        except ImportError as error:
            raise ConfigError(
                f"the Kubernetes launcher needs pip install 'trainwarden[kubernetes]' ({error})"
            ) from error
        self._client, self._config = client, config
        self._kubeconfig, self._context = kubeconfig, context
        self._timeout_s, self._monotonic_s = timeout_s, monotonic_s
        self._way: Any = None
        self._lock = threading.Lock()
        self._entering: Future[tuple[Any, dict[str, str]]] | None = None
        self._breakers = Breakers(timeout_s)
        self.about = self._breakers.about

    def get(self, path: str, kind: type[T]) -> T:
        """The object at `path`."""
        return self._read(self.ask("GET", path), kind, path)

    def list(self, path: str, kind: type[T], **query: str) -> list[T]:
        """All objects of a list, page by page."""
        return list(self._pages(path, kind, query))

    def patch(self, path: str, body: object, media: str = MERGE) -> None:
        """Change an object; with a resourceVersion in `body` only if nobody has since."""
        self.ask("PATCH", path, body, media)

    def patched(self, path: str, body: object, kind: type[T]) -> T:
        """The object as it is once it was changed, as by `patch`."""
        return self._read(self.ask("PATCH", path, body, MERGE), kind, path)

    def post(self, path: str, body: object, kind: type[T]) -> T:
        """What comes of an object that is not kept, such as a review."""
        return self._read(self.ask("POST", path, body), kind, path)

    def ask(self, method: str, path: str, body: object = None, media: str = "application/json") -> bytes:
        """What is answered.

        Raises
        ------
        LauncherUnavailable
            If nobody answers, or whoever answers does not know us or is not well.
        Missing, Conflict, Denied
            As their names say.
        LauncherError
            If it refuses.
        """
        self._breakers.admit(self._monotonic_s())
        try:
            status, said = self._exchange(method, path, body, media)
        except LauncherUnavailable as error:
            self._breakers.silent(str(error), self._monotonic_s())
            raise
        self._breakers.answered()
        if 200 <= status < 300:
            return said
        text = f"Kubernetes says: {_message(said) or f'{status} to {method} {path}'}"
        if status == 404:
            raise Missing(text)
        if status == 409:
            raise Conflict(text)
        if path.endswith("/eviction") and status in (429, 500):  # 500: several budgets hold one pod
            raise Denied(text)
        if status in (401, 408, 410, 429) or status >= 500 or status < 400:
            raise LauncherUnavailable(text)
        raise LauncherError(text)

    def _pages(self, path: str, kind: type[T], query: dict[str, str]) -> Iterator[T]:
        more: str | None = ""
        while more is not None:
            words = {**query, "limit": str(PAGE), **({"continue": more} if more else {})}
            page = self.get(f"{path}?{urlencode(words)}", _Page)
            for item in page.items or ():
                yield self._read(bytes(item), kind, path)
            more = page.metadata.more or None

    def _read(self, said: bytes, kind: type[T], path: str) -> T:
        try:
            return msgspec.json.decode(said, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise LauncherUnavailable(f"Kubernetes' answer about {path} cannot be read ({error!r:.200})") from error

    def _exchange(self, method: str, path: str, body: object, media: str) -> tuple[int, bytes]:
        """Status and body. The client's own errors have many roots; all of them mean that nobody answered."""
        try:
            way, auth = self._entered()
            deadline_s = self._monotonic_s() + self._timeout_s
            headers = {"Accept": "application/json", "Content-Type": media, "User-Agent": "trainwarden", **auth}
            response = way.rest_client.pool_manager.request(
                method,
                way.configuration.host + path,
                body=None if body is None else msgspec.json.encode(body),
                headers=headers,
                timeout=self._timeout_s,
                retries=False,
                redirect=False,
                preload_content=False,
            )
            try:
                return response.status, self._body(response, deadline_s)
            except BaseException:
                response.close()
                raise
            finally:
                response.release_conn()
        except LauncherUnavailable:
            raise
        except Exception as error:  # urllib3's, ssl's, yaml's, the client's own, those of clouds' plug-ins, OSErrors
            why = " ".join(str(error).split())[:_MAX_SAID_CHARS] or type(error).__name__
            slow = "timed out" in why.lower()
            told = f"Kubernetes did not answer within {self._timeout_s:g} s" if slow else "Kubernetes cannot be reached"
            raise LauncherUnavailable(told if slow else f"{told} ({why})") from error

    def _body(self, response: Any, deadline_s: float) -> bytes:
        said = bytearray()
        while piece := response.read1(_PIECE_BYTES):
            said += piece
            if len(said) > MAX_ANSWER_BYTES:
                raise LauncherUnavailable(f"Kubernetes answers more than {MAX_ANSWER_BYTES} bytes")
            if self._monotonic_s() > deadline_s:
                raise LauncherUnavailable(f"Kubernetes did not answer within {self._timeout_s:g} s")
        return bytes(said)

    def _entered(self) -> tuple[Any, dict[str, str]]:
        """The way in and what shows who we are, asked for each time, as tokens are renewed.

        A program of the kubeconfig may say that, and never end: it is waited for in a thread. A later question finds
        its answer, and starts no other meanwhile.
        """
        with self._lock:
            if self._entering is None:
                self._entering = Future()
                threading.Thread(target=self._enter, args=(self._entering,), name="credentials", daemon=True).start()
            entering = self._entering
        wait([entering], self._timeout_s)
        if not entering.done():
            raise LauncherUnavailable(f"Kubernetes' credentials did not come within {self._timeout_s:g} s")
        with self._lock:
            self._entering = None if self._entering is entering else self._entering
        return entering.result()

    def _enter(self, entering: Future[tuple[Any, dict[str, str]]]) -> None:
        try:
            way = self._found()
            auth = {one["key"]: one["value"] for one in way.configuration.auth_settings().values()}
        except Exception as error:  # noqa: BLE001 - raised where it is waited for
            entering.set_exception(error)
        else:
            entering.set_result((way, auth))

    def _found(self) -> Any:
        """The way in, once there is one."""
        if self._way is None:
            settings = self._client.Configuration()
            if self._kubeconfig is None and "KUBERNETES_SERVICE_HOST" in os.environ:
                self._config.load_incluster_config(client_configuration=settings)
            else:
                self._config.load_kube_config(
                    self._kubeconfig, self._context, client_configuration=settings, persist_config=False
                )
            settings.retries = False
            self._way = self._client.ApiClient(settings)
            self._way.rest_client.pool_manager.pool_classes_by_scheme = urllib3_pools(self._monotonic_s)
        return self._way


def _message(said: bytes) -> str:
    try:
        return " ".join(msgspec.json.decode(said, type=_Status).message.split())[:_MAX_SAID_CHARS]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
