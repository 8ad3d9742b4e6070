"""Nodes set aside and taken back by a word: kept by all nodes, once, whoever leads meanwhile."""

from __future__ import annotations

from typing import Any, Final

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given

from actions.launchers.cluster.client import LeaderClient
from actions.launchers.cluster.control import answered
from actions.launchers.cluster.words import Shape
from actions.launchers.local.control import AskState, Reply, Submit
from tests.examples import examples
from tests.unit.actions.launchers.cluster.test_control import Asked, follow
from tests.unit.actions.launchers.cluster.test_leader import LOST_S, PATIENCE, Job
from trainwarden.errors import LauncherUnavailable
from trainwarden.launching import Operation, Report, Targets, Verb

TIGHT: Final = Shape(nodes=3, least_nodes=3, spares=1)


class Nodes(Asked):
    """a, b and c train, two ranks each, and d waits; two are enough."""

    def take(self, kind: Verb, node: str, **what: Any) -> Report:
        return self.submit(kind, targets=Targets(nodes=(node,)), **what)

    def states(self) -> dict[str, str]:
        return {one.node: one.state for one in self.state().nodes}


def test_an_evicted_node_is_replaced_by_a_spare_and_stays_out_until_it_is_put_back() -> None:
    job = Nodes()
    assert job.take("evict", "b", why="Xid 79").state == "accepted"
    assert job.table.runs, "not before all know it"
    follow(job, 6)
    assert "an evict of b was asked for by ann: Xid 79" in " ".join(job.table.news())
    attempt = job.table.attempt
    assert attempt is not None
    assert (attempt.roster, attempt.number, attempt.failures) == (("a", "c", "d"), 2, 0)
    assert (job.poll("o1"), job.state().phase) == ("done", "running")
    assert job.states() == {"a": "healthy", "c": "healthy", "d": "healthy", "b": "cordoned"}
    job.say("c", state="failed", code=9)
    follow(job, 4)
    job.table.advance(job.now_s)
    assert job.table.attempt is not None
    assert "b" not in job.table.attempt.roster
    assert job.take("uncordon", "b").state == "accepted"
    follow(job, 4)
    assert (job.poll("o2"), job.states()["b"]) == ("done", "spare")


def test_a_leader_that_knows_an_older_ledger_does_not_go_on_from_it_before_it_has_heard_the_others() -> None:
    job = Nodes()
    assert job.take("cordon", "d").state == "accepted"
    older = job.table.asked.ledger
    follow(job, 4)
    job.take("evict", "b")
    follow(job, 8)
    newer = job.table.asked.ledger
    assert newer is not None
    assert set(newer.aside) == {"b", "d"}
    job.next_leader()
    for name, ledger in (("b", older), ("a", newer)):
        job.table.hear(msgspec.structs.replace(job.said[name], ledger=ledger, alive=0, newest=None), job.now_s)
        job.table.advance(job.now_s)
    assert job.table.asked.aside == newer.aside


def test_a_node_that_does_not_train_is_set_aside_without_a_restart() -> None:
    job = Nodes()
    for number, (kind, state) in enumerate([("uncordon", "spare"), ("evict", "cordoned"), ("cordon", "cordoned")]):
        assert job.take(kind, "d").state == "accepted"  # type: ignore[arg-type]
        follow(job, 4)
        assert (job.poll(f"o{number + 1}"), job.states()["d"]) == ("done", state)
    assert job.table.attempt is not None
    assert job.table.attempt.number == 1


def test_a_cordoned_node_trains_until_the_next_attempt() -> None:
    job = Nodes()
    job.take("cordon", "b")
    follow(job, 4)
    assert (job.poll("o1"), job.states()["b"], job.state().attempt) == ("done", "cordoned", 0)
    job.say("a", state="failed", code=9)
    follow(job, 4)
    assert job.table.attempt is not None
    assert job.table.attempt.roster == ("a", "c", "d")


