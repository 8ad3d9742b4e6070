"""Where serve listens and whom it lets in, before it begins."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

import pytest
import uvicorn
from uvicorn.server import ServerState

from trainwarden.dashboards.web import server
from trainwarden.dashboards.web.server import Connection, listen_at, tokens_of
from trainwarden.errors import ConfigError

HEAD = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\n"
Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[bytes]]


@pytest.mark.parametrize(
    "address", ["", "localhost", ":80", "localhost:", "localhost:http", "localhost:99999", "localhost:٣"]
)
def test_no_address(address):
    with pytest.raises(ConfigError, match="is not HOST:PORT"):
        listen_at(address)


def test_an_address_that_is_taken():
    with listen_at("127.0.0.1:0") as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match="cannot be listened on"):
            listen_at(f"127.0.0.1:{port}")


def test_answers_do_not_wait_for_the_askers_acknowledgement():
    """40 ms each: asyncio leaves sockets that it was given as they are."""
    with listen_at("127.0.0.1:0") as listening, socket.create_connection(listening.getsockname()):
        accepted, _ = listening.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1


def test_an_answer_that_nobody_takes_is_given_up():
    """The system does it; an answer of megabytes to each of a thousand such askers would be our memory."""
    with listen_at("127.0.0.1:0") as listening, socket.create_connection(listening.getsockname()):
        accepted, _ = listening.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 30_000


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "localhost:1"])
def test_for_this_machine_a_token_is_made_up(address):
    tokens, own = tokens_of(address, None)
    assert own is not None
    person = tokens.who(own)
    assert person is not None
    assert person.may("act")


@pytest.mark.parametrize("address", ["0.0.0.0:1", "[::]:1", "10.0.0.1:1", "warden.lan:1"])
def test_for_others_a_file_of_tokens_is_needed(address):
    with pytest.raises(ConfigError, match="name a file of tokens"):
        tokens_of(address, None)


async def app(_scope, receive, send) -> None:
    body = b""
    while (message := await receive())["type"] == "http.request":
        body += message["body"]
        if not message["more_body"]:
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
            await send({"type": "http.response.body", "body": body})
            return


def talked(talk: Talk) -> bytes:
    async def run() -> bytes:
        config = uvicorn.Config(app, http=Connection, log_config=None)
        config.load()
        loop = asyncio.get_running_loop()
        listening = await loop.create_server(lambda: Connection(config, ServerState(), {}), "127.0.0.1", 0)
        async with listening, asyncio.timeout(10.0):
            reader, writer = await asyncio.open_connection(*listening.sockets[0].getsockname()[:2])
            try:
                return await talk(reader, writer)
            finally:
                writer.close()
                await asyncio.wait([asyncio.ensure_future(writer.wait_closed())])

    return asyncio.run(run())


@pytest.mark.parametrize("said", [b"", b"GET / HT", HEAD, HEAD + b"ab"])
def test_a_request_that_is_never_whole_is_hung_up_on(monkeypatch, said):
    monkeypatch.setattr(server, "WHOLE_S", 0.05)

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(said)
        try:
            return await reader.read()
        except ConnectionResetError:
            return b""

    assert talked(talk) == b""


@pytest.mark.thorough
def test_who_has_asked_may_be_idle_and_ask_again(monkeypatch):
    monkeypatch.setattr(server, "WHOLE_S", 0.05)

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        answers = b""
        for _ in range(2):
            writer.write(HEAD + b"abcd")
            await reader.readuntil(b"\r\n\r\n")
            answers += await reader.readexactly(4)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(reader.read(1), 0.2)
        return answers

    assert talked(talk) == b"abcdabcd"
