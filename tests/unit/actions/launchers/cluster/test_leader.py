"""The leader's table, by the stories that need it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from actions.launchers.cluster.leader import LeaderTable
from actions.launchers.cluster.words import Attempt, Over, Patience, Report, Shape, believable
from trainwarden.checkpoints.newest import Checkpoint

SHAPE: Final = Shape(nodes=3, least_nodes=2, spares=1, ranks=2, restarts=2)
PATIENCE: Final = Patience()
LOST_S: Final = PATIENCE.lost_s


class Job:
    """Nodes that say what they are told to, to one leader after the other."""

    def __init__(self, *names: str, shape: Shape = SHAPE) -> None:
        self.now_s, self.shape = 100.0, shape
        self.said: dict[str, Report] = {}
        self.table = LeaderTable(1, shape, PATIENCE, self.now_s)
        for name in names:
            self.say(name)

    def say(self, name: str, **what: Any) -> None:
        """`name` reports what is new, and all that it said before."""
        fresh = Report(job="j", life=name, node=name, shape=self.shape, host=f"host-{name}", port=7000)
        self.said[name] = msgspec.structs.replace(self.said.get(name, fresh), **what)
        self.again(name)

    def again(self, *names: str) -> None:
        """`names` say what they said before; all but those that are lost, if none is named."""
        for name in names or self.said:
            ledger = self.table.asked.ledger or self.said[name].ledger  # of the order before
            self.said[name] = msgspec.structs.replace(self.said[name], ledger=ledger)
            self.table.hear(self.said[name], self.now_s)
        self.table.advance(self.now_s)

    def pass_s(self, seconds: float, *names: str) -> None:
        """Time passes, and all (or `names`) go on to report."""
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.now_s += 0.25
            self.again(*names)

    def fail(self, name: str, code: int = 7) -> None:
        """A rank on `name` fails, all stop, and the pause after that is over."""
        self.say(name, state="failed", code=code)
        if self.table.over is None:
            self.stop()
            self.pass_s(60.0)

    def run(self, checkpoint: Checkpoint | None = None) -> Attempt:
        """An attempt is formed and all of its nodes run it."""
        self.table.form(checkpoint, self.now_s)
        attempt = self.table.attempt
        assert attempt is not None
        assert self.table.runs
        for name in attempt.roster:
            self.say(name, ran=attempt.id, state="running", alive=2, code=None, newest=attempt)
        return attempt

    def stop(self, *but: str) -> None:
        """All nodes that run something follow the order to stop."""
        assert not self.table.runs
        for name, one in list(self.said.items()):
            if name not in but and one.alive:
                self.say(name, alive=0, state="stopped" if one.state == "running" else one.state)
        self.again()

    def next_leader(self) -> None:
        """Another launcher leads, and knows nothing."""
        self.table = LeaderTable(self.table.epoch + 1, self.shape, PATIENCE, self.now_s)

    @property
    def ready(self) -> bool:
        return self.table.ready(self.now_s)


def test_an_attempt_begins_when_all_are_there_and_names_each_nodes_place() -> None:
    job = Job("n10", "n2")
    assert not job.ready
    job.say("n1")
    attempt = job.run()
    assert attempt.id == (1, 1)
    assert attempt.roster == ("n1", "n2", "n10")
    assert (attempt.master, attempt.port) == ("host-n1", 7000)


def test_fewer_begin_only_after_a_while_and_no_fewer_than_asked_for() -> None:
    job = Job("a")
    job.pass_s(PATIENCE.join_s)
    assert not job.ready
    job.say("b")
    assert job.ready
    assert job.run().roster == ("a", "b")


def test_a_job_whose_nodes_do_not_come_is_given_up_with_a_word() -> None:
    job = Job("a")
    job.now_s += PATIENCE.give_up_s
    job.again()
    assert job.table.over == Over(1, "1 of 3 nodes were there within 600 s")


def test_a_rank_that_fails_has_all_stopped_and_started_again_in_place_from_the_newest_checkpoint() -> None:
    job = Job("a", "b", "c", "d")
    first = job.run()
    job.say("b", state="failed", code=9, alive=1)
    assert not job.table.runs
    assert not job.ready
    job.stop("c")
    assert not job.ready, "c still runs"
    job.stop()
    job.table.form(Checkpoint(Path("ckpt/step-40.pt"), 40, "torch"), job.now_s)
    again = job.table.attempt
    assert again is not None
    assert again.id == (1, 2)
    assert (again.roster, again.failures) == (first.roster, 1)
    assert (again.checkpoint, again.step) == ("step-40.pt", 40)


def test_a_job_that_fails_too_often_is_over_with_the_code_of_its_rank() -> None:
    job = Job("a", "b", "c")
    for _ in range(3):
        job.run()
        job.fail("a")
    assert job.table.over == Over(7, "a rank on a ended with code 7, after 2 restarts")


def checkpoint(step: int) -> Checkpoint:
    return Checkpoint(Path(f"ckpt/step-{step}.pt"), step, "torch")


def test_failures_between_which_the_job_gets_further_end_it_never() -> None:
    job = Job("a", "b", "c")
    for number in range(10):
        attempt = job.run(checkpoint(10 * number))
        assert attempt.in_vain == 0
        job.fail("a")
    assert job.table.over is None


def test_a_job_that_dies_at_the_same_place_for_ever_ends_whatever_it_has_outlived_before() -> None:
    job = Job("a", "b", "c")
    for step in (0, 10, 20, 20, 20):
        assert job.table.over is None
        job.run(checkpoint(step))
        job.fail("a")
    why = "a rank on a ended with code 7, after 2 restarts without a newer checkpoint than step-20.pt"
    assert job.table.over == Over(7, why)


def test_the_first_checkpoint_of_all_is_progress() -> None:
    job = Job("a", "b", "c")
    job.run()
    job.fail("a")
    assert [job.run(checkpoint(10)).in_vain, job.table.attempt and job.table.attempt.failures] == [0, 1]


def test_a_folder_that_does_not_always_answer_is_no_progress() -> None:
    job = Job("a", "b", "c")
    for step in (20, None, 20):
        assert job.table.over is None
        job.run(None if step is None else checkpoint(step))
        job.fail("a")
    assert job.table.over is not None


def test_the_first_failure_is_answered_at_once_and_the_next_ones_after_a_pause() -> None:
    job = Job("a", "b", "c", shape=msgspec.structs.replace(SHAPE, restarts=9))
    for pause_s in (0.0, 5.0, 10.0):
        job.run()
        job.say("a", state="failed", code=7)
        job.stop()
        if pause_s:
            job.pass_s(pause_s - 0.25)
            assert not job.ready
            job.pass_s(0.25)
        assert job.ready
    assert f"and the next attempt waits for {pause_s:.0f} s" in " ".join(job.table.news())


def test_restarts_are_counted_on_by_the_next_leader() -> None:
    job = Job("a", "b", "c")
    for _ in range(3):
        job.run()
        job.next_leader()
        job.pass_s(1.0)
        job.fail("a")
    assert job.table.over is not None
    assert job.table.over.code == 7


def test_a_lost_nodes_place_is_taken_by_a_spare() -> None:
    job = Job("a", "b", "c", "d")
    job.run()
    job.pass_s(LOST_S - 0.25, "a", "c", "d")
    assert job.table.runs
    job.pass_s(0.25, "a", "c", "d")
    assert not job.table.runs
    del job.said["b"]
    job.stop()
    assert job.run().roster == ("a", "c", "d")


def test_without_a_spare_the_job_goes_on_with_fewer_after_a_while() -> None:
    job = Job("a", "b", "c")
    job.run()
    job.pass_s(LOST_S, "a", "c")
    del job.said["b"]
    job.stop()
    assert not job.ready
    job.pass_s(PATIENCE.join_s)
    assert job.run().roster == ("a", "c")


def test_a_next_leader_waits_until_those_it_does_not_hear_have_stopped_what_they_may_run() -> None:
    """``b`` and ``c`` may be cut off from it, and run an attempt that was begun while ``a`` was cut off from them."""
    job = Job("a", shape=Shape(nodes=1, least_nodes=1, spares=2, ranks=2))
    job.run()
    job.next_leader()
    job.say("a", alive=0, state="stopped")
    job.pass_s(2 * LOST_S + PATIENCE.isolated_s - 0.25)
    assert not job.ready
    job.pass_s(0.25)
    assert job.ready


def test_a_next_leader_that_hears_so_many_that_the_others_are_too_few_waits_for_none() -> None:
    job = Job("a", "b", "c", shape=Shape(nodes=1, least_nodes=1, spares=2, ranks=2))
    job.run()
    job.next_leader()
    job.say("a", alive=0, state="stopped")
    job.say("b")
    assert not job.ready
    job.say("c")
    assert job.ready


def test_all_ended_well_is_the_end() -> None:
    job = Job("a", "b", "c", "d")
    job.run()
    for name in "ab":
        job.say(name, state="done", alive=0)
    assert job.table.over is None
    job.say("c", state="done", alive=0)
    assert job.table.over == Over(0)
    assert not job.table.finished(job.now_s)
    for name in "abcd":
        job.say(name, over=Over(0))
    assert job.table.finished(job.now_s)


def test_a_stop_on_one_node_ends_the_job_everywhere_and_waits_for_no_lost_one_for_ever() -> None:
    job = Job("a", "b", "c")
    job.run()
    job.say("b", over=Over(143, "stopped on b"))
    assert job.table.over == Over(143, "stopped on b")
    assert not job.table.runs
    job.say("a", over=Over(143), alive=0)
    job.say("b", alive=0)
    assert not job.table.finished(job.now_s)
    job.now_s += LOST_S
    assert job.table.finished(job.now_s)


def test_a_leader_that_follows_goes_on_with_the_attempt_that_runs() -> None:
    job = Job("a", "b", "c", "d")
    before = job.run()
    job.next_leader()
    job.say("d", newest=before)
    job.pass_s(1.0)
    assert (job.table.attempt, job.table.runs) == (before, True)
    job.pass_s(2 * LOST_S)
    assert (job.table.attempt, job.table.runs) == (before, True)


def test_a_leader_that_follows_begins_nothing_beside_what_it_has_not_heard_of_yet() -> None:
    """Spares alone report at first, and none of them knows what runs."""
    job = Job("a", "b", "c", shape=msgspec.structs.replace(SHAPE, spares=3))
    job.run()
    running, job.said = job.said, {}
    job.next_leader()
    for name in "def":
        job.say(name)
    assert not job.ready
    job.pass_s(1.0)
    job.said |= running
    job.pass_s(2 * LOST_S)
    assert job.table.runs
    assert job.table.attempt is not None
    assert job.table.attempt.roster == ("a", "b", "c")


def test_a_leader_that_hears_of_too_few_begins_nothing_beside_what_may_run_where_it_cannot_hear() -> None:
    """It has the lease and no way to the others, and was never told of the attempt that they run."""
    job = Job("a", "b", "c", shape=Shape(nodes=1, least_nodes=1, spares=2))
    job.run()
    del job.said["a"], job.said["b"]
    job.next_leader()
    job.pass_s(2 * LOST_S + PATIENCE.isolated_s - 0.25)
    assert not job.ready
    job.pass_s(0.25)
    assert job.run().roster == ("c",)


def test_a_leader_that_follows_a_lost_one_replaces_it() -> None:
    job = Job("a", "b", "c", "d")
    job.run()
    del job.said["a"]
    job.next_leader()
    job.pass_s(LOST_S)
    assert not job.table.runs
    job.stop()
    assert job.run().roster == ("b", "c", "d")


def test_where_nobody_of_an_attempt_is_left_another_waits_until_cut_off_nodes_have_stopped() -> None:
    job = Job("a", "b", "c", "d", shape=Shape(nodes=1, least_nodes=1, spares=3))
    job.run()
    del job.said["a"]
    job.pass_s(LOST_S + PATIENCE.isolated_s - 0.25)
    assert not job.table.runs
    assert not job.ready
    job.pass_s(0.25)
    assert job.run().roster == ("b",)


def test_a_node_that_stopped_by_itself_has_the_job_started_again() -> None:
    job = Job("a", "b", "c")
    job.run()
    job.say("c", state="stopped", alive=0)
    assert not job.table.runs
    job.stop()
    assert job.run().id == (1, 2)


def test_a_script_that_starts_over_ends_the_job_before_it_writes_over_its_checkpoints() -> None:
    job = Job("a", "b", "c")
    job.table.form(Checkpoint(Path("ckpt/step-40.pt"), 40, "torch"), job.now_s)
    assert job.table.attempt is not None
    for name in "abc":
        job.say(name, ran=job.table.attempt.id, state="running", alive=2, first_step=40)
    assert job.table.over is None
    job.say("b", first_step=0)
    assert job.table.over is not None
    assert job.table.over.code == 1
    assert "b started over at step 0" in job.table.over.why


def test_a_late_spare_may_wait_and_one_too_many_is_sent_home() -> None:
    job = Job("a", "b", "c", "d")
    job.run()
    fresh = msgspec.structs.replace(job.said["d"], life="e", node="e")
    over = job.table.misfit(fresh, job.now_s)
    assert over is not None
    assert "its 3 nodes and 1 spares" in over.why
    assert job.table.misfit(job.said["a"], job.now_s) is None
    del job.said["d"]
    job.pass_s(LOST_S)
    assert job.table.misfit(fresh, job.now_s) is None


def test_a_launcher_that_is_started_again_at_once_is_not_one_too_many() -> None:
    """What was killed counts as there until it is lost."""
    job = Job("a", "b", "c", "d")
    job.run()
    again = msgspec.structs.replace(job.said["d"], life="d/2", node="d")
    assert job.table.misfit(again, job.now_s) is None


def test_launchers_of_two_nodes_that_are_started_again_at_once_are_both_let_in() -> None:
    job = Job("a", "b", "c", "d")
    job.run()
    job.table.hear(msgspec.structs.replace(job.said["c"], life="c/2", node="c"), job.now_s)
    again = msgspec.structs.replace(job.said["d"], life="d/2", node="d")
    assert job.table.misfit(again, job.now_s) is None


def test_a_node_with_other_numbers_is_sent_home() -> None:
    job = Job("a")
    other = msgspec.structs.replace(job.said["a"], life="b", node="b", shape=Shape(nodes=3, least_nodes=3))
    over = job.table.misfit(other, job.now_s)
    assert over is not None
    assert over.code == 2


@pytest.mark.parametrize("what", [{"obeyed_epoch": 2**53}, {"ran": (2**53, 1)}])
def test_epochs_that_no_job_reaches_are_not_believed(what: dict[str, Any]) -> None:
    job = Job("a")
    assert believable(job.said["a"])
    assert not believable(msgspec.structs.replace(job.said["a"], **what))


def test_news_are_told_once() -> None:
    job = Job("a", "b", "c")
    job.run()
    assert job.table.news()[-1] == "attempt 1 begins on 3 nodes (a, b, c)"
    assert job.table.news() == []


def test_nodes_of_a_large_job_report_less_often_and_are_lost_later() -> None:
    job = Job("n0", shape=Shape(nodes=1000, least_nodes=1000))
    for number in range(1, 1000):
        name = f"n{number}"
        job.table.hear(msgspec.structs.replace(job.said["n0"], life=name, node=name), job.now_s)
    assert job.table.next_s == 5.0
    job.table.form(None, job.now_s)
    job.now_s += 39.0
    job.table.advance(job.now_s)
    assert job.table.runs
    job.now_s += 1.0
    job.table.advance(job.now_s)
    assert not job.table.runs


def test_the_order_of_nodes_is_that_of_their_names_whatever_their_processes_are_called() -> None:
    job = Job()
    for life, node in [("x/9f", "rack2-n10"), ("y/1a", "rack2-n9"), ("z/00", "rack10-n1")]:
        job.say(life, node=node)
    assert job.run().roster == ("y/1a", "x/9f", "z/00")


def test_nodes_with_ranks_are_placed_by_them_and_a_spares_rank_waits_for_those_before_it() -> None:
    job = Job()
    for name, rank in (("z", 0), ("a", 3), ("m", 1)):
        job.say(name, node_rank=rank)
    assert not job.ready, "rank 2 is to come"
    job.say("b", node_rank=2)
    assert job.run().roster == ("z", "m", "b")
    job.pass_s(LOST_S, "z", "a", "b")
    del job.said["m"]
    job.stop()
    assert job.run().roster == ("z", "b", "a"), "a spare takes the place at once"


def test_where_a_rank_does_not_come_a_spare_begins_in_its_place_after_a_while() -> None:
    job = Job()
    for name, rank in (("z", 0), ("a", 3), ("m", 1)):
        job.say(name, node_rank=rank)
    job.pass_s(PATIENCE.join_s)
    assert job.run().roster == ("z", "m", "a")


# --- fewer take in more ----------------------------------------------------------------------------------------------

NEWER: Final = Checkpoint(Path("ckpt/step-40.pt"), 40, "torch")


def shrunk(grow: str, **what: Any) -> Job:
    """Two of three nodes run, and the third comes back."""
    job = Job("a", "b", shape=msgspec.structs.replace(SHAPE, grow=grow))
    job.pass_s(PATIENCE.join_s)
    job.run()
    for name in "ab":
        job.say(name, **what)
    job.say("c")
    return job


def test_a_job_that_is_to_grow_at_once_does_so_at_a_checkpoint_and_waits_for_nobody_else() -> None:
    job = shrunk("now")
    assert job.table.grows(job.now_s)
    job.table.grow(NEWER, job.now_s)
    assert not job.table.runs
    assert "step-40.pt is whole, and the job goes on from it with c" in job.table.news()[-1]
    assert not job.ready, "they still run"
    job.stop()
    attempt = job.run()
    assert (attempt.roster, attempt.failures) == (("a", "b", "c"), 0)
    assert not job.table.grows(job.now_s)


def test_a_part_of_what_is_missing_is_taken_in_without_waiting_for_the_rest() -> None:
    job = Job("a", "b", shape=Shape(nodes=5, least_nodes=2, grow="now"))
    job.pass_s(PATIENCE.join_s)
    job.run()
    job.say("c")
    job.table.grow(NEWER, job.now_s)
    job.stop()
    assert job.run().roster == ("a", "b", "c")


def test_a_job_grows_once_as_much_is_lost_as_its_restart_takes() -> None:
    job = shrunk("worth", start_s=10.0)
    job.pass_s(29.5)
    assert not job.table.grows(job.now_s), "of two nodes and one more, a third of each second is lost"
    job.pass_s(0.75)
    assert job.table.grows(job.now_s)
    job.next_leader()
    job.pass_s(29.5)
    assert not job.table.grows(job.now_s), "the next leader saw nothing of what was lost before"
    job.pass_s(1.0)
    assert job.table.grows(job.now_s)


def test_a_node_that_comes_and_goes_makes_no_job_grow() -> None:
    job = shrunk("worth", start_s=10.0)
    for _ in range(5):
        job.pass_s(20.0)
        assert not job.table.grows(job.now_s)
        job.pass_s(LOST_S + 1.0, "a", "b")


def test_a_restart_that_nobody_has_timed_is_taken_for_a_long_one() -> None:
    job = shrunk("worth")
    job.pass_s(700.0)
    assert not job.table.grows(job.now_s)


def test_a_job_that_is_to_grow_with_its_next_restart_alone_is_not_stopped_for_it() -> None:
    job = shrunk("restart", start_s=1.0)
    job.pass_s(600.0)
    job.table.grow(NEWER, job.now_s)
    assert job.table.runs
    job.say("a", state="failed", code=9)
    job.stop()
    assert job.run().roster == ("a", "b", "c")


def test_a_job_that_has_its_nodes_does_not_grow_for_a_spare() -> None:
    job = Job("a", "b", "c", "d", shape=msgspec.structs.replace(SHAPE, grow="now"))
    job.run()
    job.pass_s(60.0)
    assert not job.table.grows(job.now_s)
