"""Xids that stand in a recording's metrics alone are told as the events they stand for."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from trainwarden.detectors.logs.rules import load_xids
from trainwarden.detectors.recorded.facts import read_facts
from trainwarden.detectors.recorded.replay import replay
from trainwarden.recorded.folder import read_folder
from trainwarden.records import EventRecord, IncidentRecord
from trainwarden.settings import DetectionSettings

START_S = 1_700_000_000.0
HEADER = "time_s,node,device,DCGM_FI_DEV_XID_ERRORS,gpu_temperature_celsius\n"


def written(folder: Path, codes: dict[str, list[str]], header: str = HEADER, node: str = "n1") -> Path:
    """A row each 10 s for each GPU with the cell of its code; the temperature is always there."""
    rows = [
        f"{START_S + 10 * place},{node},{gpu},{code},{50 + place % 3}\n"
        for gpu, own in codes.items()
        for place, code in enumerate(own)
    ]
    (folder / "metrics.csv").write_text(header + "".join(rows))
    return folder


def told(folder: Path) -> list[tuple[str | None, int, float]]:
    """Device, code and time after the start of each Xid."""
    facts = [fact for fact in read_facts(read_folder(folder)) if isinstance(fact, EventRecord)]
    return [(one.device, int(str(one.fields["xid"])), one.time_s - START_S) for one in facts if one.kind == "xid"]


def incidents(folder: Path) -> list[IncidentRecord]:
    job = read_folder(folder)
    return replay(job, DetectionSettings(), facts=read_facts(job)).incidents


def test_a_new_xid_is_an_incident_of_its_gpu(tmp_path: Path) -> None:
    calm = ["0"] * 60
    written(tmp_path, {"gpu0": calm, "gpu1": ["0"] * 40 + ["79"] * 20, "gpu2": calm})
    (incident,) = incidents(tmp_path)
    assert (incident.kind, incident.severity, incident.onset_s) == ("gpu_lost", "sev1", START_S + 400.0)
    assert [(one.node, one.device) for one in incident.suspects] == [("n1", "gpu1")]
    assert incident.reason.startswith("Xid 79 on gpu1 of n1: the GPU has fallen off the bus")


@pytest.mark.thorough
@pytest.mark.parametrize("code", [13, 31, 43, 45, 48, 63, 74, 79, 94, 95, 106, 109, 119, 121, 140, 154, 999])
def test_kind_and_severity_are_those_of_the_kernel_log(tmp_path: Path, code: int) -> None:
    (tmp_path / "metric").mkdir()
    (tmp_path / "log").mkdir()
    by_metric = incidents(written(tmp_path / "metric", {"gpu0": ["0"] * 30 + [str(code)] * 10}))
    line = f"{START_S + 300.0:.0f} n1 kernel: NVRM: Xid (PCI:0000:3b:00): {code}, pid=1, name=python\n"
    (tmp_path / "log" / "logs.txt").write_text(
        f"{START_S:.0f} n1 kernel: begin\n{line}{START_S + 400:.0f} n1 kernel: x\n"
    )
    by_log = incidents(tmp_path / "log")
    assert [(one.kind, one.severity) for one in by_metric] == [(one.kind, one.severity) for one in by_log]
    xid = load_xids().get(code)
    assert bool(by_metric) == (xid is not None and xid.device_at_fault)


@pytest.mark.parametrize(
    ("codes", "wanted"),
    [
        (["79"] * 10, []),  # of the job before
        (["31"] * 5 + ["79"] * 5, [(79, 50.0)]),
        (["0"] * 3 + ["79"] * 3 + ["0"] + ["79"] * 3, [(79, 30.0), (79, 70.0)]),
        ([""] * 8 + ["79", "79"], [(79, 80.0)]),  # an exporter shows no code before the first
        (["", "", "79", "", "", "79", "", "", "79"], []),  # sampled more seldom than the others
        (["0", "", "nan", "79"], [(79, 30.0)]),
        (["0", "79.5", "-79", "1e9", "inf", "0"], []),
        (["48"] + [""] * 8 + ["48"], []),
    ],
)
def test_a_change_is_news_and_what_was_there_is_not(
    tmp_path: Path, codes: list[str], wanted: list[tuple[int, float]]
) -> None:
    assert told(written(tmp_path, {"gpu0": codes})) == [("gpu0", *one) for one in wanted]


def test_an_event_that_the_recording_has_itself_is_not_told_twice(tmp_path: Path) -> None:
    written(tmp_path, {"gpu0": ["0"] * 5 + ["79"] * 5})
    own = EventRecord(
        id="xid/1", job="j", node="n1", time_s=START_S + 44.0, kind="xid", device="GPU-5b2c", fields={"xid": 79}
    )
    (tmp_path / "events.jsonl").write_bytes(msgspec.json.encode(own) + b"\n")
    assert told(tmp_path) == [("GPU-5b2c", 79, 44.0)]


def test_a_gpu_of_which_only_the_rank_is_known_is_named_by_it(tmp_path: Path) -> None:
    rows = [
        f"{START_S + 10 * place},{rank},{79 * (rank == 2 and place > 4)}\n" for place in range(9) for rank in (1, 2)
    ]
    (tmp_path / "metrics.csv").write_text("time_s,rank,gpu_xid_state\n" + "".join(rows))
    (incident,) = incidents(tmp_path)
    assert [(one.node, one.device, one.rank) for one in incident.suspects] == [(None, None, 2)]
