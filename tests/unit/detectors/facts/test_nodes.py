"""Who is lost when heartbeats stay out: nobody while the job moves on, nobody when most fall silent together."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.unit.detectors.detection_streams import START_S, Job, Run, event
from trainwarden.records import EventRecord, HeartbeatRecord, IncidentRecord, IterationRecord, Record


def job_of(nodes: int, steps: int, *, step_s: float = 0.3) -> Job:
    """A job with two ranks on each node."""
    return Job(ranks=2 * nodes, step_s=step_s, node=lambda rank: f"node{rank // 2}").run(steps)


def without(job: Job, gone: Callable[[float, Record], bool]) -> list[tuple[float, Record]]:
    return [(at_s, record) for at_s, record in job.records if not gone(at_s, record)]


def played(records: list[tuple[float, Record]], until_s: float) -> list[IncidentRecord]:
    return Run().play(records, until_s).incidents


def standing(job: Job, seconds: float, **beat: str) -> None:
    """All ranks stay in the step that they are in."""
    for tick in range(1, int(seconds / 0.2)):
        job.beat(job.end_s + 0.2 * tick, 10**6, calls=10**7, **beat)  # type: ignore[arg-type]


def test_the_silence_of_all_nodes_is_about_the_pipeline_and_names_none() -> None:
    job = job_of(16, 60)
    silent_s = job.end_s - 12.0
    records = without(job, lambda at_s, record: isinstance(record, HeartbeatRecord) and at_s > silent_s)
    (incident,) = played(records, job.end_s)
    assert (incident.kind, incident.severity, incident.suspects) == ("pipeline", "sev3", ())
    assert "16 of 16 nodes" in incident.reason


def test_the_silence_of_most_nodes_is_about_the_pipeline_whatever_the_others_do() -> None:
    job = job_of(16, 25)
    standing(job, 9.0, phase="wait")
    records = without(job, lambda at_s, record: at_s > job.end_s and int(record.node[4:]) < 9)  # type: ignore[attr-defined]
    assert "node_lost" not in [incident.kind for incident in played(records, job.end_s + 9.0)]


def test_while_steps_are_made_nobody_is_lost() -> None:
    job = job_of(4, 60)
    silent_s = job.end_s - 12.0

    def gone(at_s: float, record: Record) -> bool:
        return isinstance(record, HeartbeatRecord | IterationRecord) and record.node == "node3" and at_s > silent_s

    assert played(without(job, gone), job.end_s) == []


@pytest.mark.thorough
@pytest.mark.parametrize("phase", ["wait", "compute"])
def test_an_agent_that_is_started_anew_is_no_lost_node(phase: str) -> None:
    job = job_of(4, 12, step_s=8.0)
    standing(job, 4.0, phase=phase)
    back_s = job.end_s + 3.0
    records = without(job, lambda at_s, record: record.node == "node3" and job.end_s < at_s < back_s)  # type: ignore[attr-defined]
    assert played(records, job.end_s + 3.5) == []


@pytest.mark.thorough
def test_a_node_without_which_the_job_went_on_is_not_lost_when_the_job_stands_still_later() -> None:
    job = job_of(4, 60)
    silent_s = job.end_s - 12.0
    standing(job, 12.0, phase="wait")
    kept = without(job, lambda at_s, record: record.node == "node3" and at_s > silent_s)  # type: ignore[attr-defined]
    (incident,) = played(kept, job.end_s + 10.0)
    assert (incident.kind, incident.suspects) == ("hang", ())  # whoever is not seen may be the one


def test_an_agent_that_goes_away_while_the_others_write_a_checkpoint_is_no_lost_node() -> None:
    job = job_of(4, 40)
    standing(job, 10.0, phase="checkpoint")
    kept = without(job, lambda at_s, record: record.node == "node3" and at_s > job.end_s + 1.0)  # type: ignore[attr-defined]
    assert played(kept, job.end_s + 9.0) == []


def lost(phase: str) -> Job:
    """Node 3 of four is gone, and the ranks of the others stay where they are."""
    job = job_of(4, 25)
    standing(job, 12.0, phase=phase)
    job.records = without(job, lambda at_s, record: record.node == "node3" and at_s > job.end_s)  # type: ignore[attr-defined]
    return job


@pytest.mark.parametrize(("phase", "witness"), [("wait", "its peers wait"), ("compute", "no rank has made a step")])
def test_a_silent_node_whose_job_stands_still_is_lost(phase: str, witness: str) -> None:
    job = lost(phase)
    (incident,) = played(job.records, job.end_s + 8.0)
    assert (incident.kind, incident.severity, incident.state) == ("node_lost", "sev1", "opened")
    assert [suspect.node for suspect in incident.suspects] == ["node3"]
    assert witness in incident.reason


def test_what_the_launcher_says_needs_no_witness() -> None:
    job = job_of(4, 40)
    gone_s = job.end_s - 5.0
    records = without(job, lambda at_s, record: record.node == "node3" and at_s > gone_s)  # type: ignore[attr-defined]
    (incident,) = played([*records, (gone_s + 2.0, event("heartbeat_lost", gone_s + 2.0, node="node3"))], job.end_s)
    assert (incident.kind, incident.suspects[0].node) == ("node_lost", "node3")


@pytest.mark.thorough
@pytest.mark.parametrize("told_by", ["hook", "launcher"])
def test_after_a_shrink_the_node_is_not_missed_any_more(told_by: str) -> None:
    job = lost("wait")
    at_s = job.end_s + 12.0
    kind = "process_start" if told_by == "hook" else "job_start"
    job.add(at_s, event("restart", at_s, operation="a", stage="started"))
    job.add(at_s + 1.0, event(kind, at_s + 1.0, 0, life=1, world_size=6))
    job.add(at_s + 1.0, event("restart", at_s + 1.0, operation="a", stage="done"))
    job.ranks, job.life = 6, 1
    job.run(40, first=30, start_s=at_s + 2.0)
    run = Run().play(job.records, job.end_s)
    (incident,) = [one for one in run.incidents if one.kind == "node_lost"]
    assert incident.state == "closed"
    assert incident.closed_at_s is not None
    assert incident.closed_at_s < at_s + 8.0
    assert not [one for one in run.handler._jobs["job"].state.window(job.end_s).node_silent_s if one == "node3"]


def test_a_lost_node_that_the_job_runs_on_without_is_closed() -> None:
    job = lost("wait")
    kept = job.records
    job.records = []
    job.run(40, first=40, start_s=job.end_s + 12.0)
    kept += without(job, lambda at_s, record: record.node == "node3")  # type: ignore[attr-defined]
    (incident,) = played(kept, job.end_s)
    assert (incident.kind, incident.state) == ("node_lost", "closed")


def test_a_size_that_is_older_than_the_last_one_changes_nothing() -> None:
    job = job_of(2, 30)
    stale = event("process_start", START_S - 100.0, 0, life=-1, world_size=2)
    assert isinstance(stale, EventRecord)
    job.add(START_S - 1.0, event("job_start", START_S - 1.0, world_size=4)).add(START_S + 2.0, stale)
    run = Run().play(job.records, job.end_s)
    assert run.handler._jobs["job"].state.world_size == 4
    assert run.revisions == []


def test_a_hook_that_does_not_know_how_many_ranks_there_are_ends_none() -> None:
    job = job_of(2, 30)
    job.add(START_S + 3.0, event("process_start", START_S + 3.0, 0, world_size=1))
    run = Run().play(job.records, job.end_s)
    assert run.handler._jobs["job"].state.window(job.end_s).live.all()
