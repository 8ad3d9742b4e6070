"""Silences said and ended from the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trainwarden.bus.embedded.engine import EmbeddedBus
from trainwarden.cli.ask.silences import silences
from trainwarden.commands.silences import Silences
from trainwarden.errors import ConfigError
from trainwarden.records import CommandRecord, IncidentRecord, Suspect
from trainwarden.topics import COMMANDS

NODE_LOST = IncidentRecord(
    id="i", job="j", kind="node_lost", severity="sev1", state="opened", revision=0, opened_at_s=1.0, updated_at_s=1.0,
    reason="r", suspects=(Suspect(score=1.0, reason="r", node="node-7"),),
)  # fmt: skip


@pytest.fixture
def address(tmp_path: Path) -> str:
    bus = EmbeddedBus(str(tmp_path / "bus.db"))
    bus.close()
    return f"embedded:{tmp_path / 'bus.db'}"


def answer(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


def heard(address: str) -> Silences:
    """What an engine makes of it."""
    bus, known = EmbeddedBus(address.partition(":")[2]), Silences()
    for message in bus.read(COMMANDS):
        assert isinstance(message.record, CommandRecord)
        known.apply(message.record, message.offset)
    bus.close()
    return known


def test_a_maintenance_window_is_added_listed_and_ended(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert silences("add", node="node-7", lasts="2h", bus=address, json="-") == 0
    said = answer(capsys)["silence"]
    assert (said["node"], said["kind"], said["job"]) == ("node-7", None, None)
    assert said["until_s"] == pytest.approx(said["at_s"] + 7_200.0)
    silence = heard(address).over(NODE_LOST, said["at_s"] + 7_199.0)
    assert silence is not None
    assert silence.by == said["by"]

    assert silences(bus=address, json="-") == 0
    assert [one["id"] for one in answer(capsys)["silences"]] == [said["id"]]

    assert silences("end", node="node-7", bus=address) == 0
    assert heard(address).over(NODE_LOST, said["at_s"] + 60.0) is None
    capsys.readouterr()
    assert silences(bus=address, json="-") == 0
    assert answer(capsys)["silences"] == []


def test_a_silence_of_one_job_and_kind(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert silences("add", job="j", kind="node_lost", lasts="30m", bus=address) == 0
    assert "silence of job j, kind node_lost until 2" in capsys.readouterr().out
    assert heard(address).over(NODE_LOST, 0.0) is not None
    assert silences("add", node="node-7", lasts="30m", bus=address) == 0
    capsys.readouterr()
    assert silences(bus=address, job="other", json="-") == 0
    assert [one["node"] for one in answer(capsys)["silences"]] == ["node-7"]  # of all jobs, so of this one


@pytest.mark.parametrize(
    ("word", "options", "said"),
    [
        ("add", {"lasts": "2h"}, "of which --job, --kind or --node"),
        ("end", {}, "of which --job, --kind or --node"),
        ("add", {"node": "n"}, "--for says how long, 30d at most"),
        ("add", {"node": "n", "lasts": "31d"}, "--for says how long, 30d at most"),
        ("add", {"node": "n", "lasts": "soon"}, "'soon' is no length of time"),
        ("end", {"node": "n", "lasts": "1h"}, "--for is of add"),
        ("end", {"node": "n"}, "no silence is of node n"),
    ],
)
def test_mistakes(address: str, word: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        silences(word, bus=address, **options)
    assert heard(address).standing(0.0) == []