def test_without_a_spare_fewer_go_on_and_not_fewer_than_are_needed() -> None:
    job = Nodes()
    job.take("evict", "d")
    job.take("evict", "b")
    follow(job, 200)
    assert job.table.attempt is not None
    assert job.table.attempt.roster == ("a", "c")
    refused = job.take("evict", "a")
    assert (refused.reason, refused.text) == ("unfit", "without a 1 nodes are left, and the job needs 2")
    assert job.take("cordon", "a").reason == "unfit"


def test_an_eviction_while_a_spare_is_starting_is_asked_for_again_and_done_once_it_is_there() -> None:
    job = Job("a", "b", "c", shape=TIGHT)
    job.run()
    job.pass_s(1.0)

    def asked() -> Reply:
        state = answered(AskState("j"), "j", job.table, job.now_s).state
        assert state is not None
        evict = Operation(
            id="o", job="j", kind="evict", expected_generation=state.generation, targets=Targets(nodes=("b",))
        )
        return answered(Submit(evict), "j", job.table, job.now_s)

    reply = asked()
    assert reply.report is None
    assert reply.later is not None
    assert (
        "without b 2 nodes are left, and the job needs 3; nodes that were asked for are still starting" in reply.later
    )
    with pytest.raises(LauncherUnavailable, match="still starting"):
        LeaderClient._report(reply)
    job.say("d")
    report = asked().report
    assert report is not None
    assert report.state == "accepted"


def test_an_eviction_is_refused_where_a_spare_never_comes_or_was_lost() -> None:
    job = Job("a", "b", "c", shape=TIGHT)
    job.run()
    job.pass_s(PATIENCE.give_up_s + 1.0)
    lost = Job("a", "b", "c", "d", shape=TIGHT)
    lost.run()
    del lost.said["d"]
    lost.pass_s(LOST_S + 1.0)
    for one in (job, lost):
        evict = Operation(id="o", job="j", kind="evict", expected_generation=0, targets=Targets(nodes=("b",)))
        now = answered(AskState("j"), "j", one.table, one.now_s).state
        assert now is not None
        evict = msgspec.structs.replace(evict, expected_generation=now.generation)
        report = answered(Submit(evict), "j", one.table, one.now_s).report
        assert report is not None
        assert (report.reason, report.text) == ("unfit", "without b 2 nodes are left, and the job needs 3")


def test_words_that_wait_for_their_turn_and_nodes_that_are_silent_are_reckoned_with() -> None:
    job = Nodes()
    assert job.take("evict", "a").state == job.take("evict", "b").state == "accepted"
    assert job.take("evict", "c").text == "without c 1 nodes are left, and the job needs 2"
    job = Nodes()
    del job.said["c"], job.said["d"]
    job.pass_s(LOST_S + 1.0)
    assert job.take("evict", "a").reason == "unfit"
    assert job.take("evict", "c").state == "accepted", "a and b are left"
    assert job.take("evict", "b").reason == "unfit"


def test_an_eviction_is_carried_out_once_whoever_leads_meanwhile() -> None:
    for moment in range(6):
        job = Nodes()
        job.take("evict", "b")
        follow(job, moment)
        job.next_leader()
        job.pass_s(2 * LOST_S)
        if job.poll("o1") == "unknown":
            assert moment == 0, "nobody had heard of it"
            now, targets = job.state().generation, Targets(nodes=("b",))
            repeat = Operation(id="o1", job="j", kind="evict", expected_generation=now, targets=targets)
            assert job.again_submit(repeat).state == "accepted"
        follow(job, 80)
        attempt = job.table.attempt
        assert attempt is not None
        assert (job.poll("o1"), attempt.number, attempt.roster) == ("done", 2, ("a", "c", "d"))


def test_a_node_whose_launcher_starts_anew_is_still_set_aside() -> None:
    job = Nodes()
    job.take("evict", "b")
    follow(job, 6)
    del job.said["b"]
    job.pass_s(LOST_S + 1.0)
    assert job.states()["b"] == "cordoned", "though nothing is heard of it"
    job.say("b/2", node="b")
    job.next_leader()
    job.pass_s(2 * LOST_S)
    assert job.states()["b"] == "cordoned"
    job.say("a", state="failed", code=9)
    job.stop()
    job.pass_s(1.0)
    assert job.run().roster == ("a", "c", "d")


