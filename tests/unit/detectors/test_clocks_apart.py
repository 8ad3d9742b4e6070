"""The same is told of a job whose clocks are a minute and more apart as of one that has a single clock."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import msgspec
import pytest

from tests.unit.detectors.detection_streams import RESET, Run
from trainwarden.detectors.testing.streams import START_S, Job, event, log_lines
from trainwarden.records import EventRecord, HeartbeatRecord, IterationRecord, LogRecord, Record

Sent = list[tuple[float, Record]]
NODES = ("node0", "node1")
LASTS_S = 2 * START_S  # for the end of what has not ended


def node(rank: int) -> str:
    return NODES[rank // 2]


def of_rank(kind: str, at_s: float, rank: int, life: int = 0, **fields: Any) -> EventRecord:
    return event(kind, at_s, rank, life=life, node=node(rank), **fields)


def dies(job: Job, root: int) -> None:
    """A rank is killed and the others break off."""
    at_s, life = job.end_s + 0.1, job.life
    job.add(at_s, of_rank("process_exit", at_s - 0.03, root, life, signal="SIGKILL"))
    for rank in {0, 1, 2, 3} - {root}:
        job.add(at_s + 0.1, of_rank("exception", at_s + 0.08, rank, life, message=RESET))


def two_crashes() -> Job:
    """One is killed, the job is started anew, and soon another is killed."""
    job = Job(node=node).run(20)
    dies(job, 2)
    at_s = job.end_s + 1.0
    job.add(at_s, event("restart", at_s, stage="begun"))
    job.add(at_s + 3.0, event("restart", at_s + 3.0, stage="done"))
    job.life = 1
    job.run(30, first=15, start_s=at_s + 3.0)
    dies(job, 3)
    return job


def slow_then_hung() -> Job:
    """A rank becomes slow, and soon it stops."""
    job = Job(node=node, slow=lambda rank, step: 2.0 if rank == 3 and step >= 40 else 1.0).run(60)
    for tick in range(1, 40):
        job.beat(job.end_s + 0.2 * tick, 60, phase="wait", calls=122, phases={3: "compute"}, cpu_s={3: job.end_s})
    return job


def exceptions_of_two() -> Job:
    """One rank raises what is at fault, another what came of it."""
    job = Job(node=node).run(20)
    for after_s, rank, message in ((0.1, 3, "ValueError: the root"), (0.9, 0, "ValueError: what came of it")):
        job.add(job.end_s + after_s, of_rank("exception", job.end_s + after_s - 0.03, rank, message=message))
    return job


def storm() -> Job:
    """A rank of the second node logs errors without end for a while."""
    job = Job(node=node).run(115)
    for rank in range(4):
        for second in range(int(job.end_s - START_S)):
            lines = [(START_S + second + i / 2, f"step {second} loss 3.{i}") for i in range(2)]
            if rank == 3 and 25 <= second < 29:
                lines += [(START_S + second + i / 40, f"ERROR cannot reach peer {i}") for i in range(40)]
            record = log_lines(rank, sorted(lines), first=1 + 1000 * second, node=node(rank))
            job.add(START_S + second + 1, msgspec.structs.replace(record, source=f"talk-{rank}"))
    return job


def late_root() -> Job:
    """A hang whose cause, an exception from before it, is told late."""
    job = Job(node=node).run(20)
    for tick in range(1, 40):
        job.beat(job.end_s + 0.2 * tick, 20, phase="wait", calls=42, phases={3: "compute"}, cpu_s={3: job.end_s})
    return job.add(job.end_s + 6.0, of_rank("exception", job.end_s + 0.1, 3, message="ValueError: the root"))


def by_clocks_of(nodes: tuple[str, ...], off_s: float, sent: Sent) -> Sent:
    """What is sent by nodes of which the clocks of `nodes` are off."""

    def said(at_s: float, record: Record) -> Record:
        off = off_s if getattr(record, "node", None) in nodes else 0.0
        if isinstance(record, HeartbeatRecord):
            since_s = tuple(None if one is None else one + off for one in record.phase_since_s)
            return msgspec.structs.replace(
                record, time_s=at_s + off, phase_since_s=since_s, monotonic_s=at_s - START_S, boot=record.node
            )
        if isinstance(record, IterationRecord):
            return msgspec.structs.replace(record, end_s=tuple(end_s + off for end_s in record.end_s))
        if isinstance(record, LogRecord):
            return msgspec.structs.replace(record, times_s=tuple(time_s + off for time_s in record.times_s))
        assert isinstance(record, EventRecord)
        return msgspec.structs.replace(record, time_s=record.time_s + off)

    return [(at_s, said(at_s, record)) for at_s, record in sent]


def until_s(job: Job) -> float:
    """When all has been said and judged, before the silence after it is told."""
    return max(at_s for at_s, _ in job.records) + 3.0


def told(job: Job, nodes: tuple[str, ...] = (), off_s: float = 0.0, bus_ahead_s: float = 0.0) -> list[tuple[Any, ...]]:
    """What became of each incident, with its times by the job's clock in seconds."""
    return told_of(by_clocks_of(nodes, off_s, job.records), until_s(job), bus_ahead_s)


