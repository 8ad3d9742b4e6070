"""Jobs beside four busy loops by the path of live jobs: a slow rank is named, chance names nobody."""

from __future__ import annotations

import pytest

from tests.benchmarks.detection.own_runs.judge import through
from tests.benchmarks.detection.own_runs.reading import one_run
from tests.places import ROOT

pytestmark = pytest.mark.thorough  # they take seconds

DATA = ROOT / "tests" / "data" / "busy_host"
NAMED_S = 12.0  # 8.6 to 9.6 were measured


@pytest.mark.parametrize("name", ["choose-slow-2", "report-slow-1", "report-slow-2", "report-slow-3"])
def test_a_rank_that_computes_half_as_much_again_is_named_once(name: str) -> None:
    run = one_run(DATA / name)
    (incident,) = through(run)
    fault = run.faults[0]
    assert (incident.kind, [one.rank for one in incident.suspects]) == ("slow_compute", [fault.rank])
    assert incident.onset_s == pytest.approx(fault.from_s, abs=3.0)
    assert fault.from_s < incident.opened_at_s < fault.from_s + NAMED_S


@pytest.mark.parametrize("name", ["choose-healthy-2", "report-healthy-2"])
def test_a_healthy_job_gives_no_incident(name: str) -> None:
    assert through(one_run(DATA / name)) == []


@pytest.mark.parametrize("name", ["choose-onset", "report-onset"])
def test_loops_that_begin_are_the_hosts_contention_alone(name: str) -> None:
    (incident,) = through(one_run(DATA / name))
    assert (incident.kind, [one.rank for one in incident.suspects]) == ("host_contention", [None])
