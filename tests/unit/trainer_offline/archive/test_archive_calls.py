"""Collective calls and models of devices in the archive, and archives from before it held either."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyarrow import parquet

from tests.archive_doubles import (
    NOON_S,
    Service,
    archived,
    calls_record,
    expected,
    metrics_record,
    present,
    steps_record,
)
from trainwarden.bus.embedded.engine import EmbeddedBus
from trainwarden.detectors.recorded.grids import RecordedSamples
from trainwarden.recorded.cut import between
from trainwarden.recorded.folder import read_folder
from trainwarden.recorded.writing import write_recording
from trainwarden.records import CollectivesRecord, MetricsRecord, Record
from trainwarden.topics import topic_of
from trainwarden.trainer_offline.archive import maintenance
from trainwarden.trainer_offline.archive.export import export
from trainwarden.trainer_offline.archive.reader import batches, jobs


def aged(root: Path) -> None:
    """Make of an archive one of before: no calls, no models."""
    shutil.rmtree(root / "collectives")
    for path in root.glob("metrics/**/*.parquet"):
        table = parquet.ParquetFile(str(path)).read()
        parquet.write_table(table.drop_columns(["model"]), path)


def test_an_archive_of_before_is_read_exported_joined_and_added_to(tmp_path):
    root = tmp_path / "archive"
    log = archived([make(number) for number in range(4) for make in (metrics_record, steps_record, calls_record)], root)
    aged(root)
    for place in [place for place in log.messages if "collectives" in place[0]]:
        del log.messages[place], log.committed[place]
    assert {name for batch in batches(root, "metrics", "j") for name in batch.column("model").to_pylist()} == {None}
    assert list(batches(root, "collectives", "j")) == []
    export(root, "j", tmp_path / "before")
    assert read_folder(tmp_path / "before").metrics.models == ()
    assert not (tmp_path / "before" / "collectives.parquet").exists()
    for number in range(4, 8):
        for make in (metrics_record, steps_record, calls_record):
            log.put(make(number))
    service = Service(log, root)
    service.rounds(10)
    service.handler.finish()
    service.handler.close()
    assert present(root) == expected(log)
    maintenance.compact(root, {}, NOON_S)
    assert present(root) == expected(log)
    assert set(jobs(root)[0].topics) == {"metrics", "iterations", "collectives"}
    export(root, "j", tmp_path / "after")
    job = read_folder(tmp_path / "after")
    of_device = dict(zip(zip(job.metrics.nodes, job.metrics.devices, strict=True), job.metrics.models, strict=True))
    assert of_device == {("n0", "gpu0"): "H200", ("n0", "gpu1"): "", ("n1", "gpu0"): "H200", ("n1", "gpu1"): ""}
    assert job.collectives.step.tolist() == [4, 4, 5, 5, 7, 7]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"functions": ("AllReduce",)}, "the functions of a collectives record are 1, not 2"),
        ({"of": (0, 2)}, "of a communicator that it does not name"),
        ({"of": (-1, 0)}, "of a communicator that it does not name"),
        ({"sizes": (2,)}, "the sizes of a collectives record are 1, not 2"),
        ({"places": ()}, "the places of a collectives record are 0, not 2"),
        ({"seqs": (0, 1 << 70)}, ""),
    ],
)
def test_calls_that_contradict_themselves_go_to_dead_letters(changes: dict[str, Any], said, tmp_path):
    good = calls_record(1)
    fields = {name: getattr(good, name) for name in good.__struct_fields__ if name != "schema_version"}
    log = archived([CollectivesRecord(**fields | changes), calls_record(2)], tmp_path)
    (letter,) = log.letters
    assert said in letter.reason  # type: ignore[attr-defined]
    assert sum(present(tmp_path).values()) == 2


def mixed_fleet() -> list[Record]:
    """Two nodes whose GPUs are of different models."""
    return [
        MetricsRecord(
            job="j", node=f"n{node}", time_s=NOON_S + tick, devices=("gpu0", "gpu1"), names=("gpu_power_watts",),
            values=((300.0 + node, 301.0),), models=(("H200", "B200")[node],) * 2,
        )
        for tick in range(3)
        for node in range(2)
    ]  # fmt: skip


@pytest.mark.parametrize("by", ["archive", "bus"])
def test_devices_are_compared_with_those_of_their_model_as_live(by, tmp_path):
    if by == "archive":
        archived(mixed_fleet(), tmp_path / "archive")
        export(tmp_path / "archive", "j", tmp_path / "job")
    else:
        bus = EmbeddedBus(str(tmp_path / "bus.db"))
        for record in mixed_fleet():
            bus.publish(topic_of(record), "j", record)
        bus.flush()
        assert write_recording(bus, "j", tmp_path / "job") == 12
        bus.close()
    job = read_folder(tmp_path / "job")
    for part in (job, between(job, NOON_S, NOON_S + 1.0)):
        samples = RecordedSamples.of(part)
        samples.until_s = np.inf
        (family,) = samples.pop_new()
        found = {(who.node, role) for who, role in zip(family.entities, family.roles, strict=True)}
        assert found == {("n0", "H200"), ("n1", "B200")}


def test_calls_whose_columns_do_not_fit_are_left_out_of_a_recording(tmp_path):
    bus = EmbeddedBus(str(tmp_path / "bus.db"))
    for record in (calls_record(1), CollectivesRecord(
        job="j", node="n", rank=1, incarnation="1", time_s=NOON_S, comms=("c0",), places=(1,), of=(0,), seqs=(1, 2),
    )):  # fmt: skip
        bus.publish(topic_of(record), "j", record)
    bus.flush()
    write_recording(bus, "j", tmp_path / "job")
    bus.close()
    table = read_folder(tmp_path / "job").collectives
    assert (table.rank.tolist(), table.peer.tolist()) == ([0, 0], [-1, -1])
    assert sorted(table.call_bytes.tolist()) == [4096, 1 << 40]
