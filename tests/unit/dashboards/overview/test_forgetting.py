"""Which jobs are forgotten."""

from __future__ import annotations

from dashboards.overview.overview import FORGET_S
from tests.page_world import NOW_S, overview_of
from trainwarden.records import EventRecord


def started(job: str, at_s: float) -> EventRecord:
    return EventRecord(id=job, job=job, node="n", time_s=at_s, kind="job_start")


def test_a_job_that_has_only_just_begun_is_kept() -> None:
    told = [(NOW_S, name, started(name, at_s)) for name, at_s in (("new", NOW_S), ("old", NOW_S - FORGET_S - 1.0))]
    overview = overview_of(told)
    assert list(overview.jobs) == ["new"]
    assert [event.kind for event in overview.jobs["new"].events] == ["job_start"]
