"""Which jobs are forgotten."""

from __future__ import annotations

import time

import msgspec
import pytest

from tests.page_world import NOW_S, Told, incident, overview_of
from trainwarden.actions.nodes import states as states_module
from trainwarden.dashboards.overview import job as job_module
from trainwarden.dashboards.overview import overview as overview_module
from trainwarden.dashboards.overview import pace as pace_module
from trainwarden.dashboards.overview.job import MAX_INCIDENTS
from trainwarden.dashboards.overview.overview import FORGET_S
from trainwarden.dashboards.overview.pace import Pace
from trainwarden.records import EventRecord, HeartbeatRecord, IterationRecord, Suspect


def started(job: str, at_s: float) -> EventRecord:
    return EventRecord(id=job, job=job, node="n", time_s=at_s, kind="job_start")


def test_a_job_that_has_only_just_begun_is_kept() -> None:
    told = [(NOW_S, name, started(name, at_s)) for name, at_s in (("new", NOW_S), ("old", NOW_S - FORGET_S - 1.0))]
    overview = overview_of(told)
    assert list(overview.jobs) == ["new"]
    assert [event.kind for event in overview.jobs["new"].events] == ["job_start"]


def test_of_many_incidents_the_first_closed_ones_go(monkeypatch) -> None:
    monkeypatch.setattr(job_module, "MAX_INCIDENTS", 3)
    overview = overview_of(
        (NOW_S, "j", incident(f"i{number}", "j", NOW_S + number, closed=number != 0)) for number in range(6)
    )
    job = overview.jobs["j"]
    assert list(job.incidents) == ["i0", "i4", "i5"]
    assert [one.id for one in job.open_incidents()] == ["i0"]


@pytest.mark.thorough
def test_ten_times_as_many_incidents_take_ten_times_as_long() -> None:
    """Not a hundred times: looking for the oldest among ten thousand took 1.5 ms for each that came."""

    def cpu_s(number: int) -> float:
        told = [(NOW_S, "j", incident(f"i{at}", "j", NOW_S + at)) for at in range(number)]
        began_s = time.process_time()
        overview_of(told)
        return time.process_time() - began_s

    few_s = min(cpu_s(MAX_INCIDENTS) for _ in range(3))
    assert cpu_s(2 * MAX_INCIDENTS) < 10.0 * few_s


def beat(node: str, job: str = "j") -> HeartbeatRecord:
    return HeartbeatRecord(job=job, node=node, time_s=NOW_S)


def test_of_more_nodes_than_there_can_be_the_longest_silent_go_whichever_job_they_say_they_are_of(monkeypatch) -> None:
    monkeypatch.setattr(overview_module, "MAX_NODES", 30)
    monkeypatch.setattr(states_module, "MAX_NODES", 30)
    accused = (Suspect(score=1.0, reason="Xid 79", node="bad"),)
    bad = msgspec.structs.replace(incident("i1", "j", NOW_S, closed=False), suspects=accused)
    told: list[Told] = [(NOW_S, "j", beat("n0")), (NOW_S, "j", bad)]
    for number in range(100):
        job = f"j{number % 7}"
        told += [(NOW_S + number, job, beat(f"made-up-{number}", job)), (NOW_S + number, "j", beat("n0"))]
    overview = overview_of(told)
    held = {(job.job, node) for job in overview.jobs.values() for node in job.nodes}
    assert len(held) == 30
    assert ("j", "n0") in held
    states = {one["node"]: one["state"] for one in overview.nodes.objects(NOW_S)}
    assert len(states) <= 30
    assert states["bad"] == "suspect"
    assert states["n0"] == "healthy"


def test_no_more_clocks_of_nodes_are_held_than_there_can_be_ranks(monkeypatch) -> None:
    monkeypatch.setattr(pace_module, "MAX_RANKS", 3)
    pace = Pace()
    for number in range(10):
        said = {"steps": (1,), "end_s": (NOW_S,), "duration_s": (1.0,)}
        pace.apply(IterationRecord(job="j", node=f"n{number}", rank=0, incarnation="a", **said), NOW_S)
    assert list(pace._late_s) == ["n7", "n8", "n9"]
