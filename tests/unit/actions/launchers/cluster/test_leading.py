"""The leader's side of the network: leases, bad questions, the checkpoint that is looked for."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import Any, Final

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given

from actions.launchers.checkpoints.resumption import SEARCH_S
from actions.launchers.cluster import growing, leading
from actions.launchers.cluster.control import Question
from actions.launchers.cluster.leading import Leading
from actions.launchers.cluster.ledger import Ledger, LedgerEntry
from actions.launchers.cluster.words import (
    MAX_BYTES,
    MOST_NODES,
    Attempt,
    Order,
    Patience,
    Report,
    Shape,
)
from actions.launchers.leases.questions import Refusal
from actions.launchers.leases.words import Lease
from actions.launchers.local.control import AskState, Poll, Submit
from tests.doubles import ManualClock
from tests.examples import examples
from trainwarden import launching
from trainwarden.checkpoints import newest
from trainwarden.checkpoints.newest import Checkpoint
from trainwarden.errors import ConfigError
from trainwarden.launching import Operation

SHAPE: Final = Shape(nodes=2, least_nodes=2)
PIECES: Final = [b"-1", b"9" * 30, b"null", b'""', b"1e9", b"[", b"{"]
LEASE: Final = Lease(job="j", holder="l", address="host:1", epoch=3, duration_s=6.0)


class Leadership:
    """A lease that stands until it is taken away."""

    def __init__(self) -> None:
        self.lease: Lease | None = LEASE
        self.fenced_epoch = 0

    def leads(self) -> Lease | None:
        return self.lease

    def left_s(self) -> float:
        return 4.0

    def fenced(self, epoch: int) -> None:
        self.fenced_epoch, self.lease = epoch, None


class Leader:
    """`Leading` with a lease of a double and a clock that stands still."""

    def __init__(self, folder: Path | None = None, shape: Shape = SHAPE) -> None:
        self.leadership, self.clock = Leadership(), ManualClock(100.0)
        self.ledgers: dict[str, Ledger | None] = {}
        self.leading = Leading(
            "j", "l", self.leadership, self.clock, shape=shape, patience=Patience(), checkpoints=folder
        )

    def ask(self, life: str, **what: Any) -> Order:
        said = report(life, **{"ledger": self.ledgers.get(life), **what})
        order = msgspec.json.decode(self.post(msgspec.json.encode(said)), type=Order)
        self.ledgers[life] = order.ledger or said.ledger
        return order

    def post(self, question: bytes) -> bytes:
        return self.leading.routes()["POST", "/v1/node"](question, None)

    def form(self) -> Order:
        """Both nodes come, and time passes as it does to a leader that is not the first."""
        for _ in range(30):
            order = [self.ask("a"), self.ask("b")][0]
            self.leading.advance()
            self.clock.sleep(0.25)
        return order


def report(life: str, **what: Any) -> Report:
    return Report(**{"job": "j", "life": life, "node": life, "shape": SHAPE, "host": life, "port": 7000, **what})


def test_nodes_are_ordered_what_the_leaders_lease_allows() -> None:
    leader = Leader()
    order = leader.form()
    assert (order.holder, order.epoch, order.left_s, order.run) == ("l", 3, 4.0, True)
    assert order.attempt is not None
    assert order.attempt.roster == ("a", "b")


def test_who_leads_no_more_says_so_and_begins_with_nothing_when_it_leads_again() -> None:
    leader = Leader()
    before = leader.form()
    leader.leadership.lease = None
    leader.leading.advance()
    order = leader.ask("a", newest=before.attempt)
    assert (order.leads, order.epoch, order.attempt) == (False, 3, None)
    assert leader.leading.finished()
    leader.leadership.lease = msgspec.structs.replace(LEASE, epoch=5)
    assert leader.ask("a").attempt is None
    assert leader.ask("a", newest=before.attempt).attempt == before.attempt


def test_who_is_set_aside_is_none_of_those_without_whom_nobody_can_go_on() -> None:
    shape = Shape(nodes=2, least_nodes=2, spares=1)
    leader = Leader(shape=shape)
    leader.leadership.lease = None
    assert not [leader.ask(life, shape=shape) for life in ("a", "b")][-1].alone
    leader = Leader(shape=shape)
    leader.leadership.lease = None
    leader.ledgers["b"] = Ledger(epoch=1, number=1, aside=("b",))
    assert [leader.ask(life, shape=shape) for life in ("a", "b")][-1].alone, "another may have come in its place"


def test_a_leader_stays_until_whoever_asked_for_a_stop_has_heard_of_its_end() -> None:
    leader = Leader()
    leader.form()
    state = leader.leading.control(AskState("j")).state
    assert state is not None
    stop = Operation(id="s", job="j", kind="stop", expected_generation=state.generation)
    assert leader.leading.control(Submit(stop)).report == launching.Report(operation="s", state="accepted")
    order = leader.form()
    leader.ask("a", over=order.over)
    leader.ask("b", over=order.over)
    assert not leader.leading.finished()
    assert leader.leading.control(Poll("j", "s")).report == launching.Report(operation="s", state="done")
    assert leader.leading.finished()


def test_who_leads_no_more_says_so_when_others_could_begin_an_attempt_without_those_it_hears() -> None:
    leader = Leader(shape=Shape(nodes=2, least_nodes=2, spares=2))

    def ask(*lives: str) -> Order:
        orders = [leader.ask(life, shape=Shape(nodes=2, least_nodes=2, spares=2)) for life in lives]
        return orders[-1]

    ask("a", "b", "c")
    leader.leadership.lease = None
    assert not ask("a", "b").alone, "of four only d is not heard"
    leader.clock.sleep(4.0)
    assert not ask("a", "b").alone
    leader.clock.sleep(1.0)
    assert ask("a", "b").alone, "c and d may go on without them"
    ask("c")
    assert not ask("a", "b").alone


def test_a_node_that_obeys_a_higher_epoch_fences_the_leader() -> None:
    leader = Leader()
    assert not leader.ask("a", obeyed_epoch=4).leads
    assert leader.leadership.fenced_epoch == 4


def test_a_node_that_obeyed_another_one_under_the_same_epoch_fences_the_leader_too() -> None:
    """A lease service that began with nothing counts from one again; a node that kept whom it obeyed refuses it."""
    leader = Leader()
    assert not leader.ask("a", obeyed_epoch=3, obeyed_holder="before").leads
    assert leader.leadership.fenced_epoch == 3
    again = Leader()
    assert again.ask("a", obeyed_epoch=3, obeyed_holder="l").leads


def test_a_node_of_another_shape_is_sent_home_and_counts_for_nothing() -> None:
    leader = Leader()
    leader.form()
    order = leader.ask("c", shape=Shape(nodes=3, least_nodes=2))
    assert order.over is not None
    assert order.over.code == 2
    assert not order.run
    assert leader.ask("a").over is None


def test_a_leader_that_was_started_with_other_numbers_than_the_job_that_runs_goes_and_not_the_job() -> None:
    leader = Leader()
    other = Shape(nodes=3, least_nodes=2)
    running = Attempt(epoch=1, number=1, roster=("c", "d", "e"), master="c", port=1)
    order = leader.ask("c", shape=other, newest=running)
    assert not order.leads
    assert order.over is None
    with pytest.raises(ConfigError, match=r"--nnodes 2 .* but the job that runs by --nnodes 3"):
        leader.leading.advance()


def test_an_attempt_goes_on_from_the_newest_whole_checkpoint(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    for step in (10, 20):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        (folder / "trainer_state.json").write_text(f'{{"global_step": {step}' + ("}" if step == 10 else ""))
    leader = Leader(tmp_path)
    leader.form()
    joined("checkpoint-search")
    leader.leading.advance()
    attempt = leader.ask("a").attempt
    assert attempt is not None
    assert (attempt.checkpoint, attempt.step) == ("checkpoint-10", 10)
    leader.leading.advance()
    told = [getattr(one, "fields", {}).get("what", "") for one in caplog.records]
    assert any("checkpoint-20 is newer than checkpoint-10 and not whole, so it is passed over" in one for one in told)


def formed_without_an_answer(leader: Leader) -> Attempt:
    """The attempt that begins once the search of a folder that does not answer has had its time."""
    assert leader.form().attempt is None
    leader.clock.sleep(SEARCH_S)
    assert [leader.ask("a"), leader.ask("b")][0].attempt is None
    leader.leading.advance()
    attempt = leader.ask("a").attempt
    assert attempt is not None
    assert attempt.checkpoint is None
    return attempt


def test_a_folder_that_does_not_answer_keeps_no_leader_from_answering(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the real search, in its thread: one that were waited for would have ended before the attempt is formed."""
    answer, answered = threading.Event(), list[Path]()

    def stuck(folder: Path) -> None:
        answer.wait(20.0)
        answered.append(folder)

    monkeypatch.setattr(newest, "newest", stuck)
    leader = Leader(tmp_path)
    formed_without_an_answer(leader)
    watch = growing.CheckpointWatch(tmp_path, leader.clock.now_s())
    assert watch.newer(leader.clock.now_s() + 1_000.0) is None
    assert answered == []
    answer.set()


