"""A kind of event that nobody of ours knows goes through agent, bus, archive and replay as it came."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.archive_doubles import NOON_S, Log, Service
from tests.unit.detectors.detection_streams import Job, Run
from trainwarden import plugins
from trainwarden.bus.embedded.engine import EmbeddedBus
from trainwarden.collectors.agent.spool import frame, next_frame, pair
from trainwarden.detectors.recorded.facts import read_facts
from trainwarden.detectors.recorded.replay import replay
from trainwarden.errors import ConfigError, RecordError
from trainwarden.recorded.folder import read_folder
from trainwarden.records import EVENT_KINDS, EventRecord
from trainwarden.settings import DetectionSettings
from trainwarden.topics import EVENTS, fields_as
from trainwarden.trainer_offline.archive.export import export


class Tripped(msgspec.Struct):
    """What a third party's event says."""

    celsius: float
    zone: str


FOREIGN = EventRecord(
    id="e1", job="job", node="node0", time_s=NOON_S, kind="rackside.zone_tripped", rank=1, device="zone:a",
    fields=msgspec.to_builtins(Tripped(97.5, "a")),
)  # fmt: skip


def test_on_the_wire_and_in_the_agents_spool() -> None:
    assert FOREIGN.kind not in EVENT_KINDS
    assert EVENTS.decode(EVENTS.encode(FOREIGN)) == FOREIGN
    payload, _ = next_frame(frame("job", FOREIGN), 0)
    assert payload is not None
    assert pair(payload) == ("job", FOREIGN)


@pytest.mark.parametrize("kind", ["", "x" * 65])
def test_what_is_no_name_is_no_kind(kind: str) -> None:
    with pytest.raises(RecordError, match="kind"):
        EVENTS.decode(msgspec.json.encode(msgspec.to_builtins(FOREIGN) | {"type": "event", "kind": kind}))


@pytest.mark.parametrize("kind", ["no such kind", "Rackside.tripped", ".tripped", "rackside."])
def test_what_is_no_name_cannot_be_declared(kind: str) -> None:
    plugin = type("Rackside", (), {"events": {kind: Tripped}})
    with pytest.raises(ConfigError, match="is no name for a kind of event"):
        plugins.admit(plugin, "collector rackside")


def test_its_fields_are_typed_where_somebody_knows_them() -> None:
    assert fields_as(FOREIGN, Tripped) == Tripped(97.5, "a")
    with pytest.raises(RecordError, match=r"event e1 of kind rackside\.zone_tripped: .*celsius"):
        fields_as(msgspec.structs.replace(FOREIGN, fields={"celsius": "hot", "zone": "a"}), Tripped)


def test_over_the_bus(tmp_path: Path) -> None:
    bus = EmbeddedBus(str(tmp_path / "bus.db"))
    bus.publish(EVENTS, "job", FOREIGN)
    bus.flush()
    assert [message.record for message in bus.read(EVENTS)] == [FOREIGN]
    bus.close()


@pytest.mark.thorough
def test_archive_export_and_replay(tmp_path: Path) -> None:
    log = Log()
    log.put(FOREIGN)
    service = Service(log, tmp_path / "archive")
    service.rounds(3)
    service.handler.finish()
    service.handler.close()
    export(tmp_path / "archive", "job", tmp_path / "out")
    job = read_folder(tmp_path / "out")
    assert read_facts(job) == [FOREIGN]
    assert replay(job, DetectionSettings(), facts=read_facts(job)).incidents == []


def test_the_detection_service_lives_with_it() -> None:
    job = Job().run(10)
    assert Run().play(job.add(job.end_s, FOREIGN).records, job.end_s + 2.0).revisions == []
