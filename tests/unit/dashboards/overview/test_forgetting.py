"""Which jobs are forgotten."""

from __future__ import annotations

import time

import pytest

from dashboards.overview import job as job_module
from dashboards.overview.job import MAX_INCIDENTS
from dashboards.overview.overview import FORGET_S
from tests.page_world import NOW_S, incident, overview_of
from trainwarden.records import EventRecord


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
