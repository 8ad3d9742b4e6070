"""What is asked of a job on several nodes is carried out once, whoever leads meanwhile."""

from __future__ import annotations

from typing import Any, Final

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given

from actions.launchers.cluster.control import CAPABILITIES, answered
from actions.launchers.cluster.ledger import KEPT_OPERATIONS, Ledger, LedgerEntry, LedgerKeeper
from actions.launchers.cluster.obeying import next_step, order_after
from actions.launchers.cluster.words import MAX_BYTES, MOST_NODES, Attempt, Over
from actions.launchers.local.control import AskState, Poll, Submit
from tests.examples import examples
from tests.unit.actions.launchers.cluster.test_leader import LOST_S, PATIENCE, Job
from tests.unit.actions.launchers.cluster.test_leading import report as node_report
from trainwarden.launching import LauncherState, Operation, Plan, Report, Targets, Verb

NODES: Final = ("a", "b", "c", "d")


class Asked(Job):
    """A job that runs, of which something is asked."""

    def __init__(self) -> None:
        super().__init__(*NODES)
        self.run()
        self.pass_s(1.0)
        self.number = 0

    def state(self) -> LauncherState:
        state = answered(AskState("j"), "j", self.table, self.now_s).state
        assert state is not None
        return state

    def submit(self, kind: Verb, **what: Any) -> Report:
        self.number += 1
        said = {"id": f"o{self.number}", "job": "j", "expected_generation": self.state().generation, "by": "ann"}
        return self.again_submit(Operation(**{**said, "kind": kind, **what}))

    def again_submit(self, operation: Operation) -> Report:
        report = answered(Submit(operation), "j", self.table, self.now_s).report
        assert report is not None
        return report

    def poll(self, name: str) -> str:
        report = answered(Poll("j", name), "j", self.table, self.now_s).report
        assert report is not None
        return report.state

    def paused(self) -> Job:
        self.submit("pause")
        self.pass_s(0.5)
        self.stop()
        self.pass_s(0.5)
        return self


def test_a_pause_stops_all_ranks_and_begins_nothing_until_somebody_resumes_the_job() -> None:
    job = Asked()
    assert job.submit("pause", why="hot").state == "accepted"
    assert job.table.runs, "not before all know it"
    job.pass_s(0.5)
    assert not job.table.runs
    assert "a pause was asked for by ann: hot" in job.table.news()[-1]
    assert (job.state().phase, job.state().under_way) == ("paused", ("o1",))
    job.stop()
    job.pass_s(0.5)
    assert (job.poll("o1"), job.state().phase, job.state().under_way) == ("done", "paused", ())
    job.pass_s(2 * PATIENCE.give_up_s)
    assert not job.ready
    assert job.table.over is None, "a paused job waits for nobody"
    assert job.submit("resume").state == "accepted"
    job.pass_s(0.5)
    attempt = job.run()
    job.pass_s(0.25)
    assert (attempt.number, attempt.failures, attempt.roster) == (2, 0, ("a", "b", "c"))
    assert (job.poll("o2"), job.state().phase) == ("done", "running")


def test_a_leader_that_follows_goes_on_with_a_pause_wherever_it_was_cut_short() -> None:
    for moment in range(4):
        job = Asked()
        job.submit("pause")
        job.pass_s(0.25 * moment)
        if moment == 3:
            job.stop()
        job.next_leader()
        job.pass_s(2 * LOST_S)
        if moment == 0:
            assert job.poll("o1") == "unknown", "nobody has heard of it, and nothing of it was begun"
            assert job.table.runs
            continue
        if moment < 3:
            job.stop()
        job.pass_s(1.0)
        assert (job.poll("o1"), job.state().phase, job.ready) == ("done", "paused", False)
        job.next_leader()
        job.pass_s(2 * LOST_S)
        assert (job.poll("o1"), job.state().phase, job.ready) == ("done", "paused", False)
        job.submit("resume")
        job.pass_s(0.5)
        job.next_leader()
        job.pass_s(2 * LOST_S)
        assert job.ready
        assert job.run().number == 2
        job.pass_s(0.5)
        assert (job.poll("o2"), job.state().phase) == ("done", "running")


