"""Hangs where nodes do not share a clock, and where a clock is set in the middle: wall clocks only label."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from tests.unit.detectors.detection_streams import Job, Run, crash
from trainwarden.records import EventRecord, HeartbeatRecord, IncidentRecord, IterationRecord, Record

Offset = Callable[[float], float]  # of the node's wall clock at a moment


def agreed(at_s: float) -> float:
    return 0.0


def two_nodes(hangs: bool) -> Job:
    """Two nodes of two ranks; in the end rank 1 sleeps while the others wait for it."""
    job = Job(ranks=4, node=lambda rank: f"node{rank // 2}").run(60)
    end_s = job.end_s
    if hangs:
        for tick in range(1, 60):
            phases = {1: "compute"}
            job.beat(end_s + 0.2 * tick, 60, phase="wait", calls=122, phases=phases, cpu_s={1: end_s})
    return job


def as_sent(job: Job, node: str, offset: Offset) -> list[tuple[float, Record]]:
    """The job's records by the clocks of their nodes; that of `node` is off. Steps keep the offset of their process."""
    begin_s = job.records[0][0]
    out: list[tuple[float, Record]] = []
    for at_s, record in job.records:
        said = record
        if isinstance(record, HeartbeatRecord):
            off_s = offset(at_s) if record.node == node else 0.0
            clock_s = at_s - 900_000.0 + (7_000.0 if record.node == node else 0.0)
            said = msgspec.structs.replace(
                record, time_s=at_s + off_s, monotonic_s=clock_s, boot=f"boot of {record.node}"
            )
        elif isinstance(record, IterationRecord) and record.node == node:
            said = msgspec.structs.replace(record, end_s=tuple(end + offset(begin_s) for end in record.end_s))
        elif isinstance(record, EventRecord):
            raise AssertionError("this job has no events")
        out.append((at_s, said))
    return out


def played(job: Job, offset: Offset) -> list[IncidentRecord]:
    return Run().play(as_sent(job, "node1", offset), job.end_s + 6.0).incidents


def stepped(by_s: float, at_s: float) -> Offset:
    return lambda now_s: by_s if now_s >= at_s else 0.0


HUNG, RUNS = two_nodes(hangs=True), two_nodes(hangs=False)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "offset",
    [
        agreed,
        lambda at_s: 60.0,
        lambda at_s: -60.0,
        stepped(60.0, HUNG.end_s - 5.0),
        stepped(-60.0, HUNG.end_s - 5.0),
        stepped(60.0, HUNG.end_s + 2.0),
        stepped(-60.0, HUNG.end_s + 2.0),
    ],
    ids=["agreed", "ahead", "behind", "set ahead", "set back", "set ahead in the hang", "set back in the hang"],
)
def test_a_hang_is_declared_in_time_whatever_the_wall_clocks_say(offset: Offset) -> None:
    (incident,) = played(HUNG, offset)
    assert (incident.kind, incident.suspects[0].rank) == ("hang", 1)
    assert 2.5 < incident.opened_at_s - HUNG.end_s < 4.5


@pytest.mark.thorough
@pytest.mark.parametrize("by_s", [60.0, -60.0])
def test_a_clock_that_is_set_while_all_is_well_is_no_hang(by_s: float) -> None:
    job = Job(ranks=4, node=lambda rank: f"node{rank // 2}").run(100)
    records = as_sent(job, "node1", stepped(by_s, job.end_s - 15.0))
    assert Run().play(records, job.end_s).incidents == []


@pytest.mark.thorough
def test_a_node_that_has_been_started_anew_begins_its_clock_anew() -> None:
    job = two_nodes(hangs=True)
    records = [
        (at_s, msgspec.structs.replace(one, monotonic_s=at_s - job.ends_s[20], boot="next"))
        if isinstance(one, HeartbeatRecord) and one.node == "node1" and at_s > job.ends_s[20]
        else (at_s, one)
        for at_s, one in as_sent(job, "node1", agreed)
    ]
    (incident,) = Run().play(records, job.end_s + 11.0).incidents
    assert (incident.kind, incident.suspects[0].rank) == ("hang", 1)


@pytest.mark.thorough
def test_two_machines_under_one_name_keep_a_clock_each() -> None:
    def named(job: Job) -> list[tuple[float, Record]]:
        return [(at_s, msgspec.structs.replace(one, node="localhost")) for at_s, one in as_sent(job, "node1", agreed)]  # type: ignore[call-arg]

    (hang,) = Run().play(named(HUNG), HUNG.end_s + 11.0).incidents
    assert (hang.kind, hang.suspects[0].rank) == ("hang", 1)
    assert hang.opened_at_s - HUNG.end_s < 10.0
    assert Run().play(named(RUNS), RUNS.end_s + 1.0).incidents == []


def on_nodes(job: Job) -> list[tuple[float, Record]]:
    """The job's records, with the events of each rank on its node."""
    return [
        (at_s, msgspec.structs.replace(one, node=job.node(one.rank)))
        if isinstance(one, EventRecord) and one.rank is not None else (at_s, one)
        for at_s, one in job.records
    ]  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("off_s", [-60.0, -5.0, 5.0, 60.0])
def test_a_crash_on_a_node_whose_clock_is_off_is_told_at_once_with_its_root(off_s: float) -> None:
    job = crash(Job(node=lambda rank: f"node{rank // 2}").run(60))
    off = [
        (at_s, msgspec.structs.replace(one, time_s=one.time_s + off_s))
        if isinstance(one, EventRecord) and one.node == "node1" else (at_s, one)
        for at_s, one in on_nodes(job)
    ]  # fmt: skip
    (incident,) = Run().play(off, job.end_s + 6.0).incidents
    assert (incident.kind, [one.rank for one in incident.suspects]) == ("crash", [2])
    assert incident.opened_at_s - job.end_s < 0.5
