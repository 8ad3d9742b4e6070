"""Following a job: a bus that is away for a moment is waited for, and records are taken in once."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainwarden.bus.embedded.engine import EmbeddedBus
from trainwarden.cli.shared import follow
from trainwarden.cli.shared.follow import MAX_PROGRAMS, Follower, JobView, record_line
from trainwarden.errors import BusUnavailable
from trainwarden.records import EventRecord, IncidentRecord, IterationRecord, Suspect
from trainwarden.topics import INCIDENTS, ITERATIONS


def steps(rank: int, numbers: tuple[int, ...], incarnation: str = "1-1", at_s: float = 0.0) -> IterationRecord:
    return IterationRecord(
        job="j", node="n", rank=rank, incarnation=incarnation, steps=numbers,
        end_s=tuple(at_s + number for number in numbers), duration_s=tuple(0.5 for _ in numbers),
    )  # fmt: skip


def test_a_bus_that_is_away_for_a_moment_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bus = EmbeddedBus(str(tmp_path / "bus.db"))
    follower = Follower(bus, "j")

    def away(timeout_s: float, max_records: int = 0) -> list[object]:
        raise BusUnavailable("database is locked")

    with monkeypatch.context() as patch:
        patch.setattr(follower._consumer, "poll", away)
        follower.poll(0.0)
    bus.publish(ITERATIONS, "j", steps(0, (0, 1)))
    bus.flush()
    for _ in range(3):  # a poll at which the assignment changed returns nothing
        follower.poll(0.0)
    bus.close()
    assert follower.view.steps_done() == 2


def test_a_step_done_again_counts_once_and_as_last_run() -> None:
    view = JobView("j")
    view.feed(steps(0, (0, 1, 2)))
    view.feed(steps(0, (0, 1, 2)))
    view.feed(
        IterationRecord(
            job="j", node="n", rank=0, incarnation="2-2", steps=(2, 3), end_s=(50.0, 51.0), duration_s=(0.9, 0.9)
        )
    )
    view.feed(steps(1, (0,), at_s=0.0))
    assert view.steps_done() == 4
    assert view.iterations() == [(0, 0.5), (1, 0.5), (2, 0.9), (3, 0.9)]
    assert view.iteration_s(2) == pytest.approx(0.9)


def test_other_jobs_are_passed_over() -> None:
    view = JobView("other")
    view.feed(steps(0, (0,)))
    assert view.steps_done() == 0
    assert view.ranks() == []


def incident(revision: int, state: str, reason: str) -> IncidentRecord:
    return IncidentRecord(
        id="i", job="j", kind="hang", severity="sev2", state=state, revision=revision, opened_at_s=1.0,
        updated_at_s=1.0 + revision, reason=reason,
    )  # type: ignore[arg-type]  # fmt: skip


def test_a_person_is_told_what_is_new_and_nothing_twice(tmp_path: Path) -> None:
    told: list[str] = []
    bus = EmbeddedBus(str(tmp_path / "bus.db"))
    follower = Follower(bus, "j", lambda record: told.append(record_line(record)))
    revisions = [(0, "opened", "a"), (1, "updated", "a"), (2, "updated", "b"), (3, "updated", "b"), (4, "closed", "b")]
    revisions += [
        (5, "closed", "b"),
        (6, "updated", "b"),
        (7, "closed", "b"),
    ]  # once all ranks had ended, till it is over
    for revision in [*revisions, revisions[0]]:
        bus.publish(INCIDENTS, "j", incident(*revision))
    bus.flush()
    for _ in range(3):
        follower.poll(0.0)
    bus.close()
    assert [line.split(" (")[0] for line in told] == [
        "[incident opened] hang sev2: a",
        "[incident updated] hang sev2: b",
        "[incident closed] hang sev2: b",
        "[incident updated] hang sev2: b",
        "[incident closed] hang sev2: b",
    ]


def test_the_line_of_an_incident_says_all_that_is_asked_on_call() -> None:
    record = IncidentRecord(
        id="5d2409df216bb41b", job="j", kind="slow_compute", severity="sev3", state="opened", revision=0,
        opened_at_s=1.0, updated_at_s=1.0, onset_step=120, reason="computes 5.50 times as long as it did",
        suspects=(Suspect(score=1.0, reason="slow", rank=1, node="gpu-17"),),
        evidence={"ranks": [0, 1, 2], "compute_s": [0.04, 0.22, 0.0401]},
    )  # fmt: skip
    assert record_line(record) == (
        "[incident opened] slow_compute sev3: computes 5.50 times as long as it did, rank 1 on gpu-17, "
        "rank 1 computes 0.22 s a step, its peers 0.04 s, since step 120 (5d2409df); next: trainwarden explain 5d2409df"
    )


def test_a_run_of_months_takes_no_more_memory_and_counts_all_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "MAX_ROWS", 1_000)
    view = JobView("j")
    for first in range(0, 5_000, 50):
        steps = tuple(range(first, first + 50))
        for rank in range(4):
            view.feed(
                IterationRecord(
                    job="j", node="n", rank=rank, incarnation="1-1", steps=steps, end_s=tuple(float(s) for s in steps),
                    duration_s=(0.5,) * 50,
                )
            )  # fmt: skip
    assert len(view.steps) == 1_000
    assert (view.steps_done(), view.last_step(), view.ranks()) == (5_000, 4_999, [0, 1, 2, 3])
    assert view.iteration_s() == 0.5


def test_of_programs_that_have_not_trained_the_newest_are_remembered() -> None:
    view = JobView("j")
    for number in (*range(300), 44):
        view.feed(EventRecord(
            id=f"begun/{number}", job="j", node="n", time_s=1.0, kind="process_begun", message=f"program {number}",
            fields={"untrained": True, "incarnation": f"{number}-t1", "pid": number, "for_s": 60.0},
        ))  # fmt: skip
    assert len(view.idle(60.0)) == MAX_PROGRAMS
    assert view.untrained() == ["program 298", "program 299", "program 44"]