def test_a_restart_happens_once_whoever_leads_and_however_often_it_is_asked_for() -> None:
    job = Asked()
    job.submit("restart")
    job.pass_s(0.5)
    job.stop()
    job.next_leader()
    job.pass_s(2 * LOST_S)
    assert job.run().number == 2
    job.pass_s(0.5)
    assert job.poll("o1") == "done"
    repeat = Operation(id="o1", job="j", kind="restart", expected_generation=0)
    assert job.again_submit(repeat).state == "done"
    job.next_leader()
    job.pass_s(2 * LOST_S)
    assert job.again_submit(repeat).state == "done"
    job.pass_s(5.0)
    assert job.table.runs
    assert job.table.attempt is not None
    assert (job.table.attempt.number, job.table.attempt.failures) == (2, 0)


def test_a_stop_ends_the_job_everywhere_with_a_word() -> None:
    job = Asked()
    job.submit("stop", why="enough")
    job.pass_s(0.5)
    assert job.table.over == Over(143, "a stop was asked for by ann: enough")
    assert job.poll("o1") == "done"
    assert job.submit("restart").reason == "over"


def test_a_pause_and_a_resume_on_its_heels_are_carried_out_one_after_the_other() -> None:
    job = Asked()
    job.submit("pause")
    job.submit("resume")
    job.pass_s(0.5)
    assert not job.table.runs
    job.stop()
    job.pass_s(0.5)
    assert job.run().number == 2
    job.pass_s(0.5)
    assert (job.poll("o1"), job.poll("o2"), job.state().phase) == ("done", "done", "running")


def test_what_runs_where_is_told() -> None:
    job = Asked()
    state = job.state()
    assert (state.phase, state.attempt, state.ranks_running) == ("running", 0, (0, 1, 2, 3, 4, 5))
    assert [(one.node, one.state, one.ranks) for one in state.nodes if one.ranks] == [
        ("a", "healthy", (0, 1)), ("b", "healthy", (2, 3)), ("c", "healthy", (4, 5)),
    ]  # fmt: skip
    job.say("a", state="failed", code=9, alive=1)
    assert job.state().phase == "restarting"


def test_nodes_that_come_and_go_while_a_job_is_paused_change_nothing() -> None:
    job = Asked().paused()
    del job.said["b"]
    job.pass_s(LOST_S + 1.0)
    job.say("e")
    job.pass_s(1.0)
    assert not job.ready
    assert {one.node: one.state for one in job.state().nodes}["b"] == "lost"


def test_a_node_is_named_once_though_its_launcher_is_another_one() -> None:
    job = Asked().paused()
    del job.said["b"]
    job.pass_s(LOST_S + 1.0)
    job.say("b/2", node="b")
    nodes = [(one.node, one.state) for one in job.state().nodes]
    assert sorted(nodes) == [("a", "healthy"), ("b", "spare"), ("c", "healthy"), ("d", "spare")]


def test_an_attempt_that_nobody_asked_for_makes_older_plans_stale() -> None:
    job = Asked()
    planned = job.state().generation
    job.say("a", state="failed", code=9)
    job.stop()
    job.pass_s(1.0)
    job.run()
    assert job.submit("restart", expected_generation=planned).reason == "stale"


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ({"kind": "validate"}, "unsupported"),
        ({"kind": "restart", "job": "other"}, "unknown_job"),
        ({"kind": "restart", "expected_generation": 99}, "stale"),
        ({"kind": "restart", "targets": Targets(ranks=(6,))}, "unknown_target"),
        ({"kind": "restart", "targets": Targets(ranks=(0,))}, "unfit"),
        ({"kind": "pause", "targets": Targets(nodes=("a",))}, "unfit"),
        ({"kind": "move"}, "unfit"),
        ({"kind": "move", "plan": Plan(node_order=("a", "b", "c"))}, "unfit"),  # it has that order
        ({"kind": "move", "plan": Plan(node_order=("b", "a"))}, "unfit"),
        ({"kind": "move", "plan": Plan(node_order=("b", "a", "a"))}, "unfit"),
        ({"kind": "move", "plan": Plan(node_order=("b", "a", "d"))}, "unfit"),  # d waits
        ({"kind": "move", "plan": Plan(node_order=("b", "a", "c")), "targets": Targets(ranks=(0,))}, "unfit"),
    ],
)
def test_what_does_not_fit_is_refused_and_changes_nothing(what: dict[str, Any], reason: str) -> None:
    job = Asked()
    before = job.state()
    assert job.submit(**what).reason == reason
    job.pass_s(1.0)
    assert job.state() == before
    assert job.table.runs


