"""A hang says where its suspects' code stands, whenever that is heard, and nothing of an earlier standstill."""

from __future__ import annotations

import pytest

from tests.unit.detectors.detection_streams import Run
from trainwarden.detectors.testing.streams import START_S, Job, event
from trainwarden.detectors.verdict.stacks import MAX_WORDS, StackBoard, with_stacks
from trainwarden.records import EventRecord, IncidentRecord, Suspect

pytestmark = pytest.mark.thorough  # they take seconds

PLACE = "next_batch (job/data.py:41)"


def stack(at_s: float, rank: int, where: object = PLACE) -> EventRecord:
    return event("stack", at_s, rank, message="", where=where, stack="next_batch\nmain", incarnation="i", since_s=1.0)


def stopped(job: Job, until_s: float) -> Job:
    """From the end of the last step on every rank waits but rank 1, which is stopped."""
    end_s = at_s = job.end_s
    while at_s < end_s + until_s:
        at_s += 0.2
        phases = {rank: "compute" if rank == 1 else "wait" for rank in range(job.ranks)}
        ran_s = dict.fromkeys(range(job.ranks), end_s - START_S)
        job.beat(at_s, 40, phases=phases, calls=101, states={1: "T"}, cpu_s=ran_s, begun={1: 100})
    return job


def hung(job: Job, *told: EventRecord) -> Run:
    job = stopped(job, 8.0)
    for one in told:
        job.add(one.time_s, one)
    return Run().play(job.records, job.end_s + 8.0)


@pytest.mark.parametrize("after_s", [0.4, 5.0])
def test_an_incident_tells_it_whether_it_was_heard_before_or_after_it_opened(after_s: float) -> None:
    job = Job(step_s=0.5).run(40)
    run = hung(job, stack(job.end_s + after_s, 1), stack(job.end_s + after_s, 0, "all_reduce (torch/c10d.py:9)"))
    (incident,) = run.incidents
    assert incident.kind == "hang"
    assert incident.reason.count(f"rank 1 stands in {PLACE}") == 1
    assert incident.suspects[0].reason.count(f"it stands in {PLACE}") == 1
    assert len(run.revisions) <= 2  # opened, and told once more where it came late


def test_without_stacks_nothing_is_said_of_them() -> None:
    (incident,) = hung(Job(step_s=0.5).run(40)).incidents
    assert "stands in" not in incident.reason


def test_stacks_of_a_standstill_that_is_over_are_forgotten() -> None:
    job = Job(step_s=0.5).run(40)
    early = stack(START_S + 5.0, 1)  # in the midst of steps
    (incident,) = hung(job, early).incidents
    assert "stands in" not in incident.reason


def test_a_slow_job_says_nothing_of_them() -> None:
    job = Job(slow=lambda rank, step: 2.0 if rank == 1 and step >= 60 else 1.0).run(200)
    job.add(job.end_s - 1.0, stack(job.end_s - 1.0, 1))
    run = Run().play(job.records, job.end_s)
    assert run.incidents
    assert all("stands in" not in one.reason for one in run.revisions)


def test_a_service_that_takes_over_still_knows_them() -> None:
    job = stopped(Job(step_s=0.5).run(40), 12.0)
    job.add(job.end_s + 0.4, stack(job.end_s + 0.4, 1))
    first = Run().play(job.records, job.end_s + 1.0)
    assert first.incidents == []
    second = first.begin_again(job.end_s + 1.0).play(
        [entry for entry in job.records if entry[0] > job.end_s + 1.0], job.end_s + 10.0
    )
    assert f"rank 1 stands in {PLACE}" in second.incidents[0].reason


# -- the board ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", [7, None, "", ["x"]])
def test_what_is_no_place_is_left_out(where: object) -> None:
    board = StackBoard()
    board.apply([stack(5.0, 0, where)], 5.0, 3.0)
    assert board.where() == {}


def test_long_and_unprintable_words_are_cut() -> None:
    board = StackBoard()
    board.apply([stack(5.0, 0, "\x1b[31m" + "x" * 10_000)], 5.0, 3.0)
    assert board.where()[0].isprintable()
    assert len(board.where()[0]) == MAX_WORDS


def test_a_start_forgets_all() -> None:
    board = StackBoard()
    board.apply([stack(5.0, 0), event("restart", 5.5, ranks=[0]), stack(5.6, 1)], 6.0, 3.0)
    assert list(board.where()) == [1]


def hang(*suspects: Suspect) -> IncidentRecord:
    return IncidentRecord(
        id="i", job="j", kind="hang", severity="sev2", state="opened", revision=1, opened_at_s=0.0, updated_at_s=0.0,
        reason="nobody moves", suspects=suspects,
    )  # fmt: skip


def test_where_nobody_is_suspected_the_place_of_most_is_told_once() -> None:
    told = with_stacks(hang(), {0: "a (f.py:1)", 1: PLACE, 2: PLACE})
    assert told.reason == f"nobody moves; 2 of 3 ranks looked at stand in {PLACE}"
    assert with_stacks(told, {0: PLACE}) == told


def test_each_suspect_has_its_own_place_and_the_reason_that_of_the_first_that_was_looked_at() -> None:
    told = with_stacks(
        hang(*(Suspect(score=1.0, reason="", rank=rank, node="n") for rank in range(3))), {1: "b", 2: "c"}
    )
    assert told.reason == "nobody moves; rank 1 stands in b"
    assert [one.reason for one in told.suspects] == ["", "it stands in b", "it stands in c"]
    assert with_stacks(told, {1: "b", 2: "c"}) == told
