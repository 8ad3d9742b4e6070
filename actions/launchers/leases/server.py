"""The lease service over HTTP: one question a request, answered from memory at once.

``POST /v1/lease`` takes an `Ask` and gives an `Answer` to launchers; ``POST /v1/look`` gives what ``look`` does, and
``GET /v1/leases`` says which leases stand, to people as well. All want a token. ``GET /healthz`` wants none.
"""

from __future__ import annotations

import logging
import stat
import threading
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Final
from wsgiref.types import WSGIApplication

import msgspec

from actions.launchers.leases import questions
from actions.launchers.leases.questions import QuestionServer, Refusal, Roles, Routes, decoded
from actions.launchers.leases.table import LeaseTable
from actions.launchers.leases.words import DURATION_S, MOST_EPOCH, Ask
from trainwarden.clock import Clock
from trainwarden.errors import ConfigError
from trainwarden.metrics_http.access import Person, Tokens
from trainwarden.metrics_http.tls import PeerTls
from trainwarden.signing import read_held

log = logging.getLogger("trainwarden.lease")

LEAST_CHARS: Final = 16  # a token that can be guessed is none
MAX_BYTES: Final = 16_384
LOOK: Final = ("POST", "/v1/look")
ROLES: Final[Roles] = {LOOK: "observe"}


def read_token(path: Path) -> str:
    """The token that `path` holds.

    Raises
    ------
    ConfigError
        If it cannot be read, others may read it, or it is too short or not ASCII.
    """
    held, mode = read_held(path, "token", MAX_BYTES)
    try:
        text = held.decode("ascii").strip()
    except UnicodeDecodeError as error:
        raise ConfigError(f"token: {path} cannot be read ({error})") from error
    if mode & (stat.S_IRGRP | stat.S_IROTH | stat.S_IWGRP | stat.S_IWOTH):
        raise ConfigError(f"token: others may read {path}; chmod 600 it")
    if len(text) < LEAST_CHARS or len(text.split()) != 1:
        raise ConfigError(f"token: {path} has to hold one word of {LEAST_CHARS} characters at least")
    return text


def application(table: LeaseTable, token: str | None, clock: Clock) -> WSGIApplication:
    """Answers for `table`; `clock` is the one that `table` was begun by. Without `token` everybody is answered."""
    return questions.application(_routes(table, clock), token, MAX_BYTES)


def _routes(table: LeaseTable, clock: Clock) -> Routes:
    lock = threading.Lock()

    def lease(question: bytes, _who: Person | None) -> bytes:
        ask = decoded(question, Ask)
        if max(ask.seen_epoch, ask.carried.epoch if ask.carried else 0) > MOST_EPOCH:
            raise Refusal(HTTPStatus.BAD_REQUEST, f"no job has had more than {MOST_EPOCH} leases")
        with lock:
            return msgspec.json.encode(table.answer(ask, clock.monotonic_s()))

    def look(question: bytes, _who: Person | None) -> bytes:
        ask = decoded(question, Ask)
        asked = Ask(job=ask.job, holder=ask.holder, want="look")  # what else a person says of leases is not believed
        with lock:
            return msgspec.json.encode(table.answer(asked, clock.monotonic_s()))

    def leases(_nothing: bytes, _who: Person | None) -> bytes:
        with lock:
            standing = table.standing(clock.monotonic_s())
        said = [{**msgspec.structs.asdict(lease), "left_s": left_s} for lease, left_s in standing.values()]
        return msgspec.json.encode({"leases": said})

    return {("POST", "/v1/lease"): lease, LOOK: look, ("GET", "/v1/leases"): leases}


class LeaseServer:
    """The service at `listen`, ``HOST:PORT``; port 0 is any that is free.

    Raises
    ------
    ConfigError
        If that cannot be listened on, or others than this machine would be answered without a token.
    """

    def __init__(
        self,
        listen: str,
        token: str | None,
        clock: Clock,
        duration_s: float = DURATION_S,
        *,
        people: Tokens | None = None,
        tls: PeerTls | None = None,
    ) -> None:
        routes = _routes(LeaseTable(duration_s, clock.monotonic_s()), clock)
        try:
            self._server = QuestionServer(
                listen, routes, token=token, most_bytes=MAX_BYTES, people=people, roles=ROLES, tls=tls
            )
        except ConfigError as error:
            raise ConfigError(f"lease: {error}") from error
        self.address = self._server.address

    def run(self, stop: Callable[[], bool]) -> None:
        """Answer until `stop()` is true. Nothing has to be kept then."""
        self._server.start()
        log.info("leases served", extra={"fields": {"address": self.address}})
        while not stop():
            self._server.wait()
        self._server.close()
