"""A whole job that is slow: told by one set of settings, live and recorded, once it is known who is to blame."""

from __future__ import annotations

import numpy as np
import pytest

from tests.unit.detectors import recordings
from tests.unit.detectors.detection_streams import JOB, START_S, Job, Run
from trainwarden.detectors.job.state import JobState
from trainwarden.detectors.pace.change_point import ChangePoint
from trainwarden.detectors.pace.contention import LOST
from trainwarden.detectors.recorded.replay import replay
from trainwarden.detectors.recorded.stream import ReplayStream
from trainwarden.recorded.job import MetricTable, RecordedJob
from trainwarden.records import IncidentRecord, IterationRecord, MetricsRecord
from trainwarden.settings import DetectionSettings


def slower(growth: float, first: int, last: int, steps: int, **job: float) -> Job:
    """A job whose steps take `growth` times as long from step `first` to before `last`."""
    share = 0.8  # of a step is computed
    factor = 1.0 + (growth - 1.0) / share
    return Job(everyone=lambda step: factor if first <= step < last else 1.0, noise=0.02, **job).run(steps)  # type: ignore[arg-type]


def queued(job: Job, usual: float, then: float, first: int, last: int) -> Job:
    """The ranks of `job` wait for a CPU the share `usual` of the time, and from step `first` to `last` `then`."""
    for second in range(int(job.end_s - START_S)):
        at_s = START_S + second
        share = then if job.ends_s[first - 1] < at_s <= job.ends_s[last - 1] else usual
        ranks = tuple(range(job.ranks))
        job.add(
            at_s,
            MetricsRecord(
                job=JOB, node="node0", time_s=at_s, devices=tuple(f"rank-{rank}" for rank in ranks), names=LOST[:1],
                values=((share,) * job.ranks,), ranks=ranks,
            ),
        )  # fmt: skip
    return job


def told(job: Job) -> list[IncidentRecord]:
    return Run().play(job.records, job.end_s + 3.0).incidents


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("growth", "within", "ranks"),
    [
        (1.11, 15, 4),
        (1.6, 8, 1),
        *(
            pytest.param(*one, marks=pytest.mark.thorough)
            for one in ((1.11, 15, 1), (1.24, 8, 1), (1.24, 8, 4), (1.6, 8, 4))
        ),
    ],
)
def test_a_job_that_is_slow_on_all_ranks_is_told_live(growth: float, within: int, ranks: int) -> None:
    (incident,) = told(slower(growth, 80, 140, 180, ranks=ranks))
    assert (incident.kind, incident.severity, incident.suspects) == ("slow_job", "sev3", ())
    assert incident.state == "closed"
    assert incident.opened_step is not None
    assert 80 < incident.opened_step <= 80 + within


@pytest.mark.thorough
def test_what_the_host_explains_is_told_when_it_lasts_and_with_its_reason() -> None:
    """A spell of 12 s on a machine that others use is no incident, one of 50 s is, and the reason says why."""
    assert told(queued(slower(1.2, 80, 115, 180), 0.1, 0.25, 80, 115)) == []
    (incident,) = told(queued(slower(1.2, 80, 230, 260), 0.1, 0.25, 80, 230))
    assert (incident.kind, [one.node for one in incident.suspects]) == ("host_contention", ["node0"])
    assert incident.reason.endswith(
        "the host node0 explains it: its ranks waited for a CPU 25% of the time, 10% before"
    )
    assert "rank_run_queue_wait_ratio" in incident.metrics
    assert incident.opened_step is not None
    assert 110 <= incident.opened_step <= 180


@pytest.mark.thorough
def test_a_machine_that_is_as_busy_as_ever_explains_nothing() -> None:
    (incident,) = told(queued(slower(1.24, 80, 140, 180), 0.5, 0.5, 80, 140))
    assert "host" not in incident.reason
    assert incident.metrics == ("iteration_duration_seconds",)
    assert incident.opened_step is not None
    assert incident.opened_step <= 96


@pytest.mark.thorough
@pytest.mark.parametrize(("then", "why"), [(0.5, "; rank 2 waited for a CPU 50% of the time, 5% before"), (0.06, "")])
def test_a_slow_rank_that_others_take_the_processor_from_is_named_with_that(then: float, why: str) -> None:
    job = Job(slow=lambda rank, step: 1.6 if rank == 2 and step >= 80 else 1.0, noise=0.02).run(120)
    for second in range(int(job.end_s - START_S)):
        at_s = START_S + second
        shares = tuple(then if rank == 2 and at_s > job.ends_s[79] else 0.05 for rank in range(job.ranks))
        names = tuple(f"rank-{rank}" for rank in range(job.ranks))
        job.add(
            at_s,
            MetricsRecord(
                job=JOB, node="node0", time_s=at_s, devices=names, names=LOST[:1], values=(shares,),
                ranks=tuple(range(job.ranks)),
            ),
        )  # fmt: skip
    (incident,) = told(job)
    assert (incident.kind, incident.suspects[0].rank) == ("slow_compute", 2)
    assert incident.reason.partition("; ")[::2] == (incident.suspects[0].reason.join(("rank 2 ", "")), why[2:])
    assert (LOST[0] in incident.metrics) is bool(why)


