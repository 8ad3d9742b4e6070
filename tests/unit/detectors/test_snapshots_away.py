"""A detection service whose snapshots are away, or were written by another version."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.doubles import metric_value
from tests.unit.detectors.detection_streams import RememberingBus, Run
from trainwarden.detectors.job.packed import pack, unpack
from trainwarden.detectors.service import DetectionHandler
from trainwarden.detectors.snapshots import newest, parts_of
from trainwarden.detectors.testing.streams import JOB, START_S, Job
from trainwarden.errors import BusUnavailable
from trainwarden.protocols import Bus, Consumer
from trainwarden.records import SnapshotRecord
from trainwarden.settings import DetectionSettings
from trainwarden.topics import INCIDENTS, SNAPSHOTS, Topic

SHORT = DetectionSettings(rewind_s=5.0)  # what is read again without a snapshot holds nothing but slow steps
pytestmark = pytest.mark.thorough


def slow_job() -> Job:
    return Job(slow=lambda rank, step: 2.0 if rank == 1 and step >= 60 else 1.0).run(220)


def later_version(bus: RememberingBus) -> None:
    """Put in the place of each snapshot what another version might keep: whole, with other parts in it."""
    (snapshot,) = newest(bus, {0}, 0.0).snapshots.values()  # type: ignore[arg-type]
    kind = msgspec.msgpack.decode(snapshot.kept[4:])["kind"]
    plain, _ = unpack(kind, snapshot.kept)
    plain = {"later": {"tables": 3}} | {name: value for name, value in plain.items() if name != "joiner"}
    bus.outputs = [record for record in bus.outputs if not isinstance(record, SnapshotRecord)]
    bus.outputs += [record for _, record in parts_of(JOB, snapshot.number + 1, snapshot.place, pack(kind, plain))]


def test_a_snapshot_of_another_version_is_refused_counted_and_nothing_is_passed_over() -> None:
    job = slow_job()
    settings = DetectionSettings(rewind_s=3600.0)
    first = Run(settings).play(job.records, START_S + 60.0)
    later_version(first.bus)
    second = first.begin_again(START_S + 60.5)
    assert metric_value(second.metrics, "snapshots_refused_total") == 1.0
    second.play([entry for entry in job.records if entry[0] > START_S + 60.5], job.end_s)
    assert [(one.kind, one.state != "closed") for one in second.incidents] == [("slow_compute", True)]


def test_a_record_of_a_later_schema_is_read_as_far_as_it_is_known() -> None:
    record = SnapshotRecord(
        job="j", number=1, part=0, parts=1, partition=0, positions={}, floors={}, digest="d", value=b"v"
    )
    raw = msgspec.json.decode(SNAPSHOTS.encode(record)) | {"schema_version": 99, "later": [1, 2]}
    found = SNAPSHOTS.decode(msgspec.json.encode(raw))
    assert (found.schema_version, found.value) == (99, b"v")


@pytest.mark.parametrize("away", [INCIDENTS, SNAPSHOTS])
def test_a_bus_that_is_away_while_memory_is_given_back_costs_none_of_it(
    away: Topic[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = slow_job()
    first = Run(SHORT).play(job.records, START_S + 70.0)
    (incident,) = first.incidents
    start, read = DetectionHandler.start, first.bus.read
    tries: list[int] = []

    def read_later(topic: Topic[Any], **more: Any) -> Any:
        if topic is away and len(tries) < 3:
            tries.append(len(tries))
            raise BusUnavailable("away")
        return read(topic, **more)

    def start_again(self: DetectionHandler, bus: Bus, consumer: Consumer) -> None:
        for _ in range(3):  # the service loop tries again with each round
            with pytest.raises(BusUnavailable):
                start(self, bus, consumer)
        start(self, bus, consumer)

    monkeypatch.setattr(first.bus, "read", read_later)
    monkeypatch.setattr(DetectionHandler, "start", start_again)
    second = first.begin_again(START_S + 71.0)
    second.play([entry for entry in job.records if entry[0] > START_S + 71.0], job.end_s)
    assert [(one.id, one.state != "closed") for one in second.incidents] == [(incident.id, True)]
    assert metric_value(second.metrics, "snapshots_refused_total") == 0.0
