"""What `checkpoints` proposes: an interval by what a save has cost and how often the job has failed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.keeper_doubles import content, write_shard
from trainwarden.bus.embedded.engine import EmbeddedBus
from trainwarden.checkpoint.shard import Facts, Id
from trainwarden.checkpoint.slots import Slots, job_folder
from trainwarden.cli.ask.checkpoints import checkpoints
from trainwarden.records import EventRecord, IncidentRecord, IterationRecord, Record
from trainwarden.topics import topic_of

HOUR_S = 3600.0


def incident(name: str, kind: Any, at_s: float) -> IncidentRecord:
    return IncidentRecord(
        id=name, job="j", kind=kind, severity="sev2", state="closed", revision=0, opened_at_s=at_s, updated_at_s=at_s,
        closed_at_s=at_s, reason="x",
    )  # fmt: skip


def event(time_s: float) -> EventRecord:
    return EventRecord(id=f"e{time_s}", job="j", node="n", time_s=time_s, kind="job_start")


STEPS = IterationRecord(
    job="j", node="n", rank=0, incarnation="1-1", steps=tuple(range(10)), end_s=tuple(2.0 * s for s in range(10)),
    duration_s=(2.0,) * 10,
)  # fmt: skip
DAY = [event(0.0), event(24 * HOUR_S)]
FAILURES = [incident("i1", "crash", HOUR_S), incident("i2", "node_lost", 5 * HOUR_S)]
OTHERS = [incident("i3", "slow_job", HOUR_S), incident("i4", "memory_leak", HOUR_S)]


def asked(tmp_path: Path, records: list[Record], stall: Any = 0.5) -> dict[str, Any]:
    """What `checkpoints` answers about a job whose last save has held it up for `stall` seconds."""
    (tmp_path / "memory").mkdir()
    slots, id_ = Slots(job_folder("j", str(tmp_path / "memory"))), Id(0, 10)
    write_shard(slots, Facts("j", id_, 0, 1, "world 1", 1.0), content(id_, 0, 500))
    if stall is not None:
        slots.write_note("trainer-0.json", {"stall_s": stall})
    bus = EmbeddedBus(str(tmp_path / "bus.db"))
    for record in records:
        bus.publish(topic_of(record), "j", record)
    bus.flush()
    bus.close()
    out = tmp_path / "out.json"
    assert checkpoints(job="j", memory=tmp_path / "memory", bus=f"embedded:{tmp_path / 'bus.db'}", json=str(out)) == 0
    found: dict[str, Any] = json.loads(out.read_text())["jobs"][0]
    return found


def test_an_interval_is_proposed_by_stall_failures_and_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = asked(tmp_path, [*DAY, *FAILURES, *OTHERS, STEPS])
    assert told["stall_s"] == 0.5
    found = told["interval"]
    assert (found["failures"], found["watched_s"], found["step_s"]) == (2, 24 * HOUR_S, 2.0)
    assert (found["steps"], found["interval_s"]) == (104, 208.0)  # the square root of 2 x 0.5 s x 12 h
    said = "a save holds training up for 0.5 s; with 2 failures in 24.0 h, saves every 208 s (104 steps) lose least"
    assert said in capsys.readouterr().out


@pytest.mark.parametrize(
    ("records", "why"),
    [
        ([*DAY, *OTHERS], "no failure is known of the 24.0 h that were watched"),
        ([], "no failure is known of the 0.0 h that were watched"),
        (FAILURES, "no failure is known of the 0.0 h that were watched"),
    ],
)
def test_what_is_not_known_is_said(tmp_path: Path, records: list[Record], why: str) -> None:
    told = asked(tmp_path, records)
    assert "interval" not in told
    assert told["no_interval"] == why


@pytest.mark.parametrize("stall", [None, "x", -1.0, 0.0])
def test_without_a_measured_save_nothing_is_proposed(tmp_path: Path, stall: Any) -> None:
    told = asked(tmp_path, [*DAY, *FAILURES], stall)
    assert not {"interval", "no_interval"} & told.keys()
