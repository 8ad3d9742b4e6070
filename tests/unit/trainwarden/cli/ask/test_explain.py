"""`trainwarden explain` on a bus."""

from __future__ import annotations

import json
import time

import msgspec
import pytest

from tests.web_doubles import NOW_S, action, incident, verdict
from trainwarden.bus.embedded.engine import EmbeddedBus
from trainwarden.cli.ask.explain import explain, shown
from trainwarden.cli.ask.incidents import incidents
from trainwarden.cli.shared import kept_runs
from trainwarden.dashboards.explain.explanation import Explanation
from trainwarden.errors import ConfigError
from trainwarden.records import Vote
from trainwarden.settings import RunsSettings
from trainwarden.topics import topic_of

REAL_GMTIME = time.gmtime


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


def test_the_remedies_are_told_with_the_time_that_each_may_take(bus, capsys, tmp_path):
    """Those of the shipped table, or of an operator's own."""
    assert explain("i1", bus=bus, json="-") == 0
    out, err = capsys.readouterr()
    told = json.loads(out)["remedies"]
    assert told == [
        "sev2 restart_process (600 s at most, then 120 s to help)",
        "sev1 evict_node (after 2 restarts in 600 s, 86400 s at most, then 120 s to help)",
        "sev1 stop_job (after 3 restarts in 600 s, 600 s at most)",
    ]
    assert f"remedies:       {'; then '.join(told)}" in err
    own, settings = tmp_path / "own.toml", tmp_path / "settings.toml"
    own.write_text('hang = [{ action = "ignore", persist_s = 7 }, { action = "validate", overhead_s = 30 }]')
    settings.write_text(f'[engine]\nremedies = "{own}"\n')
    assert explain("i1", bus=bus, config=settings, json="-") == 0
    told = json.loads(capsys.readouterr().out)["remedies"]
    assert told == ["sev3 ignore (7 s to pass)", "sev3 validate (once 30 s are lost, 900 s at most)"]
    own.unlink()  # it may be on the engine's host alone
    assert explain("i1", bus=bus, config=settings, json="-") == 0
    said = json.loads(capsys.readouterr().out)
    assert said["what"].endswith("rank 2 still stands")
    assert said["remedies"][0].startswith("not known here: ")


def test_no_such_incident(bus):
    with pytest.raises(ConfigError, match="no incident 'i9'"):
        explain("i9", bus=bus)


def test_without_an_id_the_newest_incident_in_at_most_twelve_lines(bus, capsys):
    assert explain(bus=bus) == 0
    said = capsys.readouterr().out
    assert said.startswith("hang (sev")
    assert len(said.splitlines()) <= 12
    assert "abstains" not in said
    assert "trainwarden explain i1 --all" in said
    assert explain(bus=bus, everything=True) == 0
    everything = capsys.readouterr().out
    assert "lof abstains: no model" in everything
    assert "# hang\n\n## What it means" in everything


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """Two kept runs with an incident each; the newer one is `f2...`."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    for number, names in enumerate((("aa11" * 4, "aa22" * 4), ("f2b0" * 4,))):
        monkeypatch.setattr("time.gmtime", lambda *_, number=number: REAL_GMTIME(NOW_S + 60.0 * number))
        run = kept_runs.begin(f"j{number}", ["python"], RunsSettings())
        kept = EmbeddedBus(str(run.path / "bus.db"))
        for name in names:
            one = msgspec.structs.replace(incident(), id=name, job=f"j{number}")
            kept.publish(topic_of(one), one.job, one)
        kept.flush()
        kept.close()
        run.close()


def test_ids_are_looked_for_in_every_kept_run_and_may_be_short(runs, capsys):
    assert explain("aa1") == 0
    assert "of job j0" in capsys.readouterr().out
    assert explain() == 0
    assert "of job j1" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="'aa' begins 2 incidents: aa11"):
        explain("aa")
    assert incidents() == 1
    assert capsys.readouterr().out.count("next: trainwarden explain ") == 3


def test_however_much_is_known_twelve_lines_are_shown_and_no_detector_that_abstains():
    many = tuple(f"evidence {number}" for number in range(20))
    excluded = (
        "lof abstains: no model",
        "pca finds nothing strange, 0.10 where 0.50 is the limit",
        "dtw finds nothing",
    )
    found = Explanation(
        incident="ab12" * 8, what="hang (sev2) of job j", where="rank 2, node n", evidence=many,
        why_not_others=excluded, next=tuple(f"trainwarden report --job j{number}" for number in range(9)),
        runbook="# hang\n" * 40,
    )  # fmt: skip
    said = list(shown(found, ["restart", "evict"], everything=False))
    assert len(said) <= 12
    assert [line.split(":")[0].strip() for line in said if ":" in line[:18] and line.startswith("  ")] == [
        "where", "evidence", "why not others", "remedies", "next", "more",
    ]  # fmt: skip
    assert not any("abstains" in line for line in said)
    assert any("pca finds nothing strange" in line for line in said)
    assert "trainwarden explain ab12ab12 --all" in said[-1]
    everything = "\n".join(shown(found, ["restart"], everything=True))
    assert "lof abstains" in everything
    assert "evidence 19" in everything