def test_a_paused_job_is_not_restarted() -> None:
    job = Asked().paused()
    assert isinstance(job, Asked)
    refused = job.submit("restart")
    assert (refused.reason, "resumes it" in refused.text) == ("unfit", True)


def moved(job: Asked, *order: str) -> Report:
    return job.submit("move", plan=Plan(node_order=order))


def test_a_move_gives_all_nodes_another_place_and_all_attempts_after_it_keep_that() -> None:
    job = Asked()
    assert moved(job, "c", "a", "b").state == "accepted"
    assert job.table.runs, "not before all know it"
    job.pass_s(0.5)
    assert "a move was asked for by ann" in job.table.news()[-1]
    job.stop()
    job.pass_s(0.5)
    attempt = job.run()
    job.pass_s(0.5)
    assert (attempt.number, attempt.failures, attempt.roster, attempt.master) == (2, 0, ("c", "a", "b"), "host-c")
    assert (job.poll("o1"), job.state().phase) == ("done", "running")
    assert [one.node for one in job.state().nodes if one.ranks] == ["c", "a", "b"]
    job.fail("a")
    assert job.run().roster == ("c", "a", "b")
    job.next_leader()
    job.pass_s(2 * LOST_S)
    job.fail("b")
    assert job.run().roster == ("c", "a", "b")
    ledger = job.table.asked.ledger
    assert ledger is not None
    assert [one.order for one in ledger.entries] == [()], "what is done takes no room"


def test_a_move_happens_once_wherever_it_was_cut_short() -> None:
    for moment in range(4):
        job = Asked()
        operation = Operation(
            id="m", job="j", kind="move", expected_generation=job.state().generation,
            plan=Plan(node_order=("b", "c", "a")),
        )  # fmt: skip
        assert job.again_submit(operation).state == "accepted"
        job.pass_s(0.25 * moment)
        if moment == 3:
            job.stop()
        job.next_leader()
        job.pass_s(2 * LOST_S)
        if moment == 0:
            assert job.poll("m") == "unknown", "nobody has heard of it, and nothing of it was begun"
            continue
        if moment < 3:
            job.stop()
        job.pass_s(1.0)
        assert job.run().roster == ("b", "c", "a")
        job.pass_s(0.5)
        assert job.again_submit(operation).state == "done"
        job.pass_s(5.0)
        assert (job.table.runs, job.state().attempt) == (True, 1)


def test_ranks_that_fail_while_a_move_waits_for_its_turn_start_again_in_the_new_order() -> None:
    job = Asked()
    moved(job, "c", "b", "a")
    job.fail("b")
    assert job.run().roster == ("c", "b", "a")
    job.pass_s(0.5)
    assert (job.poll("o1"), job.table.runs) == ("done", True)


def test_a_node_that_is_lost_in_a_move_leaves_the_others_in_their_new_order() -> None:
    job = Asked()
    moved(job, "c", "b", "a")
    job.pass_s(0.5)
    job.stop()
    del job.said["b"]
    job.pass_s(2 * LOST_S + PATIENCE.join_s)
    assert job.run().roster == ("c", "a", "d")
    job.pass_s(0.5)
    assert job.poll("o1") == "done"


def test_a_move_comes_after_nothing_that_is_not_done() -> None:
    job = Asked()
    job.submit("restart")
    assert "not done yet" in moved(job, "c", "b", "a").text
    assert isinstance(paused := Asked().paused(), Asked)
    assert "resumes it" in moved(paused, "c", "b", "a").text