def told_of(sent: Sent, end_s: float, bus_ahead_s: float = 0.0, run: Run | None = None) -> list[tuple[Any, ...]]:
    """The same, of what is sent."""
    run = (run or Run(bus_ahead_s=bus_ahead_s)).play(sent, end_s)
    opened_s = {one.id: one.opened_at_s for one in run.revisions if one.state == "opened"}
    return [
        (
            one.kind, one.reason.partition(";")[0], [suspect.rank for suspect in one.suspects],
            opened_s[one.id] - bus_ahead_s, (one.closed_at_s or LASTS_S) - bus_ahead_s,
        )
        for one in run.incidents
    ]  # fmt: skip


@cache
def by_one_clock(story: Callable[[], Job]) -> tuple[Job, list[tuple[Any, ...]]]:
    job = story()
    return job, told(job)


def assert_same(found: list[tuple[Any, ...]], expected: list[tuple[Any, ...]]) -> None:
    """The same incidents, opened and closed at the same times but for what a message takes."""
    assert [one[:3] for one in found] == [one[:3] for one in expected]
    for one, other in zip(found, expected, strict=True):
        lasts = [span[4] > LASTS_S / 1.5 for span in (one, other)]
        assert lasts[0] == lasts[1]
        assert one[3] == pytest.approx(other[3], abs=0.7)
        assert lasts[0] or one[4] == pytest.approx(other[4], abs=0.7)


STORIES = {
    two_crashes: ["crash", "crash"],
    slow_then_hung: ["hang"],
    exceptions_of_two: ["exception"],
    storm: ["log_storm"],
    late_root: ["exception"],
}


def both_ways(quick: dict[Callable[[], Job], float]) -> list[Any]:
    """Each story with a clock that is ahead and one that is behind; `make check` takes the one of `quick`."""
    return [
        pytest.param(story, off_s, marks=[] if off_s == quick_s else pytest.mark.thorough)
        for story, quick_s in quick.items()
        for off_s in (-90.0, 90.0)
    ]


@pytest.mark.thorough
@pytest.mark.parametrize("story", STORIES)
def test_what_each_story_tells(story: Callable[[], Job]) -> None:
    assert [one[0] for one in by_one_clock(story)[1]] == STORIES[story]


@pytest.mark.thorough
@pytest.mark.parametrize("off_s", [-90.0, 90.0])
@pytest.mark.parametrize("nodes", [("node0",), ("node1",)])
@pytest.mark.parametrize("story", STORIES)
def test_a_node_whose_clock_is_off_changes_nothing(
    story: Callable[[], Job], nodes: tuple[str, ...], off_s: float
) -> None:
    job, expected = by_one_clock(story)
    assert_same(told(job, nodes, off_s), expected)


@pytest.mark.thorough
@pytest.mark.parametrize(("story", "off_s"), both_ways({two_crashes: -90.0, exceptions_of_two: 90.0, storm: -90.0}))
def test_a_node_whose_clock_is_set_in_the_midst_changes_nothing(story: Callable[[], Job], off_s: float) -> None:
    job, expected = by_one_clock(story)
    set_s = START_S + 5.0
    before = by_clocks_of((), 0.0, [one for one in job.records if one[0] < set_s])
    after = by_clocks_of(("node1",), off_s, [one for one in job.records if one[0] >= set_s])
    said = event("clock_step", set_s + off_s, node="node1", step_s=off_s)
    assert_same(told_of([*before, (set_s, said), *after], until_s(job)), expected)


