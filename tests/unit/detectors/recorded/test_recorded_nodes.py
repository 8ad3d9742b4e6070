"""Nodes that a recording tells of no more are lost where a second witness misses them, and else nothing is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
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
    spins,
    told,
    works,
)
from trainwarden.records import EventRecord

RESET = "RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.4]:1234"


def without(*nodes: int, does: Callable[[int, float], Cell] = spins) -> Callable[[int, float], Cell]:
    """What GPUs do where these nodes are told of no more."""
    return lambda rank, at: None if rank // 2 in nodes else does(rank, at)


def lost(folder: Path) -> list[tuple[str, float]]:
    """Nodes that are told to be lost, and when."""
    return [(one.node, one.time_s - START_S) for one in told(folder) if one.kind == "heartbeat_lost"]


@pytest.mark.thorough
@pytest.mark.parametrize("does", [spins, idles])
def test_a_node_that_all_others_miss_is_lost(tmp_path: Path, does: Callable[[int, float], Cell]) -> None:
    folder = Written(after=without(2, does=does)).to(tmp_path)
    assert [node for node, _ in lost(folder)] == ["n2"]
    (incident,) = incidents(folder)
    assert (incident.kind, incident.severity) == ("node_lost", "sev1")
    assert [(one.node, one.rank) for one in incident.suspects] == [("n2", None)]
    assert incident.onset_s == pytest.approx(START_S + WORK_S, abs=15.0)
    assert incident.opened_at_s - START_S - WORK_S == pytest.approx(100.0, abs=15.0)  # ten intervals


def test_a_line_of_a_peer_is_a_witness_where_steps_tell_nothing(tmp_path: Path) -> None:
    folder = Written(after=without(2), logs=((WORK_S + 5.0, "n1", RESET),)).to(tmp_path)
    (folder / "iterations.csv").unlink()
    ((node, at),) = lost(folder)
    assert (node, at) == ("n2", WORK_S + 100.0)
    (folder / "logs.jsonl").unlink()
    assert lost(folder) == []


@pytest.mark.parametrize(
    ("own", "nodes"),
    [
        ({"node": "n1", "rank": 2, "fields": {"code": 1}}, ["n2"]),
        ({"node": "n2", "rank": 4, "fields": {"code": 1}}, []),  # of the node itself
        ({"node": "n1", "rank": 2, "fields": {"code": 0}}, []),
        ({"node": "n1", "rank": 2, "fields": {"signal": "SIGTERM"}}, []),
        ({"node": "n1", "kind": "job_end"}, []),
    ],
)
def test_a_process_that_fails_elsewhere_is_a_witness(tmp_path: Path, own: dict, nodes: list[str]) -> None:
    folder = Written(after=without(2)).to(tmp_path)
    event = EventRecord(**{"id": "1", "job": "j", "time_s": START_S + WORK_S + 4.0, "kind": "process_exit", **own})
    (folder / "events.jsonl").write_bytes(msgspec.json.encode(event) + b"\n")
    assert [node for node, _ in lost(folder)] == nodes


def test_a_node_that_is_known_to_be_lost_is_not_told_twice(tmp_path: Path) -> None:
    folder = Written(after=without(2)).to(tmp_path)
    event = EventRecord(id="1", job="j", node="n2", time_s=START_S + WORK_S + 4.0, kind="heartbeat_lost")
    (folder / "events.jsonl").write_bytes(msgspec.json.encode(event) + b"\n")
    assert lost(folder) == [("n2", WORK_S + 4.0)]


def back(rank: int, at: float) -> Cell:
    """The second node is not heard for five minutes."""
    return None if rank // 2 == 2 and at < WORK_S + 300.0 else spins(rank, at)


AT_WORK = Written(stop_s=WORK_S, going_on=tuple(range(8)), after=without(2, does=works))
NOT_TOLD = {
    "its exporter died and the job goes on with it": AT_WORK,
    "its agent died and the job goes on": replace(AT_WORK, going_on=(0, 1, 2, 3, 6, 7)),
    "a peer lost a connection and the job goes on": replace(
        AT_WORK, going_on=(0, 1, 2, 3, 6, 7), logs=((WORK_S + 5.0, "n1", RESET),)
    ),
    "it was silent for as long before": Written(
        after=without(2),
        paused=without(2),
        pauses={600.0: 200.0},
        until_s=WORK_S + 550.0,
        logs=((WORK_S + 5.0, "n1", RESET),),
    ),
    "half fell silent": Written(after=without(1, 2)),
    "most fell silent": Written(after=without(1, 2, 3)),
    "it came back": Written(after=back),
    "the recording ends": Written(after=without(2), until_s=WORK_S + 80.0),
    "a pause like others": Written(after=without(2), pauses={600.0: 200.0}, until_s=WORK_S + 550.0),
    "the job had stopped before": Written(
        after=lambda rank, at: None if rank // 2 == 2 and at > WORK_S + 300.0 else idles(rank, at)
    ),
    "said to be over": Written(after=without(2), logs=((WORK_S + 1.0, "n0", "Training finished after 240 steps"),)),
    "it still writes": Written(after=without(2), logs=((WORK_S + 40.0, "n2", "waiting for the others"),)),
    "sampled seldom": Written(after=without(2), every_s=150.0),
    "before ten steps were made": Written(
        after=lambda rank, at: None if rank // 2 == 2 else spins(rank, at), stop_s=240.0, pauses={0.0: 193.0}
    ),
    "all ended": Written(until_s=WORK_S),
}


@pytest.mark.parametrize("name", NOT_TOLD)
def test_a_node_that_nobody_misses_is_not_lost(tmp_path: Path, name: str) -> None:
    assert lost(NOT_TOLD[name].to(tmp_path)) == []


def test_of_three_nodes_two_must_go_on(tmp_path: Path) -> None:
    folder = Written(after=without(2)).to(tmp_path)
    for file in (folder / "metrics.csv", folder / "iterations.csv"):
        text = file.read_text()
        rest = [line for line in text.splitlines() if ",n0," not in line]
        file.write_text("\n".join(rest) + "\n")
    assert [node for node, _ in lost(folder)] == ["n2"]
    rest = [line for line in (folder / "metrics.csv").read_text().splitlines() if ",n1," not in line]
    (folder / "metrics.csv").write_text("\n".join(rest) + "\n")
    assert lost(folder) == []


def test_where_metrics_tell_ranks_alone_their_steps_tell_the_node(tmp_path: Path) -> None:
    folder = Written(after=without(2)).to(tmp_path)
    rows = [line.split(",") for line in (folder / "metrics.csv").read_text().splitlines()]
    (folder / "metrics.csv").write_text("\n".join(",".join([row[0], *row[3:]]) for row in rows) + "\n")
    assert [node for node, _ in lost(folder)] == ["n2"]
