"""A busy host: whom it makes slow by chance is not named, who is slow in CPU time is."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.unit.detectors.detection_streams import JOB, START_S, Job, Run, event
from trainwarden.detectors.job.board import MetricBuffer
from trainwarden.detectors.job.state import JobState
from trainwarden.detectors.peers.cpu_wait import ON_CPU, QUEUED, USED
from trainwarden.detectors.peers.rank_seconds import CPU_TICKS
from trainwarden.detectors.verdict.contention import HOST_S, excused
from trainwarden.records import IncidentKind, IncidentRecord, MetricsRecord, Suspect, Vote

pytestmark = pytest.mark.thorough  # they take seconds

SLOW, STEPS = 80, 160
Share = Callable[[int, bool], float]


def measured(job: Job, queued: Share, on_cpu: Share, since: int = SLOW) -> Job:
    """Each second the share of time that each rank waits for a CPU, and is on one, from step `since` on and before."""
    rng, ranks = np.random.default_rng(1), tuple(range(job.ranks))
    for second in range(int(job.end_s - START_S)):
        at_s = START_S + second
        late = at_s > job.ends_s[since - 1]
        lanes = tuple(
            tuple(share(rank, late) * float(rng.lognormal(0.0, 0.05)) for rank in ranks) for share in (queued, on_cpu)
        )
        names = tuple(f"rank-{rank}" for rank in ranks)
        job.add(
            at_s,
            MetricsRecord(
                job=JOB, node="node0", time_s=at_s, devices=names, names=(QUEUED, ON_CPU), values=lanes, ranks=ranks
            ),
        )
    return job


def slow(times: float = 1.6, since: int = SLOW, ranks: int = 4) -> Job:
    """Rank 2 computes `times` as long as before from step `since` on, by the clock on the wall."""
    return Job(
        slow=lambda rank, step: times if rank == 2 and step >= since else 1.0, noise=0.02, ranks=ranks
    ).run(STEPS)  # fmt: skip


def told(job: Job) -> list[IncidentRecord]:
    return Run().play(job.records, job.end_s + 3.0).incidents


def named(job: Job) -> list[int | None]:
    return [one.rank for incident in told(job) for one in incident.suspects if one.rank is not None]


def test_a_rank_that_only_waits_longer_on_a_busy_host_is_not_named() -> None:
    """All wait for processors, that one most of all; it computes no more than the others."""
    busy = measured(slow(), lambda rank, late: 0.6 if rank == 2 and late else 0.4, lambda rank, late: 0.3)
    assert [(one.kind, [who.node for who in one.suspects]) for one in told(busy)] == [("host_contention", ["node0"])]


def test_a_rank_that_computes_more_on_a_busy_host_is_named() -> None:
    busy = measured(
        slow(),
        lambda rank, late: 0.6 if rank == 2 and late else 0.4,
        lambda rank, late: 0.4 if rank == 2 and late else 0.3,
    )
    (incident,) = told(busy)
    assert (incident.kind, [one.rank for one in incident.suspects]) == ("slow_compute", [2])
    assert incident.onset_s == pytest.approx(busy.ends_s[SLOW - 1], abs=4.0)
    assert incident.opened_at_s > busy.ends_s[SLOW - 1] + CPU_TICKS - 1


def test_a_rank_that_always_computed_more_is_not_named_for_that_on_a_busy_host() -> None:
    """Rank 0 of many jobs writes logs and checkpoints."""
    busy = measured(slow(), lambda rank, late: 0.4, lambda rank, late: 0.4 if rank == 2 else 0.3)
    assert named(busy) == []


def test_a_rank_that_sleeps_longer_than_it_waits_for_processors_is_named() -> None:
    busy = measured(slow(1.8), lambda rank, late: 0.15, lambda rank, late: 0.1)
    assert named(busy) == [2]


def test_where_there_are_processors_enough_the_others_time_on_them_is_not_waited_for() -> None:
    quiet = slow()
    (without,) = told(quiet)
    (incident,) = told(measured(slow(), lambda rank, late: 0.02, lambda rank, late: 0.3))
    assert (incident.suspects[0].rank, incident.onset_step) == (2, without.onset_step)
    assert incident.opened_at_s <= without.opened_at_s + 2.0


def test_a_rank_that_alone_waits_for_a_processor_is_named_with_that() -> None:
    """Somebody has pinned it beside another program: the host has room, that rank has not."""
    starved = measured(slow(), lambda rank, late: 0.5 if rank == 2 and late else 0.03, lambda rank, late: 0.3)
    (incident,) = told(starved)
    assert incident.suspects[0].rank == 2
    assert "rank 2 waited for a CPU" in incident.reason


@pytest.mark.parametrize(("ranks", "suffers"), [(4, 2), (3, 2)])
def test_a_rank_that_alone_waits_on_a_full_host_suffers_and_is_not_slow(ranks: int, suffers: int) -> None:
    """It shares its processor with a busy loop, the others have theirs for themselves."""
    job = measured(slow(ranks=ranks), lambda rank, late: 0.5 if rank == 2 and late else 0.03, lambda rank, late: 0.3)
    full(job)
    (incident,) = told(job)
    assert (incident.kind, [(one.rank, one.node) for one in incident.suspects]) == (
        "host_contention",
        [(suffers, "node0")],
    )
    assert "the other ranks of node0 3% at most" in incident.reason


def test_of_two_ranks_on_a_full_host_none_is_named_for_waiting_alone() -> None:
    """One is alone on a processor, the other beside a busy loop: one witness is too few."""
    job = Job(slow=lambda rank, step: 1.6 if rank == 1 and step >= SLOW else 1.0, noise=0.02, ranks=2).run(STEPS)
    full(measured(job, lambda rank, late: 0.5 if rank == 1 and late else 0.03, lambda rank, late: 0.3))
    assert named(job) == []


def full(job: Job) -> None:
    """All processors of the host are in use."""
    for second in range(int(job.end_s - START_S)):
        at_s = START_S + second
        job.add(
            at_s, MetricsRecord(job=JOB, node="node0", time_s=at_s, devices=("host",), names=(USED,), values=((1.0,),))
        )


@pytest.mark.parametrize(("each", "kinds"), [(0.07, ["host_contention"]), (0.012, ["slow_job"])])
def test_ranks_that_hold_each_other_up_on_a_full_host_are_its_contention(each: float, kinds: list[str]) -> None:
    """A step waits for every rank in turn: four that wait 7 % of the time each cost it more than a fifth."""
    job = Job(slow=lambda rank, step: 1.3 if step >= SLOW else 1.0, noise=0.02).run(STEPS + 60)
    full(measured(job, lambda rank, late: each if late else 0.01, lambda rank, late: 0.1))
    assert [one.kind for one in told(job)] == kinds
    assert named(job) == []


def judged(job: Job, onset_s: float) -> tuple[str | None, str]:
    """What becomes of a vote, after the last of the records, that the whole job is slow."""
    state = JobState(JOB)
    for _, record in sorted(job.records, key=lambda sent: sent[0]):
        state.feed(record)
    vote = Vote(
        opinion="anomalous", score=1.0, kind="slow_job", verified=True, metrics=("iteration_duration_seconds",),
        onset_s=onset_s,
    )  # fmt: skip
    (told,) = excused({"change": vote}, state.window(job.end_s), []).values()
    return told.kind, told.reason


@pytest.mark.parametrize(("ranks", "each", "times", "kind"), [
    (8, 0.05, 1.5, "slow_job"), (8, 0.08, 2.0, "slow_job"), (8, 0.13, 3.0, "slow_job"),
    (16, 0.04, 1.5, "slow_job"), (16, 0.08, 2.0, "slow_job"), (16, 0.12, 3.0, "slow_job"),
    (4, 0.07, 1.3, "host_contention"), (4, 0.05, 1.3, "slow_job"), (8, 0.1, 1.5, "host_contention"),
    (16, 0.15, 2.0, "host_contention"),
])  # fmt: skip
def test_ranks_that_wait_at_the_same_moments_explain_no_more_than_one_does(
    ranks: int, each: float, times: float, kind: str
) -> None:
    job = Job(everyone=lambda step: times if step >= SLOW else 1.0, share=1.0, noise=0.02, ranks=ranks).run(
        SLOW + int(120.0 / times)
    )
    full(measured(job, lambda rank, late: each if late else 0.01, lambda rank, late: 0.1))
    assert judged(job, job.ends_s[SLOW - 1])[0] == kind


def test_what_was_compared_is_in_the_reason() -> None:
    job = Job(everyone=lambda step: 1.3 if step >= SLOW else 1.0, share=1.0, noise=0.02).run(STEPS + 40)
    full(measured(job, lambda rank, late: 0.07 if late else 0.01, lambda rank, late: 0.1))
    kind, reason = judged(job, job.ends_s[SLOW - 1])
    assert kind == "host_contention"
    assert "waited for a CPU 7% of the time, 1% before; of 0.093 s that steps take longer, waits are 0.1 s" in reason


@pytest.mark.parametrize("shared", [False, True])
def test_a_full_host_of_several_is_not_to_blame_for_what_may_be_elsewhere(shared: bool) -> None:
    """A link of the other host is slow: the ranks of the full one wait a little more and hold nobody up."""
    job = Job(
        everyone=lambda step: 1.5 if step >= SLOW else 1.0, share=1.0, noise=0.02, ranks=8,
        node=lambda rank: "node0" if rank < 4 or shared else "node1",
    ).run(STEPS + 40)  # fmt: skip
    full(measured(job, lambda rank, late: 0.13 if late and (rank < 4 or shared) else 0.01, lambda rank, late: 0.1))
    assert judged(job, job.ends_s[SLOW - 1])[0] == ("host_contention" if shared else "slow_job")


@pytest.mark.parametrize(("kind", "metric", "is_excused"), [
    ("memory_leak", "rank_anonymous_memory_bytes", True), ("metric_anomaly", "rank_resident_memory_bytes", True),
    ("slow_compute", "iteration_compute_seconds", False),
])  # fmt: skip
def test_a_rank_that_another_incident_names_is_judged_by_its_cpu_time(
    kind: IncidentKind, metric: str, is_excused: bool
) -> None:
    job = measured(slow(), lambda rank, late: 0.6 if rank == 2 and late else 0.4, lambda rank, late: 0.3)
    state = JobState(JOB)
    for _, record in job.records:
        state.feed(record)
    suspects = (Suspect(score=1.0, reason="is slow", rank=2, node="node0"),)
    vote = Vote(
        opinion="anomalous", score=1.0, kind="slow_compute", verified=True, suspects=suspects,
        metrics=("iteration_compute_seconds",), onset_s=job.ends_s[SLOW - 1],
    )  # fmt: skip
    known = IncidentRecord(
        id="i", job=JOB, kind=kind, severity="sev3", state="opened", revision=1, opened_at_s=job.end_s,
        updated_at_s=job.end_s, reason="r", suspects=suspects, metrics=(metric,),
    )  # fmt: skip
    (judged,) = excused({"peers": vote}, state.window(job.end_s), [known]).values()
    assert (judged.kind != "slow_compute") is is_excused


def test_a_rank_that_is_named_stays_named_when_the_host_becomes_busy() -> None:
    job = measured(slow(since=40), lambda rank, late: 0.5 if late else 0.02, lambda rank, late: 0.3, since=90)
    (incident,) = told(job)
    assert [one.rank for one in incident.suspects] == [2]
    assert incident.opened_at_s < job.ends_s[60]
    assert incident.closed_at_s is None or incident.closed_at_s > job.ends_s[-2]


def test_the_beginning_is_that_of_the_cpu_time_not_that_of_the_noise() -> None:
    """What waiting began, before the rank was slow, is not told as the rank's beginning."""
    job = Job(
        slow=lambda rank, step: 1.0 if rank != 2 else 1.7 if step >= 110 else 1.3 if step >= 50 else 1.0, noise=0.02
    ).run(STEPS + 40)  # fmt: skip
    measured(job, lambda rank, late: 0.5, lambda rank, late: 0.4 if rank == 2 and late else 0.28, since=110)
    (incident,) = told(job)
    assert [one.rank for one in incident.suspects] == [2]
    assert incident.onset_s == pytest.approx(job.ends_s[109], abs=5.0)


