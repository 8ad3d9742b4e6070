"""`trainwarden demo`: every fault is found, named, acted on and told by contract; a run without one is silent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.system.runs import demo

pytestmark = pytest.mark.system

SHORT = ("--ranks", "3", "--steps", "68")  # four fifths of a demo's processor time go into starting ranks
FEWEST = ("--ranks", "2", "--steps", "68")  # where no peers are needed to tell who it is
KEYS = {
    "job", "ranks", "seed", "bus", "mode", "steps", "loss", "fault", "incidents", "actions", "iteration_s",
    "slowdown_removed_ratio", "first_step_after_fault_s", "overhead", "false_alarms", "ok", "why_not",
}  # fmt: skip
INCIDENT_KEYS = {
    "id", "job", "kind", "severity", "opened_at_s", "closed_at_s", "onset_s", "onset_step", "opened_step", "reason",
    "suspects", "metrics", "votes", "model_versions", "opened_after_s", "opened_after_iterations",
}  # fmt: skip
ACTION_KEYS = {"id", "incident", "kind", "outcome", "at_s", "finished_at_s", "plan", "why", "started_after_s"}


@pytest.mark.parametrize(
    ("fault", "rank", "kind"),
    [
        ("slow-rank", 1, "slow_compute"),
        ("hang", 2, "hang"),
        ("crash", 0, "crash"),
        ("log-storm", 1, "log_storm"),
    ],
)
def test_a_fault_is_found_and_acted_on(fault: str, rank: int, kind: str, tmp_path: Path) -> None:
    # What a rebalance gains is seen over many steps.
    shape = {"slow-rank": (), "log-storm": FEWEST}.get(fault, SHORT)
    result = found_and_acted_on(fault, rank, kind, tmp_path, *shape, teaches=fault == "slow-rank")
    if fault == "slow-rank":  # what the job taught by its own start has an opinion, without any training before
        assert {"lof", "neighbor_profile", "dtw", "metric_peers"} <= told(result, kind, rank)["votes"].keys()


@pytest.mark.kafka
def test_the_same_through_kafka(kafka_broker: Any, tmp_path: Path) -> None:
    """An exception: after it the job is started again, so everything that is said goes through the broker twice."""
    address = f"kafka://{kafka_broker.server}"
    result = found_and_acted_on("exception", 1, "exception", tmp_path, "--bus", address, *FEWEST)
    assert result["bus"] == address


def told(result: dict[str, Any], kind: str, rank: int) -> dict[str, Any]:
    """The one incident of the fault; other tests may keep this machine busy, which is told as what it is."""
    named = (one for one in result["incidents"] if one["kind"] == kind and one["suspects"])
    (found,) = (one for one in named if one["suspects"][0]["rank"] == rank)
    return found


def found_and_acted_on(
    fault: str, rank: int, kind: str, folder: Path, *more: str, teaches: bool = False
) -> dict[str, Any]:
    keep = folder / "kept"
    words = ("--fault", fault, "--rank", str(rank), "--seed", str(rank), "--keep", str(keep))
    result = demo(folder, *words, *more, teaches=teaches)
    assert set(result) >= KEYS
    assert set(told(result, kind, rank)) >= INCIDENT_KEYS
    assert result["false_alarms"] == 0
    assert all(set(action) >= ACTION_KEYS for action in result["actions"])
    assert result["loss"]["last"] < result["loss"]["first"]
    assert {"metrics.csv", "iterations.csv", "logs.jsonl", "job.toml"} <= {path.name for path in keep.iterdir()}
    assert (keep / "trainwarden-demo-report.html").stat().st_size > 5000
    return result


def test_without_a_fault_nothing_is_reported(quiet_demo: Path) -> None:
    result = json.loads((quiet_demo / "result.json").read_text())
    assert result["fault"] is None
    assert result["false_alarms"] == 0
    # Other tests take the processors: a job that has really become slower by that is told, and why.
    assert [one["reason"] for one in result["incidents"] if "waited for a CPU" not in one["reason"]] == []
    assert result["actions"] == []


def test_observe_only_proposes(tmp_path: Path) -> None:
    result = demo(tmp_path, "--fault", "crash", "--mode", "observe", "--rank", "1", *FEWEST)
    assert {action["outcome"] for action in result["actions"]} == {"proposed"}


def test_the_others_finish_the_step_of_a_killed_rank_and_it_joins_again(tmp_path: Path) -> None:
    result = demo(tmp_path, "--fault", "kill", "--continue", "--rank", "1", *SHORT)
    assert result["actions"] == []
    died, joined = result["transitions"]
    assert (died["gone"], died["ranks"], joined["joined"], joined["ranks"], joined["source"]) == ("1", 2, "1", 3, "0")
    assert died["step"] < joined["step"]
    assert told(result, "crash", 1)["closed_at_s"] is not None
