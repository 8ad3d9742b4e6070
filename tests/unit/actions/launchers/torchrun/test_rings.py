"""The ring of keepers that the rendezvous service hands out, and the certificates by which they know each other."""

from __future__ import annotations

import datetime
import itertools
import json
import socket
import threading
from collections import Counter
from pathlib import Path

import msgspec
import pytest
from cryptography import x509
from hypothesis import given
from hypothesis import strategies as st

from tests.doubles import ManualClock
from trainwarden.actions.keeper.joining import Joining
from trainwarden.actions.keeper.keeper import Keeper
from trainwarden.actions.keeper.line import Listener, TlsPeer
from trainwarden.actions.launchers.torchrun import rings
from trainwarden.actions.launchers.torchrun.messages import Beat, Hello, KeeperAt
from trainwarden.actions.launchers.torchrun.rings import Rings, ring_order
from trainwarden.actions.launchers.torchrun.table import JobTable
from trainwarden.checkpoint.slots import Slots, job_folder
from trainwarden.errors import ConfigError


class Keepers:
    """A job of three nodes of which two train, with the keepers' part of each node."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.table, self.rings, self.now_s = folder, JobTable("j", 2.0, 0.0), Rings("j"), 0.0
        self.joins: dict[str, Joining] = {}

    def keeper(self, node: str) -> KeeperAt:
        """Start one, anew if there was one."""
        (self.folder / node).mkdir(mode=0o700, exist_ok=True)
        if node in self.joins:
            self.joins[node].server.close()
        self.joins[node] = Joining(self.folder / node, "127.0.0.1", node)
        said = json.loads((self.folder / node / "request.json").read_bytes())
        return KeeperAt(port=said["port"], request=said["request"])

    def hello(self, node: str, keeper: KeeperAt | None, **beat: object) -> None:
        said = Beat(keeper=keeper, **{"waits": True, "port": 1, **beat})
        self.table.hello(
            Hello(job="j", life=f"{node}/1", node=node, host="127.0.0.1", least=2, most=2, beat=said, spares=1), 0.0
        )
        self.rings.look_again()

    def tick(self) -> None:
        self.now_s += 0.1
        self.table.tick(self.now_s)

    def give(self, node: str):
        """What the launcher on `node` does with the ring, and what its keeper makes of it."""
        ring = self.rings.of(self.table, f"{node}/1")
        assert ring is not None
        (self.folder / node / "ring.json").write_bytes(msgspec.json.encode(ring))
        return self.joins[node].news()


def greet(server, client) -> str | None:
    """What the handshake of one keeper with another says; None if they know each other."""
    said: list[str] = []

    def answer() -> None:
        try:
            with server.socket.accept()[0] as plain, server.context.wrap_socket(plain, server_side=True) as line:
                line.recv(1)
        except OSError as error:
            said.append(str(error))

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        with (
            socket.create_connection(server.socket.getsockname(), 10) as plain,
            client.wrap_socket(plain, server_hostname=server.node) as line,
        ):
            line.sendall(b"x")
    except OSError as error:
        said.append(str(error))
    thread.join()
    return "; ".join(said) or None


class End:
    def __init__(self, keepers: Keepers, node: str, context) -> None:
        self.node, self.context, self.socket = node, context, keepers.joins[node].server


@pytest.fixture(name="jobs")
def _jobs(tmp_path: Path):
    made: list[Keepers] = []

    def make() -> Keepers:
        folder = tmp_path / str(len(made))
        folder.mkdir()
        made.append(Keepers(folder))
        return made[-1]

    yield make
    for keepers in made:
        for one in keepers.joins.values():
            one.server.close()


def test_keepers_of_a_round_know_each_other_and_the_replacement_but_nobody_else(jobs) -> None:
    keepers = jobs()
    keepers.hello("a", keepers.keeper("a"))
    keepers.hello("b", None)
    keepers.tick()
    assert keepers.table.memory.round == 1
    assert keepers.rings.of(keepers.table, "a/1") is None  # b's keeper is not up yet
    keepers.hello("b", keepers.keeper("b"))
    a, b = keepers.give("a"), keepers.give("b")
    assert list(a.places) == list(b.places) == ["a", "b"]
    assert greet(End(keepers, "a", a.serving), b.asking) is None
    assert keepers.joins["a"].news() is None  # nothing new

    keepers.hello("c", keepers.keeper("c"))  # a spare is given nothing
    assert keepers.rings.of(keepers.table, "c/1") is None
    foreign = jobs()
    foreign.hello("a", foreign.keeper("a"))
    foreign.hello("b", foreign.keeper("b"))
    foreign.tick()
    refused = greet(End(keepers, "a", a.serving), foreign.give("b").asking)
    assert "CERTIFICATE_VERIFY_FAILED" in (refused or "")

    again = keepers.keeper("b")  # killed: its key is gone
    with pytest.raises(ConfigError):
        keepers.give("b")
    keepers.hello("b", again)
    b = keepers.give("b")
    assert greet(End(keepers, "a", a.serving), b.asking) is None


UNSUPPORTED = """\
-----BEGIN CERTIFICATE REQUEST-----
MIGSMFMCAQAwDDEKMAgGA1UEAwwBYTA+MBAGByqGSM49AgEGBSuBBAAIAyoABDwH
qreFfGVmeMritwpw6Xqqr0LBtLGS8UOzFK/y9H/0HjeqUKgOMI+gADAKBggqhkjO
PQQDAgMvADAsAhRK/FI/56F54Pm01ukYi66M5qLRdQIUP0ngry9uGsCzxOIAlie2
jDQ09eE=
-----END CERTIFICATE REQUEST-----
"""
"""A request for a key on secp160r1, as openssl makes it."""


@pytest.mark.parametrize("request_", ["-----BEGIN CERTIFICATE REQUEST-----\nAA==", UNSUPPORTED])
def test_a_request_that_is_none_gives_no_ring(jobs, request_: str) -> None:
    keepers = jobs()
    keepers.hello("a", KeeperAt(port=1, request=request_))
    keepers.hello("b", keepers.keeper("b"))
    keepers.tick()
    assert keepers.rings.of(keepers.table, "a/1") is None
    assert keepers.rings.of(keepers.table, "b/1") is not None


def test_a_name_that_stands_for_others_is_not_signed(jobs, caplog) -> None:
    keepers = jobs()
    for node in ("*.example.com", "b"):
        keepers.hello(node, keepers.keeper(node))
    keepers.tick()
    assert keepers.rings.of(keepers.table, "*.example.com/1") is None
    assert keepers.rings.of(keepers.table, "b/1") is not None
    assert [record.message for record in caplog.records] == ["no certificate"]


def test_nodes_that_are_named_by_their_addresses_know_each_other(jobs, tmp_path) -> None:
    keepers, names = jobs(), ["10.0.0.1", "10.0.0.2"]
    for node in names:
        keepers.hello(node, keepers.keeper(node))
    keepers.tick()
    first, second = (keepers.give(node) for node in names)
    slots = Slots(job_folder("j", str(tmp_path / "memory")))
    keeper = Keeper(slots, job="j", node=names[0], ring=names, peers={}, clock=ManualClock())
    listener = Listener(keeper, dict)
    server = keepers.joins[names[0]].server
    listener.serve_nodes_by(server, lambda: first.serving)
    try:
        assert TlsPeer(names[0], server.getsockname(), "j", second.asking).inventory() == []
    finally:
        listener.close()


def test_a_certificate_lives_for_days_and_is_made_anew_past_half_of_them(jobs, monkeypatch) -> None:
    keepers = jobs()
    for node in "ab":
        keepers.hello(node, keepers.keeper(node))
    keepers.tick()
    day = datetime.timedelta(days=1)
    begin = datetime.datetime.now(datetime.UTC) - 4 * day
    monkeypatch.setattr(rings, "_now", lambda: begin)
    a, b = keepers.give("a"), keepers.give("b")
    certificate = x509.load_pem_x509_certificate(keepers.rings.of(keepers.table, "a/1").certificate.encode())
    assert begin + 6 * day < certificate.not_valid_after_utc <= begin + 7 * day
    monkeypatch.setattr(rings, "_now", lambda: begin + 3 * day)
    assert (keepers.give("a"), keepers.give("b")) == (None, None)
    monkeypatch.setattr(rings, "_now", lambda: begin + 4 * day)
    again = keepers.give("a")
    assert again is not None
    assert (again.round, again.places) == (a.round, a.places)
    assert greet(End(keepers, "a", again.serving), b.asking) is None
    anew = x509.load_pem_x509_certificate(keepers.rings.of(keepers.table, "a/1").certificate.encode())
    assert anew.not_valid_after_utc > begin + 10 * day


def test_certificates_are_kept_of_the_rounds_nodes_alone(jobs) -> None:
    keepers = jobs()
    for node in "ab":
        keepers.hello(node, keepers.keeper(node))
    keepers.tick()
    assert [keepers.give(node) is not None for node in "ab"] == [True, True]
    seats = tuple(seat for seat in keepers.table.memory.roster if seat.node == "b")
    keepers.table.change(roster=seats)
    assert keepers.rings.of(keepers.table, "b/1") is not None
    assert set(keepers.rings._signed) == {"b"}


@given(st.lists(st.sampled_from("vwxyz"), min_size=1, max_size=12))
def test_no_neighbours_share_a_domain_where_that_is_possible(domains: list[str]) -> None:
    """Possible it is where no domain has more than half of the nodes."""
    nodes = [(f"n{number}", domain) for number, domain in enumerate(domains)]
    order = ring_order(nodes)
    assert sorted(order) == sorted(node for node, _ in nodes)
    by_node, most = dict(nodes), max(Counter(domains).values())
    if 2 * most <= len(nodes):
        assert all(by_node[one] != by_node[other] for one, other in itertools.pairwise([*order, order[0]]))
