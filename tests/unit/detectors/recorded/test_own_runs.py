"""Runs of our own by the path of live jobs: who is healthy opens nothing, and the rank that suffers is named."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.benchmarks.detection.own_runs.judge import day_one, through, write
from tests.benchmarks.detection.own_runs.outcomes import judged, row
from tests.benchmarks.detection.own_runs.reading import AFTER_S, DATA, Captured, one_run
from trainwarden.detectors.verdict.contention import LASTING_S
from trainwarden.recorded.cut import between
from trainwarden.records import IncidentRecord, Suspect


def until(run: Captured, until_s: float) -> Captured:
    """The run as if it had been captured up to a time."""
    first_s, _ = run.span_s
    job = between(run.job, first_s, until_s)
    faults = tuple(fault for fault in run.faults if fault.to_s <= until_s)
    return replace(run, job=job, facts=[fact for fact in run.facts if fact.time_s <= until_s], faults=faults)


@pytest.mark.thorough
def test_a_healthy_run_opens_nothing() -> None:
    run = one_run(DATA / "pipeline-choose-healthy")
    assert run.healthy_s > 500.0
    assert day_one(run).false == ()


@pytest.mark.thorough
def test_a_rank_that_is_starved_suffers_from_a_busy_host() -> None:
    """Its own CPU time is what it was: others take the processors, and it alone waits for one so long."""
    whole = one_run(DATA / "train_gpt-choose-faults")
    run = until(whole, whole.faults[0].to_s)
    incidents = through(run)
    named = [(one.kind, suspect.rank) for one in incidents for suspect in one.suspects if suspect.rank is not None]
    assert named == [("host_contention", run.faults[0].rank)]
    found = judged(run, incidents)
    (outcome,) = found.outcomes
    assert (outcome.fault.kind, outcome.rank, outcome.kind) == ("starved", True, True)
    assert outcome.delay_s is not None
    assert outcome.delay_s < LASTING_S + 5.0, "the host's trouble has to last, and is reported at once then"
    assert found.false == ()


def incident(opened_s: float, rank: int, kind: str = "slow_compute") -> IncidentRecord:
    return IncidentRecord(
        id=f"{opened_s}", job="j", kind=kind, severity="sev3", state="opened", revision=0, opened_at_s=opened_s,
        updated_at_s=opened_s, reason="", suspects=(Suspect(score=1.0, rank=rank, reason=""),),
    )  # fmt: skip


def test_an_incident_counts_for_the_fault_it_opened_in_and_is_false_elsewhere() -> None:
    run = one_run(DATA / "train_gpt-choose-faults")
    one, other = run.faults
    early, wrong, right = (
        incident(one.from_s - 1.0, one.rank),
        incident(one.from_s + 1.0, 7),
        incident(one.to_s, one.rank),
    )
    late = incident(other.to_s + AFTER_S, other.rank)
    found = judged(run, [early, wrong, right, late])
    assert found.false == (early, late)
    first, second = found.outcomes
    assert (first.rank, first.kind, first.delay_s) == (True, True, pytest.approx(one.to_s - one.from_s))
    assert second.delay_s is None
    line = row("x", [found])
    assert (line["false"], line["faults"]) == (2, 2)
    assert line["found"].startswith("1 ")
    only_wrong = judged(run, [wrong]).outcomes[0]
    assert (only_wrong.rank, only_wrong.delay_s) == (False, pytest.approx(1.0))


def test_tables_are_put_in_place_of_those_before(tmp_path) -> None:
    page = tmp_path / "page.md"
    page.write_text("others\n")
    write("one\n", page)
    write("two\n", page)
    text = page.read_text()
    assert text.startswith("others\n")
    assert "two" in text
    assert "one" not in text
