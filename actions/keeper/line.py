"""How keepers and ranks ask a keeper: one question a connection, a line of JSON, and a shard's bytes behind it.

Nodes speak mutual TLS with certificates by the job's own authority; the certificate's name is the node's. Ranks ask on
a socket in the job's folder, which no other user can enter.
"""

from __future__ import annotations

import contextlib
import errno
import io
import itertools
import logging
import math
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Final, TypeVar

import msgspec

from trainwarden.actions.keeper.copies import Choice, Copy
from trainwarden.actions.keeper.folder import Folder
from trainwarden.actions.keeper.keeper import Keeper
from trainwarden.actions.keeper.silence import PEERS_S
from trainwarden.actions.keeper.transfer import ReadInto, send
from trainwarden.checkpoint.shard import CheckpointError, Header, Id
from trainwarden.checkpoint.slots import SOCKET
from trainwarden.metrics_http.strangers import Strangers
from trainwarden.metrics_http.tls import PeerTls, trouble

log = logging.getLogger("trainwarden.keeper")
MOST_LINE_BYTES: Final = 16 * 1024 * 1024  # the inventory of 64 ranks has 60 kB
MOST_CONNECTIONS: Final = 64  # of strangers, of nodes, and of ranks
_HANDSHAKE_S: Final = 10.0
_SILENCE_S: Final = 30.0  # between two pieces of a shard
_PASSING: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.ECONNABORTED})
_FULL_S: Final = 0.1  # until a descriptor may be free
_Count = Annotated[int, msgspec.Meta(ge=0, lt=10**15)]
T = TypeVar("T")