def test_another_may_come_in_its_place_and_then_it_cannot_be_put_back() -> None:
    job = Nodes()
    job.take("evict", "b")
    follow(job, 6)
    come = job.said["d"].__class__(job="j", life="e", node="e", shape=job.shape, host="host-e", port=7000)
    assert job.table.misfit(come, job.now_s) is None
    job.say("e")
    refused = job.take("uncordon", "b")
    assert (refused.reason, "3 nodes and 1 spares without it" in refused.text) == ("unfit", True)


def test_who_leads_next_waits_for_those_who_may_train_in_the_place_of_one_that_is_set_aside() -> None:
    """Of a, c and d that train, and b that is set aside, b and a are heard: c and d are enough for an attempt."""
    job = Nodes()
    job.take("evict", "b")
    follow(job, 6)
    heard = {name: job.said[name] for name in ("a", "b")}
    job.said = {}
    job.next_leader()
    for name, said in heard.items():
        job.say(name, ledger=said.ledger, newest=None, ran=None, state="idle", alive=0)
    job.pass_s(LOST_S + 1.0, "a", "b")
    assert job.table.asked.aside == ("b",)
    assert job.table._may_have_missed(job.now_s)


def test_what_is_asked_of_a_suspended_job_is_done_without_a_start() -> None:
    job = Nodes()
    job.paused()
    assert job.take("evict", "b").state == "accepted"
    follow(job, 4)
    assert (job.poll("o2"), job.state().phase) == ("done", "paused")
    job.submit("resume")
    follow(job, 6)
    assert job.table.attempt is not None
    assert job.table.attempt.roster == ("a", "c", "d")


@pytest.mark.parametrize(
    ("kind", "nodes", "reason"),
    [
        ("evict", (), "unknown_target"),
        ("evict", ("x",), "unknown_target"),
        ("uncordon", ("x",), "unknown_target"),
        ("evict", ("a", "b"), "unfit"),
        ("replace", ("a",), "unsupported"),
    ],
)
def test_what_does_not_fit_is_refused_in_words(kind: Verb, nodes: tuple[str, ...], reason: str) -> None:
    job = Nodes()
    report = job.submit(kind, targets=Targets(nodes=nodes))
    assert (report.state, report.reason, bool(report.text)) == ("refused", reason, True)


def test_how_long_an_attempt_has_run_is_told_by_its_nodes() -> None:
    job = Nodes()
    assert job.state().attempt_age_s is None
    job.say("a", age_s=3.0)
    job.say("b", age_s=4.0)
    job.say("d", age_s=99.0)
    assert job.state().attempt_age_s == 4.0
    job.next_leader()
    job.pass_s(2 * LOST_S)
    assert job.state().attempt_age_s == 4.0, "as its nodes say"


@examples(40)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["evict", "cordon", "uncordon", "pause", "resume", "leader", "fail"]),
            st.sampled_from("abcd"),
        ),
        max_size=12,
    )
)
def test_whatever_is_asked_of_nodes_every_word_has_an_end_and_nobody_set_aside_trains(
    events: list[tuple[Any, str]],
) -> None:
    job, asked = Nodes(), list[str]()
    for kind, node in events:
        if kind == "leader":
            job.next_leader()
            job.pass_s(2 * LOST_S)
        elif kind == "fail":
            if job.table.runs and job.table.attempt is not None:
                job.say(job.table.attempt.roster[0], state="failed", code=9)
        else:
            report = job.submit(kind) if kind in ("pause", "resume") else job.take(kind, node)
            if report.state == "accepted":
                asked.append(report.operation)
        follow(job, 8)
        if job.table.over is not None:
            return
    follow(job, 400)  # fewer nodes are waited for twice, half a minute each
    assert all(job.poll(name) == "done" for name in asked)
    assert len(job.table.asked.aside) <= 2, "two nodes are needed"