@pytest.mark.thorough
def test_the_first_word_of_a_node_whose_clock_is_off_need_not_be_a_heartbeat() -> None:
    """As where a service begins in the midst of what is on the bus."""
    job, expected = by_one_clock(storm)
    first = event("process_start", START_S - 0.5 + 90.0, 3, node="node1")
    sent = by_clocks_of(("node1",), 90.0, job.records)
    assert_same(told_of([(START_S - 0.5, first), *sent], until_s(job)), expected)


def under_one_name(sent: Sent) -> Sent:
    """The same, of machines that call themselves alike."""
    return [
        (at_s, msgspec.structs.replace(record, node="n") if getattr(record, "node", None) in NODES else record)  # type: ignore[type-var]
        for at_s, record in sent
    ]


@pytest.mark.thorough
@pytest.mark.parametrize("story", [two_crashes, exceptions_of_two])
def test_two_machines_under_one_name_whose_clocks_are_apart_change_nothing(story: Callable[[], Job]) -> None:
    job, _ = by_one_clock(story)
    expected = told_of(under_one_name(by_clocks_of((), 0.0, job.records)), until_s(job))
    assert [one[0] for one in expected] == STORIES[story]
    assert_same(told_of(under_one_name(by_clocks_of(("node1",), -90.0, job.records)), until_s(job)), expected)


@pytest.mark.thorough
@pytest.mark.parametrize(("story", "off_s"), both_ways({two_crashes: 90.0, slow_then_hung: -90.0, late_root: 90.0}))
def test_a_service_whose_clock_is_off_changes_nothing(story: Callable[[], Job], off_s: float) -> None:
    job, expected = by_one_clock(story)
    assert_same(told(job, NODES, off_s, bus_ahead_s=off_s), expected)


@pytest.mark.thorough
@pytest.mark.parametrize("off_s", [-90.0, 90.0])
def test_a_service_that_takes_a_job_over_goes_on_by_the_same_clock(off_s: float) -> None:
    """Of two crashes the second comes after another service, with another clock, has read again what there was."""
    job = two_crashes()
    cut_s = job.end_s - 1.0
    sent = by_clocks_of((), 0.0, job.records)
    first = Run().play([one for one in sent if one[0] <= cut_s], cut_s)
    second = first.begin_again(cut_s - off_s)
    second.bus_ahead_s = off_s
    second.play([(at_s - off_s, one) for at_s, one in sent if at_s > cut_s], until_s(job) - off_s)
    assert [(one.kind, one.suspects[0].rank) for one in second.incidents] == [("crash", 2), ("crash", 3)]
    assert [one.state == "closed" for one in second.incidents] == [True, False]


def stamped_by(stamp: Callable[[float, Record], float], *, stamped: bool = True) -> Run:
    """A service on a bus of which `stamp` tells the time."""
    run = Run()
    run.stamp, run.stamped = stamp, stamped
    return run


@pytest.mark.thorough
@pytest.mark.parametrize("lasts_s", [5.0, LASTS_S])
@pytest.mark.parametrize("off_s", [-90.0, 90.0])
@pytest.mark.parametrize("story", [two_crashes, storm])
def test_a_bus_whose_clock_is_set_and_perhaps_set_back_changes_nothing(
    story: Callable[[], Job], off_s: float, lasts_s: float
) -> None:
    job, expected = by_one_clock(story)
    set_s = START_S + 5.0
    run = stamped_by(lambda at_s, _: at_s + (off_s if set_s <= at_s < set_s + lasts_s else 0.0))
    found = told_of(by_clocks_of((), 0.0, job.records), until_s(job), run=run)
    assert [one[:3] for one in found] == [one[:3] for one in expected]
    assert [one[4] > LASTS_S / 1.5 for one in found] == [one[4] > LASTS_S / 1.5 for one in expected]


@pytest.mark.parametrize("off_s", [-60.0, 60.0])
@pytest.mark.parametrize("story", [two_crashes, exceptions_of_two])
def test_stamps_of_senders_are_not_taken_for_those_of_the_bus(story: Callable[[], Job], off_s: float) -> None:
    job, expected = by_one_clock(story)
    run = stamped_by(lambda at_s, one: at_s + (off_s if getattr(one, "node", "") == "node0" else 0.0), stamped=False)
    assert_same(told_of(by_clocks_of(("node0",), off_s, job.records), until_s(job), run=run), expected)
