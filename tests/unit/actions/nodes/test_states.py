"""In which state a node is, since when, why, and what it went through."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.memory_launcher import MemoryLauncher
from trainwarden.actions.engine import service
from trainwarden.actions.nodes.states import NodeStates
from trainwarden.bus.embedded.engine import EmbeddedBus
from trainwarden.cli.ask.fleet.nodes import nodes
from trainwarden.cli.ask.fleet.set_healthy import set_healthy
from trainwarden.commands import builders
from trainwarden.errors import ConfigError, LauncherError
from trainwarden.launching import LauncherState, NodeState
from trainwarden.records import (
    ActionKind,
    ActionRecord,
    CommandRecord,
    HeartbeatRecord,
    IncidentRecord,
    Outcome,
    Suspect,
)
from trainwarden.topics import topic_of


def incident(kind: str = "gpu_lost", node: str = "n7", **more: Any) -> IncidentRecord:
    fields: dict[str, Any] = {"state": "opened", "revision": 0, "opened_at_s": 10.0, "updated_at_s": 10.0, **more}
    suspects = (Suspect(score=1.0, reason="Xid 79", node=node),)
    return IncidentRecord(
        id=f"{kind}/{node}", job="llama", kind=kind, severity="sev1", reason="it is gone", suspects=suspects, **fields  # type: ignore[arg-type]
    )  # fmt: skip


def eviction(outcome: Outcome = "done", at_s: float = 20.0, node: str = "n7") -> ActionRecord:
    return ActionRecord(
        id=f"gpu_lost/{node}/evict/1", incident=f"gpu_lost/{node}", job="llama", kind="evict_node", outcome=outcome,
        at_s=at_s, finished_at_s=at_s, why="gpu_lost", plan={"nodes": [node]}, by="ann", blames=node,
    )  # fmt: skip


def said(word: builders.NodeWord) -> CommandRecord:
    return builders.on_node(word, "n7", "llama", "ann", at_s=5.0, why="its fan")


def cordoned(outcome: Outcome = "done", kind: ActionKind = "cordon_node") -> ActionRecord:
    return ActionRecord(
        id=f"command/c/{kind}/1", command="command/c", job="llama", kind=kind, outcome=outcome, at_s=20.0,
        finished_at_s=20.0, why="its fan", plan={"nodes": ["n7"]}, by="ann",
    )  # fmt: skip


def beat(node: str = "n7", job: str = "llama") -> HeartbeatRecord:
    return HeartbeatRecord(job=job, node=node, time_s=1.0)


def state_of(*records: Any, node: str = "n7") -> dict[str, Any]:
    """Its object after `records`, one a second."""
    states = NodeStates()
    for at_s, record in enumerate(records):
        states.apply(record, float(at_s))
    return next(one for one in states.objects(100.0) if one["node"] == node)


def test_a_node_is_told_of_an_incident_that_has_closed_only_once_it_is_resolved() -> None:
    down = incident(**CLOSED, unresolved=True)
    told = state_of(incident(), down)
    assert (told["state"], [one["what"] for one in told["history"]]) == ("suspect", ["blamed"])
    told = state_of(incident(), down, incident(**CLOSED | {"revision": 2}))
    assert (told["state"], [one["what"] for one in told["history"]]) == ("healthy", ["blamed", "incident closed"])


CLOSED = {"state": "closed", "revision": 1, "closed_at_s": 30.0}


@pytest.mark.parametrize(
    ("records", "state", "since_s", "why"),
    [
        ([beat()], "healthy", None, None),
        ([beat(), incident()], "suspect", 10.0, "gpu_lost (sev1): it is gone"),
        ([incident("node_lost"), incident()], "lost", 10.0, "node_lost (sev1): it is gone"),
        ([incident(), incident(**CLOSED)], "healthy", 30.0, "incident closed: gpu_lost (sev1): it is gone"),
        ([incident(), eviction("started"), eviction()], "cordoned", 2.0, "evict_node done by ann: gpu_lost"),
        ([incident(), eviction("failed")], "suspect", 10.0, "gpu_lost (sev1): it is gone"),
        (
            [incident(), eviction(), builders.set_healthy("n7", "new GPU", "bob", 40.0)],
            "healthy", 2.0, "set_healthy by bob: new GPU",
        ),
        ([beat(), cordoned()], "cordoned", 1.0, "cordon_node done by ann: its fan"),
        ([beat(), cordoned("failed")], "healthy", None, None),
        ([said("cordon"), cordoned(), said("uncordon"), cordoned("skipped", "uncordon_node")], "cordoned", 1.0,
         "cordon_node done by ann: its fan"),
        ([cordoned(), cordoned(kind="uncordon_node")], "healthy", 1.0, "uncordon_node done by ann: its fan"),
        ([incident(), eviction(), cordoned(kind="uncordon_node")], "suspect", 10.0, "gpu_lost (sev1): it is gone"),
        ([incident(), eviction(), said("uncordon"), cordoned(kind="uncordon_node")], "healthy", 3.0,
         "uncordon_node done by ann: its fan"),
        ([builders.set_healthy("n7", "", "bob", 0.0), incident()], "suspect", 10.0, "gpu_lost (sev1): it is gone"),
    ],
)  # fmt: skip
def test_its_state(records: list[Any], state: str, since_s: float | None, why: str | None) -> None:
    told = state_of(*records)
    assert (told["state"], told["since_s"], told["why"]) == (state, since_s, why)


def test_who_is_no_longer_the_first_suspect_is_no_longer_suspect() -> None:
    other = (Suspect(score=1.0, reason="it was this one", node="n8"),)
    later = msgspec.structs.replace(incident(), revision=1, suspects=other)
    assert state_of(incident(), later)["state"] == "healthy"
    assert state_of(incident(), later, node="n8")["state"] == "suspect"


def test_its_history_and_its_jobs() -> None:
    told = state_of(
        beat(), beat(job="bert"), incident(), eviction(), builders.set_healthy("n7", "new GPU", "bob", 40.0)
    )
    assert told["jobs"] == ["bert", "llama"]
    assert [(one["what"], one["by"]) for one in told["history"]] == [
        ("set_healthy", "bob"), ("blamed", None), ("evict_node done", "ann"),
    ]  # fmt: skip


def test_an_order_of_topics_that_is_not_that_of_time_changes_no_state() -> None:
    """Topics are read one after another."""
    states = NodeStates()
    states.apply(builders.set_healthy("n7", "", "bob", 40.0), 40.0)
    states.apply(eviction(), 20.0)
    states.apply(incident(), 10.0)
    assert states.objects(100.0)[0]["state"] == "healthy"


OUT = (incident(), eviction())


@pytest.mark.parametrize(
    ("records", "words", "state", "since_s", "why"),
    [
        # Back in a job: somebody has put it there.
        ([eviction()], [NodeState(node="n7")], "healthy", None, None),
        (OUT, [NodeState(node="n7")], "suspect", 10.0, "gpu_lost (sev1): it is gone"),
        # Out by the launcher too, which knows no reason: ours is known.
        (OUT, [NodeState(node="n7", state="cordoned")], "cordoned", 1.0, "evict_node done by ann: gpu_lost"),
        ([], [NodeState(node="n7", state="cordoned", why="its fan", since_s=7.0)], "cordoned", 7.0, "its fan"),
        ([incident()], [NodeState(node="n7", state="cordoned")], "cordoned", None, None),
        ([beat()], [NodeState(node="n7", state="lost"), NodeState(node="n7")], "lost", None, None),
        ([], [NodeState(node="n7", state="spare")], "spare", None, None),
        # Worst of all jobs, in whatever order they are asked; a launcher may suspect a node that the bus does not.
        ([], [NodeState(node="n7", state="spare"), NodeState(node="n7", state="lost")], "lost", None, None),
        ([beat()], [NodeState(node="n7", state="suspect", why="its fan")], "suspect", None, "its fan"),
        (
            [incident("node_lost")], [NodeState(node="n7", state="suspect")],
            "lost", 10.0, "node_lost (sev1): it is gone",
        ),
    ],
)  # fmt: skip
def test_its_state_with_a_launchers_word(
    records: list[Any], words: list[NodeState], state: str, since_s: float | None, why: str | None
) -> None:
    states = NodeStates()
    for at_s, record in enumerate(records):
        states.apply(record, float(at_s))
    for said in words:
        states.launcher_says("llama", said)
    [told] = states.objects(100.0)
    assert (told["state"], told["since_s"], told["why"], told["jobs"]) == (state, since_s, why, ["llama"])


@pytest.fixture
def address(tmp_path: Path) -> str:
    path = tmp_path / "bus.db"
    bus = EmbeddedBus(str(path))
    now_s = time.time()
    for record in (beat("n8"), incident(opened_at_s=now_s, updated_at_s=now_s)):
        bus.publish(topic_of(record), "llama", record)
    bus.flush()
    bus.close()
    return f"embedded:{path}"


def test_the_commands(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert nodes(bus=address) == 1
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("n7 suspect since 2")
    assert out[1] == "n8 healthy, jobs llama"
    assert set_healthy("n7", why="burnt in", bus=address) == 0
    assert nodes("n7", bus=address) == 0
    out = capsys.readouterr().out
    assert "n7 healthy since" in out
    assert ": burnt in" in out
    assert "    " in out
    assert "blamed: gpu_lost (sev1): it is gone" in out
    assert nodes("n99", bus=address, json="-") == 0
    said = msgspec.json.decode(capsys.readouterr().out)
    assert said["nodes"] == []


class Scheduler(MemoryLauncher):
    """Has cordoned n8, and knows of no job but llama."""

    asked_of: tuple[str, ...] = ()

    def state(self, job: str) -> LauncherState:
        self.asked_of += (job,)
        self._reach()
        if job != "llama":
            raise LauncherError(f"there is no job {job}")
        cordoned = (NodeState(node="n8", state="cordoned", why="its fan"),)
        return LauncherState(job=job, phase="running", generation=1, nodes=cordoned)


def test_the_launcher_is_asked_of_the_jobs_that_are_heard(
    address: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bus = EmbeddedBus(address.partition(":")[2])
    for job in ("bert", "zeta"):
        bus.publish(topic_of(beat("n8", job)), job, beat("n8", job))
    bus.flush()
    bus.close()
    launcher = Scheduler()
    monkeypatch.setattr(service, "make_launcher", lambda *_: launcher)
    assert nodes("n8", bus=address) == 0
    assert capsys.readouterr().out.splitlines() == ["n8 cordoned, jobs bert, llama, zeta: its fan"]
    assert launcher.asked_of == ("bert", "llama", "zeta")
    launcher.unreachable = True
    launcher.asked_of = ()
    assert nodes(bus=address) == 1
    assert "the launcher was not asked, so the bus alone says which nodes are out: gone" in capsys.readouterr().out
    assert launcher.asked_of == ("bert",)  # each more would cost its limit of time
    later_s = time.time() + 60.0
    monkeypatch.setattr(time, "time", lambda: later_s)
    nodes("n8", bus=address)
    assert "n8 healthy, jobs bert, llama, zeta, its agent silent since 2" in capsys.readouterr().out
    monkeypatch.setattr(time, "time", lambda: later_s + 120.0)
    nodes("n8", bus=address)
    assert "nothing was heard of node n8" in capsys.readouterr().out


def test_a_launcher_that_cannot_be_made_here_keeps_nobody_from_the_bus(
    address: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """As on a desk that has the engine's settings and not its secret, or not its launcher's package."""
    config = tmp_path / "site.toml"
    config.write_text('[engine]\nlauncher = "webhook"\n')
    assert nodes(bus=address, config=config) == 1
    out = capsys.readouterr().out
    assert "n7 suspect since 2" in out
    assert "the launcher was not asked, so the bus alone says which nodes are out: engine.launcher_settings" in out


@pytest.mark.parametrize("name", ["", " ", "n7\n"])
def test_what_is_no_name_is_refused(address: str, name: str) -> None:
    with pytest.raises(ConfigError, match="name one node"):
        set_healthy(name, bus=address)


@pytest.mark.parametrize(
    ("records", "kept"),
    [
        ([beat()], []),
        ([incident()], ["n7"]),
        ([eviction()], ["n7"]),
        ([incident(), msgspec.structs.replace(incident(), **CLOSED)], []),
    ],
)
def test_of_old_nodes_those_that_are_out_or_accused_are_kept(records: list[Any], kept: list[str]) -> None:
    states = NodeStates()
    for record in records:
        states.apply(record, 1.0)
    states.forget(1e9)
    assert [(one["node"], one["history"]) for one in states.objects(1e9)] == [(node, []) for node in kept]
