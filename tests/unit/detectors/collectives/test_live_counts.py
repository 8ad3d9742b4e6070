"""Counts of calls in the detection service: a hang on devices, where hosts show no wait, is told within three steps."""

from __future__ import annotations

import pytest

from tests.simulated_ranks.hangs import Stand
from tests.simulated_ranks.layout import Layout
from tests.unit.detectors.detection_streams import JOB, Job, Run
from trainwarden.detectors.calls.counts import Counts
from trainwarden.records import CollectivesRecord

LAYOUT = Layout(2, 2, 2, per_node=4)
STEP_S = 2.0
CULPRIT = 3
SHIFT = {"node0": 5_000.0, "node1": -90_000.0}  # clocks of nodes need not agree


def told(job: Job, counts: Counts, at_s: float, moved_s: float) -> None:
    """Every rank tells its counts."""
    for rank in range(job.ranks):
        rows = counts.column == rank
        clock_s, size = SHIFT[LAYOUT.nodes[rank]], int(rows.sum())
        comms = counts.comm[rows].tolist()
        job.add(at_s, CollectivesRecord(
            job=JOB, node=LAYOUT.nodes[rank], rank=rank, incarnation=job.incarnation(rank), time_s=at_s,
            monotonic_s=at_s + clock_s, comms=tuple(counts.names[comm] for comm in comms),
            groups=tuple(counts.groups[comm] for comm in comms), sizes=tuple(counts.sizes[comms].tolist()),
            places=tuple(counts.place[rows].tolist()), node_counts=(2,) * size,
            enqueued=tuple(counts.enqueued[rows].tolist()), started=tuple(counts.started[rows].tolist()),
            finished=tuple(counts.finished[rows].tolist()), moved_s=(moved_s + clock_s,) * size,
        ))  # fmt: skip


def running(steps: int = 12) -> Job:
    """A job of eight ranks whose hosts never wait, as on devices."""
    job = Job(ranks=8, step_s=STEP_S, noise=0.02, node=lambda rank: LAYOUT.nodes[rank]).run(steps)
    for place, end_s in enumerate(job.ends_s):
        told(job, Stand(LAYOUT, steps=place % 4 + 1).counts(), end_s, end_s - 0.01)
    return job


def standing(job: Job, counts: Counts, lasts_s: float, *, busy: bool = False, phase: str = "compute") -> Job:
    """Nobody makes a step; the culprit sleeps, or computes if `busy`, or is in a known `phase`."""
    begin_s, step = job.end_s, len(job.ends_s)
    for tick in range(1, int(lasts_s / 0.25)):
        at_s = begin_s + 0.25 * tick
        cpu_s = {rank: at_s if rank != CULPRIT or busy else begin_s for rank in range(job.ranks)}
        job.beat(at_s, step, calls=7, phases={CULPRIT: phase}, cpu_s=cpu_s)
        told(job, counts, at_s, begin_s + 0.1)
    return job


FAULTS = {
    "host": {"host": (CULPRIT, 12)},
    "device": {"device": (CULPRIT, 12)},
    "link": {"link": LAYOUT.first["dp"] + 1, "link_after": 2},
}


@pytest.mark.thorough
@pytest.mark.parametrize("eager", [True, False])
@pytest.mark.parametrize("kind", FAULTS)
def test_a_hang_is_told_within_three_steps_with_its_culprit_first(kind, eager):
    job = standing(running(), Stand(LAYOUT, eager=eager, **FAULTS[kind]).counts(), 7.0)
    run = Run().play(job.records, job.end_s + 7.0)
    (incident,) = run.incidents
    assert incident.kind == "hang"
    assert incident.opened_at_s - job.end_s <= 3 * STEP_S
    if kind == "link":
        assert {suspect.rank for suspect in incident.suspects} == {None}
        assert {suspect.node for suspect in incident.suspects} == {"node0"}
        assert "none ends it" in incident.reason
    else:
        assert (incident.suspects[0].rank, incident.suspects[0].node) == (CULPRIT, "node0")
        assert kind in incident.suspects[0].reason
    assert all(one.suspects[0].rank in {CULPRIT, None} for one in run.revisions if one.suspects)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "how", [{"busy": True}, {"phase": "checkpoint"}, {"phase": "evaluation"}, {"phase": "data"}], ids=str
)
def test_a_rank_that_compiles_saves_or_evaluates_is_not_accused(how):
    job = standing(running(), Stand(LAYOUT, **FAULTS["host"]).counts(), 8.0, **how)
    assert Run().play(job.records, job.end_s + 8.0).incidents == []


