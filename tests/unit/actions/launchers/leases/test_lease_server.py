"""The lease service's answers over HTTP, without a network, and the launcher that asks again and again."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any
from wsgiref.util import setup_testing_defaults

import msgspec
import pytest

from actions.launchers.leases.client import LEAST_WAIT_S, LeaseKeeper
from actions.launchers.leases.elector import LeaderElector
from actions.launchers.leases.server import MAX_BYTES, LeaseServer, application, read_token
from actions.launchers.leases.table import LeaseTable
from actions.launchers.leases.words import Answer, Ask, Lease
from tests.doubles import ManualClock
from trainwarden.errors import ConfigError, LauncherError, LauncherUnavailable

TOKEN = "a-word-nobody-guesses"


class Service:
    """The application, asked as a server would."""

    def __init__(self, token: str | None = TOKEN) -> None:
        self.clock = ManualClock()
        self.application = application(LeaseTable(6.0, now_s=-6.0), token, self.clock)

    def say(self, method: str, path: str, body: bytes = b"", token: str | None = TOKEN, **more: str) -> tuple[int, Any]:
        environ: dict[str, Any] = {"REQUEST_METHOD": method, "PATH_INFO": path, "wsgi.input": io.BytesIO(body)}
        environ["CONTENT_LENGTH"] = str(len(body))
        if token is not None:
            environ["HTTP_AUTHORIZATION"] = f"Bearer {token}"
        setup_testing_defaults(environ)
        told: list[str] = []
        pieces = self.application(environ | more, lambda status, _headers: told.append(status))  # type: ignore[arg-type, return-value, misc]
        return int(told[0][:3]), msgspec.json.decode(b"".join(pieces))

    def ask(self, ask: Ask) -> Answer:
        code, answer = self.say("POST", "/v1/lease", msgspec.json.encode(ask))
        if code != 200:
            raise LauncherError(str(answer))
        return msgspec.convert(answer, Answer)


def test_a_question_is_answered_and_what_stands_is_told():
    service = Service()
    assert service.ask(Ask(job="j", holder="a", address="n0:1")).granted
    service.clock.sleep(2.0)
    code, told = service.say("GET", "/v1/leases")
    lease = {"job": "j", "holder": "a", "address": "n0:1", "epoch": 1, "duration_s": 6.0, "left_s": 4.0}
    assert (code, told) == (200, {"leases": [lease]})


@pytest.mark.parametrize("token", [None, "another", "", TOKEN + "x", "\udcff"])
def test_without_the_token_nothing_is_told_but_that_it_lives(token):
    service = Service()
    assert service.say("POST", "/v1/lease", b"{}", token)[0] == 401
    assert service.say("GET", "/v1/leases", token=token)[0] == 401
    assert service.say("GET", "/healthz", token=token) == (200, {"ok": True})


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"\xff",
        b"[]",
        b'{"\x80":1}',
        b'{"job":"j"}',
        b'{"job":"","holder":"a"}',
        b'{"job":"j","holder":"a","want":"more"}',
        b'{"job":"j","holder":"a","seen_epoch":-1}',
        b'{"job":"j","holder":"a","seen_epoch":1e400}',
        b'{"job":"j","holder":"a","other":1}',
        b'{"job":"j","holder":"' + b"a" * MAX_BYTES + b'"}',
    ],
)
def test_what_is_no_question_is_refused_in_one_sentence(body):
    code, told = Service().say("POST", "/v1/lease", body)
    assert code == 400
    assert len(told["error"]) < 600


def test_an_epoch_that_no_job_reaches_is_not_believed_and_does_no_harm():
    """Its successor could be told to nobody, and nobody would lead that job again."""
    service = Service()
    far = Lease(job="j", holder="b", address="", epoch=2**53, duration_s=6.0)
    for ask in (Ask(job="j", holder="a", seen_epoch=2**53), Ask(job="j", holder="b", carried=far, holds=True)):
        code, told = service.say("POST", "/v1/lease", msgspec.json.encode(ask))
        assert (code, "no job" in told["error"]) == (400, True)
    answer = service.ask(Ask(job="j", holder="a"))
    assert answer.lease is not None
    assert answer.lease.epoch == 1


@pytest.mark.parametrize("wait", ["1e308", "-1", '"x"', "null"])
def test_an_answer_that_says_to_wait_for_ever_is_none(wait):
    """The thread that asks would end with it."""
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(f'{{"granted":false,"wait_s":{wait}}}', type=Answer)


@pytest.mark.parametrize("length", ["-1", "1e3", "99999999999999999999", "000000001999999999999", "²"])
def test_a_length_that_is_none_is_refused(length):
    """Also of who has no token: a question is read before that is looked at."""
    good = msgspec.json.encode(Ask(job="j", holder="a"))
    for token in (TOKEN, None):
        code, told = Service().say("POST", "/v1/lease", good, token, CONTENT_LENGTH=length)
        assert (code, told) == (400, {"error": f"a question has 1 to {MAX_BYTES} bytes"})


def test_what_is_not_there_says_what_is():
    assert Service().say("GET", "/v1/lease")[0] == 404


@pytest.mark.parametrize(
    ("text", "mode", "wrong"),
    [
        ("short", 0o600, "16 characters"),
        ("two words of some length", 0o600, "one word"),
        (TOKEN, 0o644, "chmod 600"),
        ("ä" * 20, 0o600, "cannot be read"),
    ],
)
def test_a_token_file_that_is_no_secret_is_refused(tmp_path: Path, text: str, mode: int, wrong: str):
    path = tmp_path / "token"
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)
    with pytest.raises(ConfigError, match=wrong):
        read_token(path)


def test_a_token_is_read_without_its_line_end(tmp_path: Path):
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    path.chmod(0o600)
    assert read_token(path) == TOKEN
    with pytest.raises(ConfigError, match="cannot be read"):
        read_token(tmp_path / "none")


@pytest.mark.parametrize("listen", ["7000", "h:", ":1", "h:99999", "h:00000170000", "h:x"])
def test_an_address_that_is_none_is_refused(listen):
    with pytest.raises(ConfigError, match="HOST:PORT"):
        LeaseServer(listen, TOKEN, ManualClock())


def test_without_a_token_others_are_not_answered():
    with pytest.raises(ConfigError, match="open to others"):
        LeaseServer("0.0.0.0:0", None, ManualClock())


class Way:
    """To a service that may be away, or slow."""

    def __init__(self, service: Service, clock: ManualClock) -> None:
        self._service, self._clock = service, clock
        self.away, self.takes_s, self.asked = False, 0.0, 0

    def ask(self, ask: Ask) -> Answer:
        self.asked += 1
        if self.away:
            raise LauncherUnavailable("away")
        answer = self._service.ask(ask)
        self._clock.sleep(self.takes_s)
        return answer


class Pair:
    """Two launchers that ask one service, all by one clock."""

    def __init__(self) -> None:
        self.service = Service()
        self.clock = self.service.clock
        self.ways = [Way(self.service, self.clock) for _ in range(2)]
        self.stands = [True, True]
        self.keepers = [
            LeaseKeeper(
                LeaderElector("j", f"{number}", ""),
                way.ask,
                self.clock,
                stand=lambda number=number: self.stands[number],
            )
            for number, way in enumerate(self.ways)
        ]
        self.due_s = [0.0, 0.0]

    def run(self, seconds: float) -> list[list[int]]:
        """Who led at each tenth of a second."""
        seen = []
        end_s = self.clock.now_s() + seconds
        while self.clock.now_s() < end_s:
            for number, keeper in enumerate(self.keepers):
                if self.clock.now_s() >= self.due_s[number]:
                    self.due_s[number] = self.clock.now_s() + keeper.once()
            seen.append([number for number, keeper in enumerate(self.keepers) if keeper.leads()])
            self.clock.sleep(0.1)
        return seen


def test_one_leads_as_long_as_the_service_is_there_and_the_other_seldom_asks():
    pair = Pair()
    assert [now for now in pair.run(60.0) if now != [0]] == []
    assert pair.ways[0].asked == pytest.approx(60 / 0.8, rel=0.2)
    assert pair.ways[1].asked < 20


def test_a_leader_that_cannot_ask_stops_before_the_other_begins():
    pair = Pair()
    pair.run(10.0)
    pair.ways[0].away = True
    seen = pair.run(8.0)
    assert seen[0] == [0]
    assert [0, 1] not in seen
    assert [] in seen
    assert seen[-1] == [1]
    assert seen.index([1]) <= 63
    assert pair.keepers[0].trouble == "away"


def test_without_a_service_the_leader_ends_and_nobody_follows_until_it_is_back():
    pair = Pair()
    pair.run(5.0)
    for way in pair.ways:
        way.away = True
    seen = pair.run(20.0)
    assert seen[-100:] == [[]] * 100
    for way in pair.ways:
        way.away = False
    assert len(pair.run(5.0)[-1]) == 1


def test_who_does_not_stand_learns_and_leads_not():
    pair = Pair()
    pair.stands[0] = False
    assert pair.run(3.0)[-1] == [1]
    assert pair.keepers[0].newest is not None
    assert pair.keepers[0].newest.holder == "1"


def test_a_follower_whose_service_says_now_is_the_time_does_not_spin():
    pair = Pair()
    pair.keepers[0].once()
    assert pair.keepers[1].once() == pytest.approx(6.0)
    pair.clock.sleep(5.99)
    assert pair.keepers[1].once() == LEAST_WAIT_S