class Question(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is asked: `inventory`, `put`, `get`, `choose` between nodes; `stage`, `fill`, `keep`, `list` on the node."""

    ask: str
    job: str = ""
    digest: str = ""
    key: Annotated[str, msgspec.Meta(max_length=1000)] = ""
    rank: _Count = 0
    world: _Count = 1
    topology: str = ""
    at_most: tuple[_Count, _Count] | None = None
    round: _Count = 0


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is answered; `error` in place of everything else."""

    error: str | None = None
    copies: list[Copy] = []
    choice: Choice | None = None


class TlsPeer:
    """The keeper of `node` at `address`."""

    def __init__(self, node: str, address: tuple[str, int], job: str, context: ssl.SSLContext) -> None:
        self._node, self._address, self._job, self._context = node, address, job, context

    def inventory(self) -> list[Copy]:
        """See `trainwarden.actions.keeper.keeper.Peer`."""
        with self._asked(Question("inventory", self._job)) as (_, file):
            return _answer(file).copies

    def put(self, descriptor: int, header: Header) -> None:
        """See `trainwarden.actions.keeper.keeper.Peer`."""
        with self._asked(Question("put", self._job)) as (line, file):
            send(descriptor, header, line.sendall)
            _answer(file)

    @contextmanager
    def get(self, copy: Copy) -> Iterator[ReadInto]:
        """See `trainwarden.actions.keeper.keeper.Peer`."""
        with self._asked(Question("get", self._job, copy.digest)) as (_, file):
            _answer(file)
            yield file.readinto

    def choose(self, key: str) -> Choice:
        """See `trainwarden.actions.keeper.keeper.Peer`."""
        with self._asked(Question("choose", self._job, key=key)) as (line, file):
            line.settimeout(2 * PEERS_S)  # it may wait for others
            choice = _answer(file).choice
        if choice is None:
            raise CheckpointError(f"{self._node} keeps no folder")
        return choice

    @contextmanager
    def _asked(self, question: Question) -> Iterator[tuple[ssl.SSLSocket, io.BufferedReader]]:
        try:
            with socket.create_connection(self._address, timeout=_HANDSHAKE_S) as plain:
                plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                with self._context.wrap_socket(plain, server_hostname=self._node) as line:
                    line.settimeout(_SILENCE_S)
                    line.sendall(msgspec.json.encode(question) + b"\n")
                    with line.makefile("rb") as file:
                        yield line, file
        except ssl.SSLError as error:
            raise CheckpointError(trouble(error)) from error


class _Strangers:
    """Connections without a certificate yet; beyond a limit the one that is silent longest is closed for the next."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._places: Strangers[int] = Strangers(
            MOST_CONNECTIONS, MOST_CONNECTIONS // 2, silent_s=math.inf, longest_s=math.inf
        )
        self._lines: dict[int, socket.socket] = {}
        self._numbers = itertools.count()

    def enter(self, line: socket.socket, address: str) -> int:
        """A new one; its number."""
        number = next(self._numbers)
        with self._lock:
            self._lines[number] = line
            goes = self._places.enter(number, address, 0.0)
            if goes is not None:
                self._places.leave(goes)
                with contextlib.suppress(OSError):  # its thread reads the end, and closes it
                    socket.socket.shutdown(self._lines[goes], socket.SHUT_RDWR)
        return number

    def becomes(self, number: int, line: socket.socket) -> None:
        """The connection is `line` now, which has taken its descriptor over."""
        with self._lock:
            self._lines[number] = line

    def leave(self, number: int) -> None:
        """That one is known now, or gone."""
        with self._lock:
            self._places.leave(number)
            self._lines.pop(number, None)


class Listener:
    """Answers for a keeper until it is closed; one thread a connection, and not more than a few.

    Strangers, nodes of the ring and ranks of this node have places of their own.
    """

    def __init__(
        self, keeper: Keeper, listed: Callable[[], object], folder: Folder | None = None,
        wait: Callable[[int], None] = lambda round_: None,
    ) -> None:  # fmt: skip
        self._keeper, self._listed, self._folder, self._wait = keeper, listed, folder, wait
        self._strangers = _Strangers()
        self._nodes, self._ranks = (threading.BoundedSemaphore(MOST_CONNECTIONS) for _ in range(2))
        self._sockets: list[socket.socket] = []

    def serve_nodes(self, address: tuple[str, int], tls: PeerTls) -> tuple[str, int]:
        """Answer other nodes at `address`; returns it with the port that was free, where it names 0."""
        context = tls.serving()
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        server = socket.create_server(address, family=socket.AF_INET6 if ":" in address[0] else socket.AF_INET)
        self.serve_nodes_by(server, lambda: context)
        host, port = server.getsockname()[:2]
        return host, port

    def serve_nodes_by(self, server: socket.socket, context: Callable[[], ssl.SSLContext]) -> None:
        """Answer other nodes that connect to `server`, by the certificate of the time."""
        self._start(server, lambda plain, number: self._node(plain, number, context()))

    def serve_ranks(self) -> None:
        """Answer this node's ranks and `trainwarden checkpoints`."""
        path = f"/proc/self/fd/{self._keeper.slots.descriptor}/{SOCKET}"  # a path of any length
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)  # noqa: PTH108
        server = socket.socket(socket.AF_UNIX)
        server.bind(path)
        server.listen()
        self._start(server, self._rank)

    def close(self) -> None:
        for one in self._sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _start(self, server: socket.socket, answer: Callable[[socket.socket, int], None]) -> None:
        self._sockets.append(server)
        threading.Thread(target=self._accept, args=(server, answer), name="keeper-listener", daemon=True).start()

    def _accept(self, server: socket.socket, answer: Callable[[socket.socket, int], None]) -> None:
        while True:
            try:
                line, address = server.accept()
            except OSError as error:
                if error.errno not in _PASSING:
                    return  # closed
                time.sleep(_FULL_S)
                continue
            number = self._strangers.enter(line, address[0] if address else "")
            args = line, number, answer
            threading.Thread(target=self._answered, args=args, name="keeper-answer", daemon=True).start()

    def _answered(self, line: socket.socket, number: int, answer: Callable[[socket.socket, int], None]) -> None:
        try:
            with line:
                answer(line, number)
        except (OSError, CheckpointError, msgspec.MsgspecError) as error:
            log.info("question refused", extra={"fields": {"why": trouble(error)}})
        finally:
            self._strangers.leave(number)

    def _node(self, plain: socket.socket, number: int, context: ssl.SSLContext) -> None:
        plain.settimeout(_HANDSHAKE_S)
        with context.wrap_socket(plain, server_side=True, do_handshake_on_connect=False) as line:
            self._strangers.becomes(number, line)
            line.do_handshake()
            self._strangers.leave(number)
            line.settimeout(_SILENCE_S)
            nodes = _names(line) & (set(self._keeper.ring) - {self._keeper.node})
            with _place(self._nodes), line.makefile("rb") as file:
                question = _read(file, Question)
                if len(nodes) != 1 or question.job != self._keeper.job:
                    _say(line, {"error": "the certificate names no other node of this job's ring"})
                    return
                self._answer_node(nodes.pop(), question, line, file)

    def _answer_node(self, node: str, question: Question, line: socket.socket, file: io.BufferedReader) -> None:
        try:
            if question.ask == "inventory":
                _say(line, {"copies": self._keeper.inventory()})
            elif question.ask == "put":
                self._keeper.receive(node, file.readinto)
                _say(line, {})
            elif question.ask == "get":
                with self._keeper.offer(question.digest) as (descriptor, header):
                    _say(line, {})
                    send(descriptor, header, line.sendall)
            elif question.ask == "choose" and self._folder is not None:
                _say(line, {"choice": self._folder.choose(question.key)})
            else:
                _say(line, {"error": "no such question"})
        except CheckpointError as error:
            _say(line, {"error": str(error)})

    def _filled(self, folder: Folder, question: Question) -> dict[str, Any]:
        try:
            self._wait(question.round)
            filled = folder.fill(question.key)
        except CheckpointError as error:
            return {"error": str(error)}
        path = None if filled.path is None else str(filled.path)
        return {"folder": str(filled.folder), "path": path, "step": filled.step, "words": filled.words}

    def _rank(self, line: socket.socket, number: int) -> None:
        self._strangers.leave(number)
        with _place(self._ranks):
            self._answer_rank(line)

    def _answer_rank(self, line: socket.socket) -> None:
        line.settimeout(_SILENCE_S)
        with line.makefile("rb") as file:
            question = _read(file, Question)
        if question.ask == "list":
            _say(line, self._listed())
            return
        if question.ask == "fill" and self._folder is not None:
            _say(line, self._filled(self._folder, question))
            return
        if question.ask == "keep" and self._folder is not None:
            self._folder.keep_soon()
            _say(line, {})
            return
        if question.ask != "stage":
            _say(line, {"error": "no such question"})
            return
        at_most = None if question.at_most is None else Id(*question.at_most)
        staged = self._keeper.stage(question.rank, question.world, question.topology, at_most)
        _say(
            line,
            {
                "id": None if staged.id is None else (staged.id.attempt, staged.id.step),
                "slot": None if staged.slot is None else staged.slot.number,
                "attempt": staged.attempt,
                "words": staged.words,
                "other_topology": staged.other_topology,
            },
        )


@contextmanager
def _place(free: threading.BoundedSemaphore) -> Iterator[None]:
    if not free.acquire(blocking=False):
        raise CheckpointError(f"{MOST_CONNECTIONS} questions are being answered already")
    try:
        yield
    finally:
        free.release()


def _names(line: ssl.SSLSocket) -> set[str]:
    """The host names and addresses of the other end's certificate."""
    certificate: dict[str, Any] = line.getpeercert() or {}
    return {name for kind, name in certificate.get("subjectAltName", ()) if kind in ("DNS", "IP Address")}


def _say(line: socket.socket, value: Any) -> None:
    line.sendall(msgspec.json.encode(value) + b"\n")


def _read(file: io.BufferedReader, kind: type[T]) -> T:
    text = file.readline(MOST_LINE_BYTES)
    if not text.endswith(b"\n"):
        raise CheckpointError("the other end has hung up")
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise CheckpointError("the other end says what is no answer of a keeper") from error


def _answer(file: io.BufferedReader) -> Answer:
    answer = _read(file, Answer)
    if answer.error is not None:
        raise CheckpointError(answer.error)
    return answer
