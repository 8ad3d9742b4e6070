"""Which connection of a stranger goes, and that known callers lose theirs to none."""

from __future__ import annotations

import http.client
import socket
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from tests.unit.trainwarden.metrics_http.test_server import HASH, basic, served, written
from trainwarden.metrics_http.listener import AT_ONCE, STRANGERS
from trainwarden.metrics_http.strangers import Strangers


def test_the_oldest_silent_one_of_an_address_makes_room_for_its_next():
    strangers: Strangers[str] = Strangers(8, 3, silent_s=1.0, longest_s=5.0)
    assert [strangers.enter(key, "10.0.0.1", 0.0) for key in "abc"] == [None] * 3
    strangers.speaks("a")
    assert strangers.enter("d", "10.0.0.1", 0.1) == "b"
    strangers.leave("b")
    for key in "cd":
        strangers.speaks(key)
    assert strangers.enter("e", "10.0.0.1", 0.2) == "a"


def test_one_address_takes_no_place_of_another():
    strangers: Strangers[str] = Strangers(4, 3, silent_s=1.0, longest_s=5.0)
    for key in "abc":
        strangers.enter(key, "10.0.0.1", 0.0)
        strangers.speaks(key)
    strangers.enter("other", "10.0.0.2", 0.1)
    assert strangers.enter("third", "10.0.0.3", 0.2) == "a"


def test_a_network_of_many_addresses_is_one():
    strangers: Strangers[int] = Strangers(100, 2, silent_s=1.0, longest_s=5.0)
    assert [strangers.enter(one, f"2001:db8::{one}", 0.0) for one in range(3)] == [None, None, 0]


def test_who_is_silent_and_who_stays_too_long_is_overdue():
    strangers: Strangers[str] = Strangers(8, 8, silent_s=1.0, longest_s=5.0)
    for key in ("silent", "slow", "known"):
        strangers.enter(key, "10.0.0.1", 0.0)
    strangers.speaks("slow")
    strangers.leave("known")
    assert strangers.overdue(1.0) == []
    assert strangers.overdue(1.5) == ["silent"]
    assert strangers.overdue(5.5) == ["silent", "slow"]
    assert len(strangers) == 2


def test_a_scraper_with_a_password_keeps_its_connection_whoever_else_comes(tmp_path: Path) -> None:
    port = served(written(tmp_path, f"basic_auth_users: {{prom: '{HASH}'}}"))
    with ExitStack() as open_, closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as scraper:

        def scrape() -> tuple[int, object]:
            scraper.request("GET", "/metrics", headers=basic("prom", "open sesame"))
            with scraper.getresponse() as answer:
                answer.read()
                return answer.status, scraper.sock

        status, first = scrape()
        assert (status, first is not None) == (200, True)
        for _ in range(3 * AT_ONCE):
            open_.enter_context(socket.create_connection(("127.0.0.1", port))).send(b"GET")
        assert scrape() == (200, first)


@pytest.mark.thorough
def test_an_address_is_answered_although_others_hold_all_places() -> None:
    port = served(None)
    with ExitStack() as open_:
        for number in range(STRANGERS):
            source = (f"127.0.1.{number % 8}", 0)
            caller = socket.create_connection(("127.0.0.1", port), source_address=source)
            open_.enter_context(caller).send(b"GET")
        connection = open_.enter_context(closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)))
        connection.request("GET", "/metrics")
        with connection.getresponse() as answer:
            assert answer.status == 200
            answer.read()


def test_who_has_no_password_keeps_nothing(tmp_path: Path) -> None:
    port = served(written(tmp_path, f"basic_auth_users: {{prom: '{HASH}'}}"))
    for headers in ({}, basic("prom", "wrong")):
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
            connection.request("GET", "/metrics", headers=headers)
            with connection.getresponse() as answer:
                assert (answer.status, answer.getheader("Connection")) == (401, "close")


def test_a_question_whose_body_nobody_reads_ends_its_connection(tmp_path: Path) -> None:
    """Else its body would be read as the next question."""
    port = served(written(tmp_path, f"basic_auth_users: {{prom: '{HASH}'}}"))
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request("GET", "/metrics", b"GET /x HTTP/1.1\r\n\r\n", basic("prom", "open sesame"))
        with connection.getresponse() as answer:
            assert (answer.status, answer.getheader("Connection")) == (200, "close")
            answer.read()