def waiting(grown: int | None) -> tuple[list[str], list[str]]:
    """Kinds of the votes of four ranks whose steps take half as long again from step 60 on; `grown` computes that."""
    state, detector, rng = JobState("job"), ChangePoint(ChangePoint.Config()), np.random.default_rng(0)
    kinds: list[str] = []
    reasons: list[str] = []
    end_s = 0.0
    for step in range(80):
        slow = step >= 60
        end_s += 0.6 if slow else 0.4
        for rank in range(4):
            own = 0.3 * float(rng.lognormal(0.0, 0.02)) + (0.2 if slow and rank == grown else 0.0)
            took = 0.6 if slow else 0.4
            state.feed(
                IterationRecord(
                    job="job", node="n", rank=rank, incarnation="", steps=(step,), end_s=(end_s,), duration_s=(took,),
                    compute_s=(own,), wait_s=(took - own,),
                )
            )  # fmt: skip
        window = state.window(end_s)
        detector.update(window)
        vote = detector.score(window)
        if slow:
            kinds.append(vote.kind or "")
            reasons.append(vote.reason)
    return kinds, reasons


def test_a_job_is_not_slow_without_a_culprit_while_one_may_still_be_found() -> None:
    kinds, reasons = waiting(None)  # a link, perhaps: nobody computes longer
    told_after = kinds.index("slow_job")
    assert told_after + 1 == ChangePoint.Config().culprit_steps
    assert "remains to be seen" in reasons[told_after - 1]
    kinds, _ = waiting(2)
    assert set(kinds) == {"", "slow_compute"}
    assert kinds.index("slow_compute") <= 5


def test_what_is_known_of_host_and_pace_outlives_a_restart() -> None:
    job = queued(slower(1.2, 80, 230, 200), 0.1, 0.25, 80, 200)
    state, whole = JobState(JOB), ChangePoint(ChangePoint.Config())
    for place, (at_s, record) in enumerate(sorted(job.records, key=lambda entry: entry[0])):
        state.feed(record)
        if place % 200 == 199:
            whole.update(state.window(at_s))
    other = ChangePoint(ChangePoint.Config())
    other.restore(whole.state())
    window = state.window(job.end_s)
    assert other.score(window) == whole.score(window)
    assert other.state() == whole.state()


def recorded(spell: tuple[int, int], waits: tuple[float, float] | None) -> RecordedJob:
    """A recorded job of four ranks that is slower by 24 % in `spell`, with the waits for a CPU if they are given."""
    steps = recordings.iterations(ranks=4, slow=lambda rank, step: 1.3 if spell[0] <= step < spell[1] else 1.0)
    if waits is None:
        return recordings.job(iterations=steps)
    begun_s, over_s = (float(steps.end_s[4 * step]) for step in spell)
    times_s = np.arange(START_S, float(steps.end_s[-1]), 1.0)
    share = np.where((times_s > begun_s) & (times_s <= over_s), waits[1], waits[0])
    table = MetricTable(
        times_s=times_s, entity=np.zeros(times_s.size, dtype=np.int64), nodes=("node0",), ranks=(0,),
        devices=("rank-0",), names=LOST[:1], values=share[:, None],
    )  # fmt: skip
    return recordings.job(iterations=steps, metrics=table)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("spell", "waits", "count"),
    [((150, 250), None, 1), ((150, 190), (0.1, 0.3), 0), ((150, 250), (0.1, 0.3), 1)],
    ids=["unexplained", "the host, shortly", "the host, for long"],
)
def test_a_recording_is_judged_by_the_settings_of_live_jobs(
    spell: tuple[int, int], waits: tuple[float, float] | None, count: int
) -> None:
    job = recorded(spell, waits)
    records = [(now_s, record) for now_s, batch in ReplayStream(job).windows() for record in batch]
    live = Run().play(records, records[-1][0] + 1.0).incidents
    offline = replay(job, DetectionSettings()).incidents
    assert len(live) == len(offline) == count
    for one, other in zip(live, offline, strict=True):
        assert (one.kind, one.onset_step, one.reason) == (other.kind, other.onset_step, other.reason)
