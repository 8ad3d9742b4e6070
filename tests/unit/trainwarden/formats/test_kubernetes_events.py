"""Events of `kubectl get events -o json`: when, of which node, and which of them are incidents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trainwarden.cli.ask.detect_jobs import Asked, jobs_to_judge, judge_folder
from trainwarden.formats.reading import read_job


def event(reason: str, message: str, kind: str = "Node", name: str = "gpu-7", at: str = "06:02", **more: Any) -> Any:
    stamp = f"2026-05-03T10:{at}Z"
    about = {"kind": kind, "name": name, "namespace": "default"}
    return {"apiVersion": "v1", "kind": "Event", "type": "Warning", "reason": reason, "message": message,
            "lastTimestamp": stamp, "eventTime": None, "involvedObject": about, "source": {}, **more}  # fmt: skip


STARTED = event("Pulled", "Container image already present", "Pod", "t-0", "01:00", type="Normal")


def judged(tmp_path: Path, *events: Any) -> list[tuple[str, str | None, float]]:
    file = tmp_path / "events.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": list(events)}))
    (work,), _ = jobs_to_judge(file, Asked(None, None, None, None, want_scores=False), None)
    found = judge_folder(work).records
    return [(one.kind, one.suspects[0].node if one.suspects else None, one.opened_at_s) for one in found]


def test_a_node_that_is_gone_is_named_with_the_time_of_its_event(tmp_path: Path) -> None:
    gone = event("NodeNotReady", "Node gpu-7 status is now: NodeNotReady")
    assert judged(tmp_path, gone, STARTED) == [("node_lost", "gpu-7", 1777802762.0)]


def test_a_pod_that_was_evicted_names_the_node_of_its_kubelet(tmp_path: Path) -> None:
    words = "The node was low on resource: memory. Threshold quantity: 100Mi, available: 52Mi."
    evicted = event("Evicted", words, "Pod", "t-3", source={"component": "kubelet", "host": "gpu-9"})
    ((kind, node, _),) = judged(tmp_path, STARTED, evicted)
    assert (kind, node) == ("out_of_memory", "gpu-9")


@pytest.mark.parametrize("events", [(STARTED,), (STARTED, event("NodeReady", "Node gpu-7 status is now: NodeReady"))])
def test_healthy_events_are_silent(events: tuple[Any, ...], tmp_path: Path) -> None:
    assert judged(tmp_path, *events) == []


def test_events_of_the_newer_api_are_read(tmp_path: Path) -> None:
    newer = {"apiVersion": "events.k8s.io/v1", "kind": "Event", "type": "Normal", "reason": "Killing", "note": "bye",
             "eventTime": "2026-05-03T10:00:00.000000Z", "regarding": {"kind": "Pod", "name": "t-1"}}  # fmt: skip
    file = tmp_path / "event.json"
    file.write_text(json.dumps(newer))
    (log,) = read_job(file).logs
    assert (list(log.lines), log.times_s.tolist()) == (["Normal   Killing   pod/t-1   bye"], [1777802400.0])