def test_every_verb_is_offered_or_refused_in_words() -> None:
    assert not CAPABILITIES.can & set(CAPABILITIES.cannot)


def test_a_ledger_forgets_the_oldest_and_fits_into_a_question_beside_the_largest_attempt() -> None:
    job = Asked()
    for number in range(KEPT_OPERATIONS + 5):
        assert job.submit("resume", id=f"{'o' * 500}{number}", why="w" * 2000).state == "accepted"
        job.pass_s(0.5)
    ledger = job.table.asked.ledger
    assert ledger is not None
    assert (len(ledger.entries), ledger.entries[0].id[-2:]) == (KEPT_OPERATIONS, "o5")
    order = tuple(reversed(range(MOST_NODES)))
    move = msgspec.structs.replace(ledger.entries[-1], kind="move", order=order)
    ledger = msgspec.structs.replace(ledger, entries=(*ledger.entries[:-1], move))
    roster = tuple(f"{'n' * 200}{number}/{'0' * 12}" for number in range(MOST_NODES))
    attempt = Attempt(epoch=2**52, number=2**52, roster=roster, master="m", port=65_535, checkpoint="c" * 4096)
    assert len(msgspec.json.encode(node_report("a", newest=attempt, ledger=ledger))) < MAX_BYTES


def test_what_waits_for_its_turn_is_never_forgotten_for_what_comes_later() -> None:
    job = Asked()
    for _ in range(KEPT_OPERATIONS):
        assert job.submit("resume").state == "accepted"
    refused = job.submit("pause")
    assert (refused.reason, "wait for their turn" in refused.text) == ("unfit", True)
    job.pass_s(KEPT_OPERATIONS * 0.5)
    assert job.poll("o1") == "done"
    assert job.submit("pause").state == "accepted"


@pytest.mark.thorough
@examples(40)
@given(st.lists(st.sampled_from(["pause", "resume", "restart", "leader", "fail", "wait", "lost"]), max_size=14))
def test_whatever_is_asked_and_whoever_leads_a_job_that_is_not_paused_runs_in_the_end(events: list[Any]) -> None:
    job, asked = Asked(), list[tuple[str, str]]()
    for event in events:
        if event == "leader":
            job.next_leader()
            job.pass_s(2 * LOST_S)
        elif event == "fail" and job.table.runs and job.table.attempt is not None:
            first = job.table.attempt.roster[0]
            job.table.attempt = msgspec.structs.replace(job.table.attempt, failures=0)
            job.say(first, state="failed", code=9)
        elif event == "lost":
            job.said["d"] = msgspec.structs.replace(job.said["d"], ledger=None)
        elif event in ("pause", "resume", "restart"):
            report = job.submit(event)
            if report.state == "accepted":
                asked.append((report.operation, event))
        follow(job, 8)
    follow(job, 200)
    assert all(job.poll(name) == "done" for name, _ in asked)
    wanted = "paused" if [kind for _, kind in asked if kind != "restart"][-1:] == ["pause"] else "running"
    assert job.state().phase == wanted


def follow(job: Asked, turns: int) -> None:
    """Nodes do what they are told, for so many quarters of a second."""
    for _ in range(turns):
        job.pass_s(0.25)
        if not job.table.runs:
            job.stop()
            if job.ready:
                job.run()


def test_a_restart_or_move_that_was_said_against_an_attempt_before_all_launchers_began_anew_is_of_no_other() -> None:
    """Whoever counts attempts from one again has none of the attempt that was meant."""
    for kind in ("restart", "move"):
        job = Asked()
        entry = LedgerEntry(id="o", kind=kind, epoch=1, attempt=1, order=(1, 0) if kind == "move" else ())  # type: ignore[arg-type]
        keeper = LedgerKeeper(epoch=9)
        keeper.hear(Ledger(epoch=1, number=4, entries=(entry,)))
        assert job.table.attempt is not None
        now = msgspec.structs.replace(job.table.attempt, epoch=9, number=1)
        assert order_after(keeper, now) == now.roster
        ran = [msgspec.structs.replace(one, ran=now.id) for one in job.table.living(job.now_s)]
        assert next_step(keeper, now, ran) == "done"
