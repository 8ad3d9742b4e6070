"""What clouds measure of storage and machines: what stays at a limit, is spent or fails its check is told, once."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.unit.trainwarden.formats.answers import Suspects, answer_to

T0, EVERY_S, SAMPLES = 1_790_000_000, 60, 40


def stamp(place: int) -> str:
    return datetime.fromtimestamp(T0 + EVERY_S * place, UTC).isoformat()


def data(series: Mapping[str, Sequence[float]]) -> str:
    """As `get-metric-data` answers, newest first."""
    results = [{"Id": f"m{place}", "Label": label, "StatusCode": "Complete",
                "Timestamps": [stamp(number) for number in reversed(range(len(values)))], "Values": values[::-1]}
               for place, (label, values) in enumerate(series.items())]  # fmt: skip
    return json.dumps({"MetricDataResults": results, "Messages": []}, indent=1)


def statistics(label: str, values: Sequence[float]) -> str:
    """As `get-metric-statistics` answers, in no order."""
    points = [{"Timestamp": stamp(place), "Average": value, "Unit": "Percent"} for place, value in enumerate(values)]
    return json.dumps({"Label": label, "Datapoints": points[1::2] + points[::2]})


def azure(metric: str, values: Sequence[float]) -> str:
    machine = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/virtualMachines/gpu-7/providers/x"
    points = [{"timeStamp": stamp(place), "average": value} for place, value in enumerate(values)]
    series = [{"metadatavalues": [], "data": points}]
    return json.dumps({"cost": 1, "value": [{"id": machine, "name": {"value": metric}, "timeseries": series}]})


def google(metric: str, values: Sequence[float]) -> str:
    points = [{"interval": {"startTime": stamp(place), "endTime": stamp(place)}, "value": {"doubleValue": value}}
              for place, value in enumerate(values)]  # fmt: skip
    resource: dict[str, Any] = {"type": "filestore_instance", "labels": {"instance_name": "shared"}}
    series = {"metric": {"type": metric, "labels": {}}, "resource": resource, "points": points}
    return json.dumps({"timeSeries": [series]})


def turns(before: float, after: float, at: int = 20, until: int = SAMPLES) -> list[float]:
    return [after if at <= place < until else before for place in range(SAMPLES)]


NOBODY: Suspects = [(None, None, None)]
STORAGE = ("incident", [("storage", NOBODY)])


@pytest.mark.parametrize(
    ("metric", "sound", "bad"),
    [
        ("PercentIOLimit", 60.0, 100.0), ("BurstCreditBalance", 2e12, 0.0), ("BurstBalance", 90.0, 0.0),
        ("FileServerDiskThroughputUtilization", 40.0, 100.0), ("FreeDataStorageCapacity", 1e12, 0.0),
        ("VolumeStalledIOCheck", 0.0, 1.0),
    ],
)  # fmt: skip
def test_storage_that_stays_at_its_limit_or_is_spent_is_told(tmp_path: Path, metric: str, sound: float, bad: float):
    label = f"fs-0a1b2c3d {metric}"
    assert answer_to(tmp_path / "bad", {"q.json": data({label: turns(sound, bad)})}) == STORAGE
    assert answer_to(tmp_path / "one", {"q.json": statistics(metric, turns(sound, bad))}) == STORAGE
    assert answer_to(tmp_path / "well", {"q.json": data({label: turns(sound, sound)})}) == ("healthy", [])
    assert answer_to(tmp_path / "well1", {"q.json": statistics(metric, turns(sound, sound))}) == ("healthy", [])


def test_a_limit_that_a_checkpoint_reaches_for_minutes_is_none(tmp_path: Path):
    short = {"fs-0a1b2c3d PercentIOLimit": turns(30.0, 100.0, 20, 25)}
    assert answer_to(tmp_path, {"q.json": data(short)}) == ("healthy", [])


def test_the_machine_whose_checks_fail_is_named_once_among_others(tmp_path: Path):
    checks = {f"i-0{name} StatusCheckFailed": turns(0.0, 0.0) for name in ("aaa1", "ccc3")}
    bad = {"i-0bbb2 StatusCheckFailed": turns(0.0, 1.0), "i-0bbb2 StatusCheckFailed_System": turns(0.0, 1.0)}
    lost = ("incident", [("node_lost", [(None, "i-0bbb2", None)])])
    assert answer_to(tmp_path / "one", {"q.json": data({**checks, **bad})}) == lost
    assert answer_to(tmp_path / "well", {"q.json": data(checks)}) == ("healthy", [])
    once = {**checks, "i-0bbb2 StatusCheckFailed": turns(0.0, 1.0, 20, 21)}
    assert answer_to(tmp_path / "once", {"q.json": data(once)}) == ("healthy", [])
    files = {"i-0bbb2.json": statistics("StatusCheckFailed", turns(0.0, 1.0)), "i-0aaa1.json": statistics(
        "StatusCheckFailed", turns(0.0, 0.0))}  # fmt: skip
    assert answer_to(tmp_path / "files", files) == lost


def test_metrics_of_gpus_in_the_same_answer_are_judged_too(tmp_path: Path):
    gpus = {f"nvidia_smi_temperature_gpu i-0aaa1 {gpu}": turns(60.0, 96.0 if gpu == 2 else 60.0) for gpu in range(4)}
    told = answer_to(tmp_path, {"q.json": data({"vol-0abc BurstBalance": turns(90.0, 90.0), **gpus})})
    assert told == ("incident", [("gpu_throttle", [(None, "i-0aaa1", "gpu2")])])


def test_what_has_no_limit_is_not_judged(tmp_path: Path):
    assert (
        answer_to(tmp_path / "q", {"q.json": data({"vol-0abc VolumeQueueLength": turns(1.0, 64.0)})})[0] == "not judged"
    )
    assert answer_to(tmp_path / "one", {"q.json": data({"fs-0a1b2c3d PercentIOLimit": [100.0]})})[0] == "not judged"
    assert answer_to(tmp_path / "cut", {"q.json": data({"fs-0a1b2c3d PercentIOLimit": turns(9, 100)})[:300]})[1] == []


def test_azure_and_google_are_read_alike(tmp_path: Path):
    lost = ("incident", [("node_lost", [(None, "gpu-7", None)])])
    assert answer_to(tmp_path / "a", {"a.json": azure("VmAvailabilityMetric", turns(1.0, 0.0))}) == lost
    assert answer_to(tmp_path / "b", {"b.json": azure("VmAvailabilityMetric", turns(1.0, 1.0))}) == ("healthy", [])
    used = "file.googleapis.com/nfs/server/used_bytes_percent"
    assert answer_to(tmp_path / "g", {"g.json": google(used, turns(70.0, 100.0))}) == STORAGE
    assert answer_to(tmp_path / "h", {"h.json": google(used, turns(70.0, 80.0))}) == ("healthy", [])
