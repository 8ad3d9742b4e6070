"""What is no HOST:PORT is one sentence wherever it stands: bus, rendezvous, nodes of a job, page, RAS of NCCL."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from trainwarden.actions.launchers.torchrun.service import RendezvousService
from trainwarden.bus.kafka.client import Clients, KafkaConfig
from trainwarden.clock import SystemClock
from trainwarden.collectors.collectives.ras_client import parse_address
from trainwarden.dashboards.web.server import listen_at
from trainwarden.errors import CollectorError, ConfigError
from trainwarden.network.host_port import host_and_port
from trainwarden.network.own_address import own_host

READERS: list[Callable[[str], object]] = [
    lambda text: Clients([text], KafkaConfig()),
    lambda text: RendezvousService(text, SystemClock(), token="t"),
    own_host,
    listen_at,
    parse_address,
]


@pytest.mark.parametrize("reader", READERS, ids=["kafka", "rendezvous", "rdzv", "page", "ras"])
@pytest.mark.parametrize(
    "text",
    [
        "127.0.0.1:" + "1" * 5_000,  # more digits than Python makes a number of
        "127.0.0.1:٣",
        "[]:5",
        "[::1:5",
        "fd00::1",  # without a port it was the host fd00: and port 1
        "http://127.0.0.1:5",
        "ann@127.0.0.1:5",
        "127.0.0.1\x00:5",
        "127.0.0.1:5\n",
        "a b:5",
    ],
)
def test_what_is_no_address_is_one_sentence(reader: Callable[[str], object], text: str) -> None:
    with pytest.raises((ConfigError, CollectorError)) as refused:
        reader(text)
    assert len(str(refused.value)) < 400


def test_a_listener_may_take_any_free_port_and_nobody_is_asked_at_0() -> None:
    assert host_and_port("localhost:0", "x", least_port=0) == ("localhost", 0)
    with pytest.raises(ConfigError, match="x: 'localhost:0' is not HOST:PORT"):
        host_and_port("localhost:0", "x")


def test_an_ipv6_address_without_brackets_is_told_what_it_needs() -> None:
    with pytest.raises(ConfigError, match="stands in brackets"):
        host_and_port("fd00::1:29401", "--rdzv")
    assert host_and_port("[fe80::1%eth0]:29401", "--rdzv") == ("fe80::1%eth0", 29401)
