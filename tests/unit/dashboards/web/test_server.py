"""Where serve listens and whom it lets in, before it begins."""

from __future__ import annotations

import socket

import pytest

from dashboards.web.server import listen_at, tokens_of
from trainwarden.errors import ConfigError


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
