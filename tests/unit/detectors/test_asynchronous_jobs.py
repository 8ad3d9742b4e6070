"""Jobs whose devices work behind the host's back: what hosts see of them accuses nobody and moves nothing."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from tests.engine_doubles import Rig
from tests.unit.detectors.detection_streams import Run
from trainwarden.detectors.testing.streams import Job
from trainwarden.records import IterationRecord


def hosts_see(job: Job, times: Callable[[int, int], float], **said: object) -> Job:
    """`job` by the durations of its hosts alone, those of rank and step `times` as long; `said` is on every record."""
    for place, (at_s, record) in enumerate(job.records):
        if isinstance(record, IterationRecord):
            seen = tuple(took * times(record.rank, n) for n, took in zip(record.steps, record.duration_s, strict=True))
            told = msgspec.structs.replace(record, duration_s=seen, compute_s=(), wait_s=(), **said)
            job.records[place] = (at_s, told)
    return job


def odd_host(rank: int, step: int) -> float:
    return 1.8 if rank == 2 and step >= 50 else 1.0


def played(job: Job) -> Run:
    return Run().play(job.records, job.end_s + 3.0)


@pytest.mark.thorough
def test_a_host_that_looks_slow_opens_nothing_and_moves_nothing() -> None:
    known = played(hosts_see(Job(ranks=8).run(80), odd_host, basis="log"))
    assert [(one.kind, one.suspects[0].rank) for one in known.revisions[:1]] == [("slow_compute", 2)]
    run = played(hosts_see(Job(ranks=8).run(80), odd_host, accelerator="cuda"))
    assert run.revisions == []
    votes = run.verdicts[-1].votes
    assert votes["peer_deviation"].opinion == "abstain"
    assert "only durations are known" in votes["peer_deviation"].reason


@pytest.mark.thorough
@pytest.mark.parametrize("basis", ["host", "device_step"])
def test_a_job_that_slows_down_is_told_without_a_culprit(basis: str) -> None:
    """Rank 2 computes longer and all wait for it: by durations alone nobody is to blame."""
    job = Job(ranks=4, slow=lambda rank, step: 1.8 if rank == 2 and step >= 50 else 1.0).run(90)
    run = played(hosts_see(job, lambda rank, step: 1.0, basis=basis, accelerator="cuda"))
    first = run.revisions[0]
    assert (first.kind, first.suspects) == ("slow_job", ())
    reasons = [verdict.votes["change_point"].reason for verdict in run.verdicts]
    assert any("durations alone do not tell whose doing it is" in reason for reason in reasons)
    last = run.revisions[-1]
    assert last.evidence["basis"] == basis
    assert last.evidence["accelerator"] == "cuda"
    assert "compute_s" not in last.evidence
    rig = Rig()
    for incident in run.revisions:
        rig.tell(incident)
    rig.tick(300.0)
    assert (rig.launcher.splits, rig.launcher.asked) == ([], [])


@pytest.mark.thorough
def test_a_split_that_the_device_has_measured_names_the_rank() -> None:
    job = Job(ranks=4, slow=lambda rank, step: 1.8 if rank == 2 and step >= 50 else 1.0).run(90)
    for place, (at_s, record) in enumerate(job.records):
        if isinstance(record, IterationRecord):
            told = msgspec.structs.replace(record, basis="device_step", accelerator="cuda")
            job.records[place] = (at_s, told)
    first = played(job).revisions[0]
    assert (first.kind, first.suspects[0].rank) == ("slow_compute", 2)


def test_no_split_of_micro_batches_follows_from_what_hosts_see() -> None:
    """Even where evidence brings times of the host: they are no measure of a device's work."""
    evidence = {
        "healthy_iteration_s": 0.3, "iteration_s": 0.6, "slow_iterations": 5, "ranks": [0, 1, 2, 3],
        "compute_s": [0.3, 0.3, 0.6, 0.3], "micro_batches": [6, 6, 6, 6], "accelerator": "cuda",
    }  # fmt: skip
    for basis, splits in (("host", []), ("device_step", [(7, 7, 3, 7)])):
        rig = Rig()
        rig.launcher.phase = "running"
        rig.tell(rig.incident(kind="slow_compute", evidence={**evidence, "basis": basis}))
        assert rig.launcher.splits == splits