@pytest.mark.thorough
@pytest.mark.parametrize("steps", [1, 12], ids=["in a first step", "later"])
@pytest.mark.parametrize("phase", ["checkpoint", "evaluation", "data", "compute"])
def test_a_call_that_all_devices_have_started_and_none_ends_is_told_whatever_their_hosts_do(phase, steps):
    if (phase, steps) == ("compute", 12):
        return
    job = standing(running(steps), Stand(LAYOUT, **FAULTS["link"]).counts(), 36.0, phase=phase)
    (incident,) = Run().play(job.records, job.end_s + 36.0).incidents
    assert (incident.kind, "none ends it" in incident.reason) == ("hang", True)
    assert {suspect.rank for suspect in incident.suspects} == {None}
    assert 30.0 < incident.opened_at_s - job.end_s < 31.0


@pytest.mark.thorough
@pytest.mark.parametrize("phase", ["checkpoint", "evaluation", "data"])
@pytest.mark.parametrize("kind", ["host", "device"])
def test_in_a_pause_whoever_has_not_come_to_a_call_is_not_told_by_counts(kind, phase):
    job = standing(running(), Stand(LAYOUT, **FAULTS[kind]).counts(), 50.0, phase=phase)
    assert Run().play(job.records, job.end_s + 50.0).incidents == []


@pytest.mark.thorough
def test_counts_that_stand_still_while_steps_go_on_are_replayed_graphs():
    job, counts = running(), Stand(LAYOUT, **FAULTS["device"]).counts()
    begin_s = job.end_s
    job.run(8, first=12, start_s=begin_s)
    for tick in range(int((job.end_s - begin_s) / 0.5)):
        told(job, counts, begin_s + 0.5 * tick, begin_s)
    assert Run().play(job.records, job.end_s + 1.0).incidents == []


@pytest.mark.thorough
def test_where_all_stand_alike_nobody_is_accused():
    job = standing(running(), Stand(LAYOUT, stamped=False).counts(), 8.0, busy=True)
    assert Run().play(job.records, job.end_s + 8.0).incidents == []


@pytest.mark.thorough
@pytest.mark.parametrize(("silent", "told"), [(CULPRIT, []), (7, ["hang"])])
def test_what_a_rank_said_long_ago_accuses_it_no_more_and_hides_no_other(silent, told):
    job = running()
    ended = len(job.records)
    standing(job, Stand(LAYOUT, **FAULTS["host"]).counts(), 12.0)
    kept = [
        (at_s, one) for place, (at_s, one) in enumerate(job.records)
        if place < ended or not (isinstance(one, CollectivesRecord) and one.rank == silent)
    ]  # fmt: skip
    assert [one.kind for one in Run().play(kept, job.end_s + 12.0).incidents] == told


@pytest.mark.thorough
def test_a_standstill_that_went_over_by_itself_is_waited_for_the_next_time():
    counts = Stand(LAYOUT, **FAULTS["host"]).counts()
    job = standing(running(), counts, 8.0)
    for _ in range(2):
        first = len(job.ends_s)
        job.run(10, first=first, start_s=max(at_s for at_s, _ in job.records))
        for place, end_s in enumerate(job.ends_s[first:]):
            told(job, Stand(LAYOUT, steps=place % 4 + 1).counts(), end_s, end_s - 0.01)
        standing(job, counts, 8.0)
    run = Run().play(job.records, max(at_s for at_s, _ in job.records))
    assert [one.kind for one in run.incidents] == ["hang"]


@pytest.mark.thorough
def test_the_incident_ends_when_steps_go_on():
    job = standing(running(), Stand(LAYOUT, **FAULTS["device"]).counts(), 7.0)
    last_s = max(at_s for at_s, _ in job.records)
    steps = len(job.ends_s)
    job.run(6, first=steps, start_s=last_s)
    for place, end_s in enumerate(job.ends_s[steps:]):
        told(job, Stand(LAYOUT, steps=place % 4 + 1).counts(), end_s, end_s - 0.01)
    (incident,) = Run().play(job.records, job.end_s + 5.0).incidents
    assert incident.state == "closed"


@pytest.mark.thorough
def test_another_service_goes_on_in_the_midst_of_a_standstill_that_counts_explain():
    job = standing(running(), Stand(LAYOUT, **FAULTS["host"]).counts(), 6.0, busy=True)
    run = Run().play(job.records, job.end_s + 5.0)
    watch, other = run.handler._jobs[JOB], run.handler._made(JOB)
    assert watch.collectives._counted
    other.restore(watch.snapshot())
    now_s = job.end_s + 40.0
    told, again = watch.score(now_s), other.score(now_s)
    assert told == again
    assert told