class Looked:
    """A search of the folder of checkpoints that has come to what it is told."""

    found: Checkpoint | None = None
    done = False


def test_a_folder_that_does_not_answer_holds_an_attempt_up_for_so_long_and_what_was_found_before_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    searches: list[Looked] = []

    def search(_folder: Path) -> Looked:
        searches.append(Looked())
        return searches[-1]

    monkeypatch.setattr(leading, "Search", search)
    leader = Leader(tmp_path)
    attempt = formed_without_an_answer(leader)
    searches[0].found, searches[0].done = Checkpoint(tmp_path / "old", 10, "torch"), True
    leader.leading.advance()
    ended = {"ran": attempt.id, "newest": attempt, "state": "failed", "code": 1}
    for _ in range(2):  # with what was ordered before
        leader.ask("a", **ended)
        leader.ask("b", **ended)
    leader.leading.advance()
    leader.leading.advance()
    assert len(searches) == 2
    assert leader.ask("a", **ended).attempt.number == 1  # type: ignore[union-attr]


def test_a_job_that_is_to_grow_does_so_at_the_next_whole_checkpoint(tmp_path: Path) -> None:
    shape = Shape(nodes=2, least_nodes=1, grow="now")
    leader = Leader(tmp_path, shape)

    def on(**what: Any) -> Order:
        for _ in range(30):
            order = leader.ask("a", shape=shape, **what)
            leader.ask("b", shape=shape)
            leader.leading.advance()
            joined("checkpoint-search")
            leader.clock.sleep(0.25)
        return order

    for _ in range(130):
        order = leader.ask("a", shape=shape)
        leader.leading.advance()
        joined("checkpoint-search")
        leader.clock.sleep(0.25)
    assert order.attempt is not None
    assert order.attempt.roster == ("a",)
    runs = {"ran": order.attempt.id, "newest": order.attempt, "state": "running", "alive": 1}
    assert on(**runs).run, "there is no checkpoint"
    (tmp_path / "checkpoint-10").mkdir()
    (tmp_path / "checkpoint-10" / "trainer_state.json").write_text('{"global_step": 10}')
    assert not on(**runs).run
    attempt = on(**{**runs, "state": "stopped", "alive": 0}).attempt
    assert attempt is not None
    assert (attempt.roster, attempt.checkpoint) == (("a", "b"), "checkpoint-10")


