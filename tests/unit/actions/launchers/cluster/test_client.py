"""A person's word reaches whoever leads, once, however many launchers lead meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from actions.launchers.cluster import leading
from actions.launchers.cluster.client import LeaderClient, Patient
from actions.launchers.cluster.control import Question
from actions.launchers.cluster.words import Order
from actions.launchers.leases.client import LeaseClient
from actions.launchers.leases.questions import Asker, QuestionServer, Routes
from actions.launchers.leases.server import LeaseServer
from actions.launchers.leases.words import Ask, Lease
from actions.launchers.local.control import AskState, Reply, Submit
from tests.doubles import ManualClock
from tests.unit.actions.launchers.cluster.test_leading import Leader, report
from trainwarden.errors import LauncherError, LauncherUnavailable
from trainwarden.launching import LauncherState, Operation, Report
from trainwarden.metrics_http.access import Person, Tokens, digest_of

RUNS = LauncherState(job="j", phase="running", generation=4)


class Told:
    """A client to whom answers come in turn; one that is an error is raised."""

    def __init__(self, *answers: Any) -> None:
        self.answers, self.asked = list(answers), list[Any]()

    def _next(self, what: Any) -> Any:
        self.asked.append(what)
        answer = self.answers.pop(0) if self.answers else LauncherUnavailable("nobody leads")
        if isinstance(answer, Exception):
            raise answer
        return Report(operation="o", state=answer) if isinstance(answer, str) else answer

    def state(self) -> Any:
        return self._next("state")

    def submit(self, operation: Operation) -> Any:
        return self._next(operation)

    def poll(self, operation: str) -> Any:
        return self._next(operation)


def carry_out(told: Told, wait_s: float = 10.0) -> Report:
    return Patient(told, ManualClock(), wait_s).carry_out("pause", "j", "hot")  # type: ignore[arg-type]


def test_a_word_is_asked_for_once_and_followed_to_its_end() -> None:
    told = Told(RUNS, "accepted", "accepted", "done")
    assert carry_out(told).state == "done"
    operation = told.asked[1]
    assert (operation.kind, operation.job, operation.expected_generation, operation.why) == ("pause", "j", 4, "hot")
    assert told.asked[2:] == [operation.id, operation.id]


def test_what_a_killed_leader_had_accepted_and_not_begun_is_asked_for_again_under_its_id() -> None:
    away = LauncherUnavailable("nobody leads")
    told = Told(away, RUNS, away, "accepted", away, away, "unknown", "accepted", "done")
    assert carry_out(told).state == "done"
    submitted = [one for one in told.asked if isinstance(one, Operation)]
    assert len(submitted) == 3
    assert len({one.id for one in submitted}) == 1


@pytest.mark.parametrize(
    ("claims", "token", "kept"),
    [
        ("root", "a", "bob (act), as root"),
        ("bob", "a", "bob (act)"),
        ("", "a", "bob (act)"),
        ("eve (act)", "a", "bob (act), as eve (act)"),
        ("root", "t", "root"),
        ("", "t", ""),
        ("x" * 500, "a", ("bob (act), as " + "x" * 500)[:160]),
    ],
)
def test_who_asks_is_who_the_token_stands_for_whatever_he_says(claims: str, token: str, kept: str) -> None:
    leader = Leader()
    leader.form()
    leader.form()
    people = Tokens({digest_of("a" * 16): Person("bob", "act")})
    with closing_server(leader.leading.routes(), people) as address, closing_leases(people, address) as rdzv:
        client = LeaderClient("j", rdzv, token * 16)
        operation = Operation(
            id="p", job="j", kind="pause", expected_generation=client.state().generation, why="hot", by=claims
        )
        client.submit(operation)
    ledger = leader.form().ledger
    assert ledger is not None
    assert [(one.by, one.why) for one in ledger.entries] == [(kept, "hot")]


def test_a_refusal_is_the_end() -> None:
    assert carry_out(Told(RUNS, "refused")).state == "refused"
    with pytest.raises(LauncherError, match="token"):
        carry_out(Told(LauncherError("the token is not the one")))


def test_nobody_is_waited_for_longer_than_asked() -> None:
    clock, told = ManualClock(), Told()
    with pytest.raises(LauncherUnavailable):
        Patient(told, clock, 10.0).state()  # type: ignore[arg-type]
    assert clock.now_s() == 10.0
    assert carry_out(Told(RUNS, "accepted")).state == "accepted"
    with pytest.raises(LauncherUnavailable):
        carry_out(Told(RUNS))


@pytest.fixture
def served() -> Any:
    servers: list[QuestionServer] = []

    def serve(routes: Routes) -> str:
        servers.append(QuestionServer("127.0.0.1:0", routes, token="t" * 16, most_bytes=1 << 20))
        servers[-1].start()
        return servers[-1].address

    yield serve
    for one in servers:
        one.close()


def test_the_leader_is_found_by_the_lease_service_and_asked_with_the_token(
    served: Callable[[Routes], str],
) -> None:
    leader = Leader()
    leader.form()
    leader.form()
    address = served(leader.leading.routes())
    lease = b'{"granted":false,"lease":{"job":"j","holder":"l","address":"%s","epoch":3,"duration_s":6.0}}'
    leases = served({("POST", "/v1/look"): lambda *_: lease.replace(b"%s", address.encode())})
    client = LeaderClient("j", leases, "t" * 16)
    state = client.state()
    assert (state.phase, [node.node for node in state.nodes]) == ("running", ["a", "b"])
    operation = Operation(id="p", job="j", kind="pause", expected_generation=state.generation)
    assert client.submit(operation).state == "accepted"
    assert client.poll("p").state == "accepted"
    with pytest.raises(LauncherError, match="401"):
        LeaderClient("j", leases, "u" * 16).state()
    with pytest.raises(LauncherError, match="runs job 'j', not 'k'"):
        LeaderClient("k", leases, "t" * 16).state()
    leader.leadership.lease = None
    with pytest.raises(LauncherUnavailable, match="does not lead"):
        client.state()


def test_who_may_only_look_on_is_told_of_the_job_and_asks_for_nothing() -> None:
    leader = Leader()
    leader.form()
    leader.form()
    people = Tokens({digest_of("o" * 16): Person("ann", "observe"), digest_of("a" * 16): Person("bob", "act")})
    with closing_server(leader.leading.routes(), people) as address, closing_leases(people, address) as rdzv:
        looks = LeaderClient("j", rdzv, "o" * 16)
        state = looks.state()
        assert state.phase == "running"
        assert looks.poll("nothing").state == "unknown"
        operation = Operation(id="p", job="j", kind="pause", expected_generation=state.generation)
        with pytest.raises(LauncherError, match=r"403 .*ann has the role observe; this needs the role act"):
            looks.submit(operation)
        for word in ("o", "a"):
            with pytest.raises(LauncherError, match=r"403 .*this needs the launchers' own token"):
                Asker("leader", word * 16, 5.0, 1 << 20).ask(address, "/v1/node", report("c"), Order)
            with pytest.raises(LauncherError, match=r"403 .*this needs the launchers' own token"):
                LeaseClient(rdzv, word * 16).ask(Ask(job="j", holder="eve", want="lead"))
        with pytest.raises(LauncherError, match=r"400 .*who looks on asks for nothing"):
            Asker("leader", "o" * 16, 5.0, 1 << 20).ask(address, "/v1/look", Question(Submit(operation)), Reply)
        assert LeaderClient("j", rdzv, "a" * 16).submit(operation).state == "accepted"
        by = [one.by for one in leader.form().ledger.entries]  # type: ignore[union-attr]
        assert by == ["bob (act), as engine"], "the token's name, and what its bearer calls itself"
        with pytest.raises(LauncherError, match="401"):
            LeaderClient("j", rdzv, "u" * 16).state()


def test_nobody_who_looks_on_tells_the_lease_service_of_leases() -> None:
    people = Tokens({digest_of("o" * 16): Person("ann", "observe")})
    with closing_leases(people, "host:1") as rdzv:
        lie = Lease(job="j", holder="eve", address="evil:1", epoch=99, duration_s=6.0)
        looks = LeaseClient(rdzv, "o" * 16)
        looks.look(Ask(job="j", holder="eve", want="lead", carried=lie, holds=True, seen_epoch=99))
        found = looks.look(Ask(job="j", holder="ann", want="look")).lease
        assert found is not None
        assert (found.holder, found.epoch) == ("l", 3)


@contextmanager
def closing_server(routes: Routes, people: Tokens) -> Iterator[str]:
    server = QuestionServer(
        "127.0.0.1:0", routes, token="t" * 16, most_bytes=1 << 20, people=people, roles=leading.ROLES
    )
    server.start()
    try:
        yield server.address
    finally:
        server.close()


@contextmanager
def closing_leases(people: Tokens, leader: str) -> Iterator[str]:
    """A real lease service, by which the launcher at that address leads."""
    stop = threading.Event()
    server = LeaseServer("127.0.0.1:0", "t" * 16, ManualClock(100.0), people=people)
    thread = threading.Thread(target=server.run, args=(stop.is_set,))
    thread.start()
    try:
        carried = Lease(job="j", holder="l", address=leader, epoch=3, duration_s=6.0)
        ask = Ask(job="j", holder="l", address=leader, want="lead", carried=carried, holds=True)
        assert LeaseClient(server.address, "t" * 16).ask(ask).lease is not None
        yield server.address
    finally:
        stop.set()
        thread.join()


def test_a_job_that_nobody_leads_is_said_to_be_none(served: Callable[[Routes], str]) -> None:
    leases = served({("POST", "/v1/look"): lambda *_: b'{"granted":false}'})
    with pytest.raises(LauncherUnavailable, match="knows no leader of job 'j'"):
        LeaderClient("j", leases, "t" * 16).state()


def test_a_leader_that_has_just_begun_answers_once_it_has_heard_the_nodes() -> None:
    leader = Leader()
    leader.ask("a")
    leader.leading.advance()
    assert leader.leading.control(AskState("j")) == Reply()
    leader.clock.sleep(5.0)
    assert leader.leading.control(AskState("j")).state is not None
