"""Links that went down and GPUs that fell silent in a recording's metrics are told as the events they stand for."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from trainwarden.detectors.recorded.facts import read_facts
from trainwarden.detectors.recorded.replay import replay
from trainwarden.recorded.folder import read_folder
from trainwarden.records import EventRecord, IncidentRecord
from trainwarden.settings import DetectionSettings

START_S = 1_700_000_000.0
IB = "node_infiniband_state_id"


def written(folder: Path, cells: dict[str, list[str]], metric: str = IB, every_s: int = 10) -> Path:
    """A row each `every_s` for each device with its cell; where the cell is ``-`` there is no row."""
    rows = [
        f"{START_S + every_s * place},n1,{device},{cell}\n"
        for device, own in cells.items()
        for place, cell in enumerate(own)
        if cell != "-"
    ]
    (folder / "metrics.csv").write_text(f"time_s,node,device,{metric}\n" + "".join(rows))
    return folder


def told(folder: Path) -> list[tuple[str, str | None, float]]:
    """Kind, device and time after the start of each event."""
    facts = [fact for fact in read_facts(read_folder(folder)) if isinstance(fact, EventRecord)]
    return [(one.kind, one.device, one.time_s - START_S) for one in facts]


def incidents(folder: Path) -> list[IncidentRecord]:
    job = read_folder(folder)
    return replay(job, DetectionSettings(), facts=read_facts(job)).incidents


@pytest.mark.parametrize(
    ("states", "wanted"),
    [
        (["4"] * 3 + ["1"] * 3, [("link_down", 30.0)]),
        (["4", "1", "1", "4"], [("link_down", 10.0), ("link_up", 30.0)]),
        (["4", "", "2", "4"], [("link_down", 20.0), ("link_up", 30.0)]),
        (["1"] * 6, []),  # no cable
        (["1", "2", "4", "4"], []),  # it came up
        (["4"] * 6, []),
        (["4", "4", "", ""], []),  # not measured any more
    ],
)
def test_a_link_that_changes_is_an_event(tmp_path: Path, states: list[str], wanted: list[tuple[str, float]]) -> None:
    assert told(written(tmp_path, {"mlx5_0:1": states})) == [(kind, "mlx5_0:1", time_s) for kind, time_s in wanted]


def test_ethernet_has_another_word_for_up_and_interfaces_without_cable_are_nothing(tmp_path: Path) -> None:
    down = ["1", "1", "0"]
    found = told(written(tmp_path, {"eth0": down, "veth12": down, "docker0": down}, metric="node_network_up"))
    assert found == [("link_down", "eth0", 20.0)]


def test_a_link_that_goes_down_is_an_incident_of_its_port_until_it_is_up(tmp_path: Path) -> None:
    written(tmp_path, {"mlx5_0:1": ["4"] * 60, "mlx5_1:1": ["4"] * 20 + ["1"] * 20 + ["4"] * 20})
    (incident,) = incidents(tmp_path)
    assert (incident.kind, incident.severity, incident.onset_s) == ("nic_down", "sev2", START_S + 200.0)
    assert [(one.node, one.device) for one in incident.suspects] == [("n1", "mlx5_1:1")]
    assert incident.closed_at_s is not None


def test_a_gpu_that_falls_silent_beside_others_is_lost_and_known_so_a_minute_later(tmp_path: Path) -> None:
    written(tmp_path, {"0": ["50"] * 60, "1": ["50"] * 30 + ["-"] * 30}, metric="gpu_temperature_celsius")
    (incident,) = incidents(tmp_path)
    assert (incident.kind, incident.severity, incident.onset_s) == ("gpu_lost", "sev1", START_S + 300.0)
    assert incident.opened_at_s == START_S + 290.0 + 60.0  # nothing depends on what comes later
    assert [(one.node, one.device) for one in incident.suspects] == [("n1", "1")]


@pytest.mark.parametrize(
    ("cells", "every_s"),
    [
        ({"0": ["50"] * 60, "1": ["50"] * 55 + ["-"] * 5}, 10),  # not for long
        ({"0": ["50"] * 60, "1": ["50"] * 57 + ["-"] * 3}, 60),  # not for four samples
        ({"0": ["50"] * 60, "1": ["50"] * 20 + ["-"] * 35 + ["50"] * 5}, 10),  # a gap
        ({"0": ["50"] * 30, "1": ["50"] * 30}, 10),
    ],
)
def test_who_is_heard_again_or_not_missed_for_long_is_not_lost(
    tmp_path: Path, cells: dict[str, list[str]], every_s: int
) -> None:
    assert told(written(tmp_path, cells, metric="gpu_temperature_celsius", every_s=every_s)) == []


def test_hosts_and_ports_that_fall_silent_accuse_nobody(tmp_path: Path) -> None:
    written(tmp_path, {"host": ["5"] * 60, "disk": ["5"] * 30 + ["-"] * 30}, metric="node_load1")
    assert told(tmp_path) == []


def test_an_event_that_the_recording_has_itself_is_not_told_twice(tmp_path: Path) -> None:
    written(tmp_path, {"mlx5_0:1": ["4"] * 5 + ["1"] * 5})
    own = EventRecord(id="1", job="j", node="n1", time_s=START_S + 44.0, kind="link_down", device="mlx5_0:1")
    (tmp_path / "events.jsonl").write_bytes(msgspec.json.encode(own) + b"\n")
    assert told(tmp_path) == [("link_down", "mlx5_0:1", 44.0)]


@pytest.mark.parametrize(("since", "onset_s"), [(20.0, 20.0), ("x", 80.0), (1e300, 80.0), (-1e300, 80.0), (90, 80.0)])
def test_an_onset_that_an_event_tells_is_believed_within_reason(
    tmp_path: Path, since: float | str, onset_s: float
) -> None:
    written(tmp_path, {"0": ["50"] * 20}, metric="gpu_temperature_celsius")
    fields = {"since_s": START_S + since if isinstance(since, float | int) else since}
    own = EventRecord(id="1", job="j", node="n1", time_s=START_S + 80.0, kind="device_lost", device="0", fields=fields)
    (tmp_path / "events.jsonl").write_bytes(msgspec.json.encode(own) + b"\n")
    (incident,) = incidents(tmp_path)
    assert incident.onset_s == START_S + onset_s
