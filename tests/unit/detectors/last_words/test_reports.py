"""Excerpts that public reports quote: the answers were written before the program was run (tests/data/reports)."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.unit.detectors.last_words.judged import answered
from trainwarden.detectors.recorded.facts import read_facts
from trainwarden.detectors.recorded.replay import replay
from trainwarden.formats.reading import read_job
from trainwarden.settings import DetectionSettings

FOLDER = Path(__file__).parents[3] / "data" / "reports"
REPORTS = [
    report for file in sorted(FOLDER.glob("*.toml")) for report in tomllib.loads(file.read_text("utf-8"))["report"]
]
TABLES = FOLDER.with_name("tables")
ANSWERS = tomllib.loads((TABLES / "answers.toml").read_text("utf-8"))["table"]
FEWEST = 310
LAST = ("rank", "node", "device")


def names(report: dict[str, Any]) -> str:
    return str(report["id"])


@pytest.mark.parametrize("report", [one for one in REPORTS if "missed" not in one], ids=names)
def test_an_excerpt_of_a_report_is_answered_rightly(tmp_path: Path, report: dict[str, Any]) -> None:
    lines = report["log"].strip("\n").split("\n")
    answer, incidents = answered(tmp_path, report.get("file", "logs.txt"), lines)
    if not report["right"]:
        assert not incidents, [(one.kind, one.reason) for one in incidents]
        assert answer == report.get("answer", answer)
        return
    (incident,) = incidents
    assert incident.kind in report["right"], incident.reason
    suspect = incident.suspects[0] if incident.suspects else None
    said = {name: getattr(suspect, name, None) for name in LAST}
    expected = {name: report[name] for name in LAST if name in report}
    if said["rank"] not in report.get("rank_in", ()) and "any_rank" not in report:
        expected.setdefault("rank", None)
    assert {name: said[name] for name in expected} == expected, incident.reason


@pytest.mark.thorough
@pytest.mark.parametrize("table", [one for one in ANSWERS if "missed" not in one], ids=names)
def test_a_table_of_a_programs_form_is_answered_rightly(table: dict[str, Any]) -> None:
    job = read_job(TABLES / table["id"])
    incidents = replay(job, DetectionSettings(), facts=read_facts(job)).incidents
    assert [one.kind for one in incidents] in ([[kind] for kind in table["right"]] or [[]])
    for name in ("device", "node"):
        assert name not in table or getattr(incidents[0].suspects[0], name) == table[name]


def test_the_excerpts_are_many_and_have_a_source_each() -> None:
    assert len(REPORTS) >= FEWEST
    assert len({report["id"] for report in REPORTS}) == len(REPORTS)
    assert all(report["source"].startswith("https://") for report in REPORTS)


def test_a_text_of_no_known_form_proves_a_devices_fault_and_none_of_a_program(tmp_path: Path) -> None:
    answer, incidents = answered(
        tmp_path, "notes.txt", ["ls: cannot access 'x': No such file or directory", "and so on"]
    )
    assert (answer, incidents) == ("not judged", [])
    line = "  3 | 05/20/26 | 14:40:07 UTC | Critical Interrupt #0xa1 | Bus Fatal Error | Asserted"
    answer, (incident,) = answered(tmp_path, "list.txt", ["  1 | Pre-Init | something", line])
    assert (answer, incident.kind) == ("incident", "pcie_error")
