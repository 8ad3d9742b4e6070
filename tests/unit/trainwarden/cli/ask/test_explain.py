"""`trainwarden explain` on a bus."""

from __future__ import annotations

import json

import pytest

from tests.web_doubles import NOW_S, action, incident, verdict
from trainwarden.bus.embedded.engine import EmbeddedBus
from trainwarden.cli.ask.explain import explain
from trainwarden.errors import ConfigError
from trainwarden.records import Vote
from trainwarden.topics import topic_of


@pytest.fixture
def bus(tmp_path):
    address = f"embedded:{tmp_path}/bus.db"
    bus = EmbeddedBus(f"{tmp_path}/bus.db")
    votes = {"lof": Vote(opinion="abstain", reason="no model")}
    newest = incident(revision=1, state="updated", reason="rank 2 still stands")
    for record in (incident(), newest, action(), verdict(NOW_S, votes, anomalous=True, kind="hang")):
        bus.publish(topic_of(record), "j", record)
    bus.flush()
    bus.close()
    return address


def test_the_newest_revision_with_actions_and_votes(bus, capsys):
    assert explain("i1", bus=bus, json="-") == 0
    out, err = capsys.readouterr()
    told = json.loads(out)
    assert told["what"].endswith("rank 2 still stands")
    assert told["next"][0].startswith("trainwarden actions approve i1/restart_process/1")
    assert "lof abstains: no model" in told["why_not_others"]
    assert "why not others" in err


def test_no_such_incident(bus):
    with pytest.raises(ConfigError, match="no incident 'i9'"):
        explain("i9", bus=bus)
