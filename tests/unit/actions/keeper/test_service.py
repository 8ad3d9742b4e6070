"""The service around a keeper: what it tells Prometheus, and when it does not start."""

from __future__ import annotations

import pytest

from tests.doubles import ManualClock
from tests.keeper_doubles import content, write_shard
from trainwarden.actions.keeper.service import KeeperService
from trainwarden.checkpoint.shard import Facts, Id
from trainwarden.errors import ConfigError
from trainwarden.self_metrics import SelfMetrics


def service(tmp_path, **options) -> KeeperService:
    settings = {"job": "j", "node": "a", "ring": {}, "tls": None, "memory": str(tmp_path / "memory")} | options
    return KeeperService(clock=ManualClock(), metrics=SelfMetrics("keeper"), store=tmp_path / "store", **settings)


def test_prometheus_is_told_what_is_durable_and_what_was_skipped(tmp_path):
    made = service(tmp_path)
    slots = made.keeper.slots
    for step in (10, 20):
        id_ = Id(0, step)
        write_shard(slots, Facts("j", id_, 0, 1, "world 1", float(step)), content(id_, 0, 500))
    slots.write_note("trainer-0.json", {"late": 3, "memory": "x"})
    for _ in range(2):
        made.round()

    def told(name: str, **labels: str) -> float | None:
        return made._metrics.registry.get_sample_value(f"trainwarden_keeper_{name}", {"training_job": "j", **labels})

    assert told("durable_timestamp_seconds") == 20.0
    assert told("flushed_total") == 1.0
    assert told("skipped_saves", reason="late") == 3.0
    assert told("interval_seconds") is None  # one node alone replicates nothing, and nobody is alarmed by that
    assert made.listed()["if_lost"]["all nodes"]["step"] == 20


def test_what_would_be_lost_of_a_folders_files_is_what_the_store_lacks(tmp_path):
    made = service(tmp_path, folder=True)
    assert made.folder is not None
    made.folder.fill("first")
    assert made.listed()["if_lost"]["all nodes"] is None
    (made.folder.path / "step-10").mkdir()
    (made.folder.path / "step-10" / ".metadata").write_bytes(b"m")
    for _ in range(3):
        made.round()
    listed = made.listed()
    assert listed["job"] == "j/files"
    assert [(row["step"], row["tier"], row["complete"]) for row in listed["checkpoints"]] == [(10, "memory", True)]
    assert listed["if_lost"]["all nodes"]["step"] == 10
    assert listed["if_lost"]["a node"]["step"] == 10
    assert made._metrics.registry.get_sample_value(
        "trainwarden_keeper_durable_timestamp_seconds", {"training_job": "j/files"}
    )


def test_a_second_keeper_of_the_job_is_refused(tmp_path):
    first = service(tmp_path)
    with pytest.raises(ConfigError, match="runs on this node already"):
        service(tmp_path)
    assert first.keeper.node == "a"


@pytest.mark.parametrize("ring", [{"b": ("127.0.0.1", 1)}, {"a": ("127.0.0.1", 1), "b": ("127.0.0.1", 2)}])
def test_a_ring_names_this_node_and_speaks_tls(tmp_path, ring):
    with pytest.raises(ConfigError, match=r"--ring: it does not name|--tls-ca: other nodes"):
        service(tmp_path, ring=ring)