def joined(name: str) -> None:
    for thread in threading.enumerate():
        if thread.name == name:
            thread.join()


@pytest.mark.parametrize(
    "question", [b"", b"{}", b"[" * 100_000, b'{"job":1}', msgspec.json.encode(report("a", job="other"))]
)
def test_a_bad_question_is_refused_in_a_sentence(question: bytes) -> None:
    with pytest.raises(Refusal):
        Leader().post(question)


@examples(100)
@given(st.data())
def test_no_question_breaks_the_leader(data: st.DataObject) -> None:
    """Reports with pieces cut out, doubled or replaced, between good ones."""
    leader = Leader()
    attempt = Attempt(epoch=1, number=1, roster=("a", "b"), master="a", port=1)
    ledger = Ledger(epoch=1, number=1, entries=(LedgerEntry(id="o", kind="pause", attempt=1),))
    said = report("a", alive=1, ran=(1, 1), state="running", newest=attempt, obeyed_epoch=1, ledger=ledger)
    word = Question(Submit(Operation(id="o", job="j", kind="stop", expected_generation=0)))
    good = msgspec.json.encode(data.draw(st.sampled_from([said, word])))
    for _ in range(5):
        start, end = sorted((data.draw(st.integers(0, len(good))), data.draw(st.integers(0, len(good)))))
        piece = data.draw(st.one_of(st.binary(max_size=20), st.sampled_from(PIECES)))
        with contextlib.suppress(Refusal):
            leader.post(good[:start] + piece + good[end:])
        with contextlib.suppress(Refusal):
            leader.leading.routes()["POST", "/v1/job"](good[:start] + piece + good[end:], None)
        leader.leading.advance()
        leader.clock.sleep(1.0)


def test_the_largest_attempt_fits_into_a_question() -> None:
    roster = tuple(f"{'n' * 200}{number}/{'0' * 12}" for number in range(MOST_NODES))
    attempt = Attempt(epoch=2**52, number=2**52, roster=roster, master="m", port=65_535, checkpoint="c" * 4096)
    assert len(msgspec.json.encode(report("a", newest=attempt))) < MAX_BYTES