def test_what_the_host_says_is_not_waited_for_where_it_has_never_said_anything() -> None:
    assert HOST_S > 0.0
    assert named(slow()) == [2]


def test_a_rank_whose_job_has_ended_on_a_busy_host_is_not_named_for_want_of_newer_measurements() -> None:
    """Nobody is measured any more when the last votes come: what was measured until then still holds."""
    job = measured(slow(1.3), lambda rank, late: 0.9 if late else 0.01, lambda rank, late: 0.1, since=SLOW)
    end_s = job.end_s
    job.records = [(at_s, record) for at_s, record in job.records if at_s < job.ends_s[SLOW + 17]]
    for rank in range(job.ranks):
        job.add(job.ends_s[SLOW + 17] + 0.1, event("process_exit", job.ends_s[SLOW + 17], rank, code=0))
    assert [one for one in Run().play(job.records, end_s).incidents if one.suspects] == []


def test_seconds_of_the_board() -> None:
    board = MetricBuffer(samples=8)
    for tick, at_s in enumerate((3.2, 4.9, 4.95, 7.0)):
        board.feed(
            MetricsRecord(
                job="j", node="n", time_s=at_s, devices=("rank-0", "rank-1"), names=(QUEUED, ON_CPU),
                values=((0.1 * tick, None), (0.5, 0.25)), ranks=(0, 1),
            )
        )  # fmt: skip
    entities, table = board.by_second("rank", (QUEUED, "rank_unknown"), np.arange(4, 8))
    assert [one.rank for one in entities] == [0, 1]
    np.testing.assert_allclose(table[0], [[0.2, np.nan], [np.nan, np.nan], [np.nan, np.nan], [0.3, np.nan]])
    assert np.isnan(table[1]).all()
    assert board.by_second("gpu", (QUEUED,), np.arange(4, 8))[1].shape == (1, 4, 0)
