"""What `trainwarden nodes` says, by the bus alone and by a launcher's word."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from actions.engine import service
from tests.memory_launcher import MemoryLauncher
from trainwarden.bus.embedded.engine import EmbeddedBus
from trainwarden.cli.ask.nodes import nodes
from trainwarden.errors import LauncherUnavailable
from trainwarden.launching import LauncherState, NodeState
from trainwarden.records import ActionRecord, EventRecord, HeartbeatRecord, IncidentRecord, Record, Suspect
from trainwarden.topics import topic_of

NOW_S = time.time()


class Scheduler(MemoryLauncher):
    """Says `told` of the nodes of any job but `other`."""

    told: tuple[NodeState, ...] = ()
    of_jobs: tuple[str, ...] = ()

    def state(self, job: str) -> LauncherState:
        self._reach()
        self.of_jobs += (job,)
        return LauncherState(job=job, phase="running", generation=1, nodes=self.told)


@pytest.fixture
def launcher(monkeypatch: pytest.MonkeyPatch) -> Scheduler:
    made = Scheduler()
    monkeypatch.setattr(service, "make_launcher", lambda *_: made)
    return made


class Bus:
    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.address, self._capsys = f"embedded:{folder / 'bus.db'}", capsys
        self.put()

    def put(self, *records: Record) -> None:
        bus = EmbeddedBus(self.address.partition(":")[2])
        for record in records:
            bus.publish(topic_of(record), "j", record)
        bus.flush()
        bus.close()

    def answer(self, code: int, **options: Any) -> dict[str, Any]:
        self._capsys.readouterr()
        assert nodes(bus=self.address, json="-", **options) == code
        said: dict[str, Any] = json.loads(self._capsys.readouterr().out)
        return said

    def row(self, name: str, code: int = 0) -> dict[str, Any]:
        [row] = [row for row in self.answer(code)["nodes"] if row["node"] == name]
        return row


@pytest.fixture
def bus(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Bus:
    return Bus(tmp_path, capsys)


def beat(node: str, job: str = "j") -> HeartbeatRecord:
    return HeartbeatRecord(job=job, node=node, time_s=NOW_S)


def incident(state: str = "opened", revision: int = 0) -> IncidentRecord:
    suspects = (Suspect(score=0.9, reason="rank alone", rank=1), Suspect(score=0.8, reason="GPU 3 is gone", node="n1"))
    return IncidentRecord(
        id="i1", job="j", kind="gpu_lost", severity="sev1", state=state, revision=revision, opened_at_s=NOW_S - 5.0,
        updated_at_s=NOW_S + revision, reason="a GPU fell off", suspects=suspects,
    )  # type: ignore[arg-type]  # fmt: skip


def evicted(outcome: str = "done") -> ActionRecord:
    return ActionRecord(
        id="i1/evict/1", incident="i1", job="j", kind="evict_node", outcome=outcome, at_s=NOW_S, why="gpu_lost",
        finished_at_s=NOW_S + 2.0 if outcome == "done" else None, plan={"nodes": ["n1"]},
    )  # type: ignore[arg-type]  # fmt: skip


def test_nodes_that_speak_are_healthy_and_a_silent_one_is_lost(
    bus: Bus, launcher: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus.put(beat("n2", "other"), beat("n1"), beat("n2"))
    rows = bus.answer(0)["nodes"]
    assert [(row["node"], row["state"], row["jobs"], row["since_s"], row["why"]) for row in rows] == [
        ("n1", "healthy", ["j"], None, None), ("n2", "healthy", ["j", "other"], None, None),
    ]  # fmt: skip
    monkeypatch.setattr(time, "time", lambda: NOW_S + 60.0)
    row = bus.row("n1", code=1)
    assert (row["state"], row["why"]) == ("lost", "its agent has not spoken since")
    assert row["since_s"] == pytest.approx(NOW_S, abs=30.0)


def test_a_job_that_has_ended_leaves_no_lost_nodes(
    bus: Bus, launcher: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus.put(beat("n1"), EventRecord(id="e", job="j", node="n1", time_s=NOW_S, kind="job_end"))
    monkeypatch.setattr(time, "time", lambda: NOW_S + 60.0)
    assert bus.answer(0)["nodes"] == []


def test_a_suspect_is_told_with_the_reason_and_its_history(bus: Bus, launcher: Scheduler) -> None:
    bus.put(beat("n1"), beat("n2"), incident(), evicted("started"))
    row = bus.row("n1", code=1)
    assert (row["state"], row["why"], row["since_s"]) == ("suspect", "gpu_lost: GPU 3 is gone", NOW_S - 5.0)
    assert [(event["id"], event["kind"], event["outcome"]) for event in row["history"]] == [
        ("i1", "gpu_lost", "open"), ("i1/evict/1", "evict_node", "started"),
    ]  # fmt: skip
    assert bus.row("n2", code=1)["history"] == []


def test_one_that_was_taken_out_is_cordoned_until_the_launcher_has_it_in_a_job_again(
    bus: Bus, launcher: Scheduler
) -> None:
    bus.put(beat("n2"), incident(), incident("closed", 1), evicted("started"), evicted())
    row = bus.row("n1")
    assert (row["state"], row["since_s"], row["jobs"]) == ("cordoned", NOW_S + 2.0, [])
    assert row["why"] == "taken out by i1/evict/1: gpu_lost"
    launcher.told = (NodeState(node="n1"), NodeState(node="n2", state="cordoned", why="fan of anna", since_s=7.0))
    row = bus.row("n1")
    assert (row["state"], row["why"], row["jobs"]) == ("healthy", None, ["j"])
    row = bus.row("n2")
    assert (row["state"], row["why"], row["since_s"]) == ("cordoned", "fan of anna", 7.0)


def test_the_launchers_loss_and_spares_are_told(bus: Bus, launcher: Scheduler) -> None:
    bus.put(beat("n1"), beat("n2"))
    launcher.told = (NodeState(node="n1", state="lost"), NodeState(node="n9", state="spare"))
    rows = bus.answer(1)["nodes"]
    assert [(row["node"], row["state"]) for row in rows] == [("n1", "lost"), ("n2", "healthy"), ("n9", "spare")]
    bus.put(incident())
    launcher.told = (NodeState(node="n1", state="cordoned"),)
    row = bus.row("n1")
    assert (row["state"], row["why"], row["since_s"]) == ("cordoned", None, None)


def test_a_launcher_that_is_away_is_asked_once_and_said_to_be(
    bus: Bus, launcher: Scheduler, capsys: pytest.CaptureFixture[str]
) -> None:
    bus.put(beat("n1"), beat("n2", "other"))
    launcher.unreachable = True
    said = bus.answer(0)
    assert said["launcher"] == {"name": "local", "why_not": "gone"}
    assert len(said["nodes"]) == 2
    nodes(bus=bus.address)
    assert "nobody says which nodes are cordoned: gone" in capsys.readouterr().out
    with pytest.raises(LauncherUnavailable):
        launcher.state("j")


def test_one_job_alone(bus: Bus, launcher: Scheduler) -> None:
    bus.put(beat("n1"), beat("n2", "other"), incident())
    assert [row["node"] for row in bus.answer(0, job="other")["nodes"]] == ["n2"]
    assert launcher.of_jobs == ("other",)
