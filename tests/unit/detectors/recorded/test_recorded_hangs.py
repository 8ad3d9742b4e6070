"""Hangs of recordings without heartbeats: steps stop while GPUs spin. What may be a pause or an end is not told."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.unit.detectors.recorded.standstill import (
    START_S,
    WORK_S,
    Cell,
    Written,
    idles,
    incidents,
    one_idles,
    spins,
    told,
    works,
)
from trainwarden.records import EventRecord, HeartbeatRecord

pytestmark = pytest.mark.thorough  # they take seconds


def test_a_job_that_spins_is_hung_since_its_last_step(tmp_path: Path) -> None:
    (incident,) = incidents(Written().to(tmp_path))
    assert (incident.kind, incident.severity, incident.suspects) == ("hang", "sev2", ())
    assert incident.onset_s == pytest.approx(START_S + WORK_S, abs=0.1)
    assert 60.0 <= incident.opened_at_s - START_S - WORK_S <= 120.0
    assert incident.closed_at_s is None


def test_the_only_rank_whose_gpu_idles_is_a_suspect_and_needs_more_patience(tmp_path: Path) -> None:
    folder = Written(after=one_idles).to(tmp_path)
    (event,) = told(folder)
    assert event.time_s - START_S - WORK_S == pytest.approx(300.0, abs=1.0)
    (incident,) = incidents(folder)  # its GPU was unlike the others before
    assert (incident.kind, incident.severity) == ("hang", "sev2")
    assert incident.onset_s == pytest.approx(START_S + WORK_S, abs=10.0)
    assert [(one.rank, one.node, one.score) for one in incident.suspects] == [(5, "n2", 0.5)]


def test_of_two_whose_gpus_idle_nobody_is_named(tmp_path: Path) -> None:
    folder = Written(after=lambda rank, at: (idles if rank in (2, 5) else spins)(rank, at)).to(tmp_path)
    (event,) = told(folder)
    assert (event.kind, event.rank, event.node, event.fields["ranks"]) == ("flight_recorder", None, "", "")
    assert incidents(folder)[0].suspects == ()


def test_a_hang_that_is_restarted_ends(tmp_path: Path) -> None:
    (incident,) = incidents(Written(stop_s=3000.0, until_s=3000.0, pauses={1200.0: 720.0}, paused=spins).to(tmp_path))
    assert incident.kind == "hang"
    assert incident.onset_s == pytest.approx(START_S + WORK_S, abs=0.1)
    assert incident.closed_at_s is not None


def gap_then_another(rank: int, at: float) -> Cell:
    """The job has ended, and another one with less to do has come."""
    return idles(rank, at) if at < WORK_S + 30.0 else (99.0, 200.0)


def test_a_hang_is_no_pause_that_the_job_makes(tmp_path: Path) -> None:
    first, second = told(Written(stop_s=3000.0, until_s=3100.0, pauses={1200.0: 720.0}, paused=spins).to(tmp_path))
    assert first.time_s - START_S - WORK_S == pytest.approx(90.0, abs=1.0)  # settled, and six intervals
    assert second.time_s - START_S - 3000.0 == pytest.approx(90.0, abs=6.0)


NOT_TOLD = {
    "ended": Written(after=idles),
    "metrics end with the steps": Written(until_s=WORK_S),
    "metrics end soon after the steps": Written(until_s=WORK_S + 50.0),
    "evaluates or was recorded no longer": Written(after=works),
    "one goes on working": Written(after=lambda rank, at: (works if rank == 1 else spins)(rank, at)),
    "half idle": Written(after=lambda rank, at: (idles if rank % 2 else spins)(rank, at)),
    "a pause like others": Written(pauses={600.0: 200.0}, until_s=WORK_S + 550.0),
    "saves for the first time": Written(after=one_idles, until_s=WORK_S + 280.0),
    "no power": Written(columns=("DCGM_FI_DEV_GPU_UTIL",)),
    "no utilisation": Written(columns=("unknown", "DCGM_FI_DEV_POWER_USAGE")),
    "no times of steps": Written(timed=False),
    "said to be over": Written(logs=((WORK_S + 1.0, "n0", "Training finished after 240 steps"),)),
    "one rank goes on": Written(going_on=(3,)),
    "one GPU is told of no more": Written(
        after=lambda rank, at: None if rank == 4 and at > WORK_S + 50.0 else spins(rank, at)
    ),
    "another job": Written(after=gap_then_another),
    "too seldom": Written(every_s=200.0),
}


@pytest.mark.parametrize("name", NOT_TOLD)
def test_what_may_be_something_else_is_not_told(tmp_path: Path, name: str) -> None:
    found = told(NOT_TOLD[name].to(tmp_path))
    assert [event.kind for event in found if event.kind == "flight_recorder"] == []


def test_the_same_pause_is_told_where_it_lasts_longer_than_three_such(tmp_path: Path) -> None:
    (event,) = told(Written(pauses={600.0: 200.0}, until_s=WORK_S + 640.0).to(tmp_path))
    assert event.time_s - START_S - WORK_S == pytest.approx(3.0 * 205.0, abs=1.0)


@pytest.mark.parametrize("kind", ["process_exit", "exception", "job_end", "restart"])
def test_an_end_that_an_event_tells_is_no_hang(tmp_path: Path, kind: str) -> None:
    Written().to(tmp_path)
    own = EventRecord(id="1", job="j", node="n0", time_s=START_S + WORK_S + 5.0, kind=kind, rank=0)
    (tmp_path / "events.jsonl").write_bytes(msgspec.json.encode(own) + b"\n")
    assert [event.kind for event in told(tmp_path)] == [kind]


def test_heartbeats_tell_hangs_better(tmp_path: Path) -> None:
    Written().to(tmp_path)
    assert len(told(tmp_path)) == 1
    beat = HeartbeatRecord(
        job="j", node="n0", time_s=START_S + WORK_S, ranks=(0,), pids=(1,), incarnations=("0",), steps=(240,)
    )
    (tmp_path / "heartbeats.jsonl").write_bytes(msgspec.json.encode(beat) + b"\n")
    assert told(tmp_path) == []


def test_what_is_told_does_not_depend_on_what_comes_later(tmp_path: Path) -> None:
    short, long = tmp_path / "short", tmp_path / "long"
    short.mkdir()
    long.mkdir()
    (one,), (other,) = told(Written(until_s=WORK_S + 120.0).to(short)), told(Written().to(long))
    assert (one.time_s, one.fields) == (other.time_s, other.fields)
