"""`check-config`, `doctor` and `plan`: one sentence per mistake, answers without side effects."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainwarden.cli import check
from trainwarden.errors import ConfigError, DataError


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[agent.collectors.gpuu]", "no collectors plug-in 'gpuu'"),
        ("[agent.collectors.host]\nintervall_s = 1.0", "agent.collectors.host: unknown key"),
        ("[detection.detectors.peer_deviation]\nminimum_share = 2.0", "minimum_share"),
        ("[detection.ensemble]\nmetric_votes = -1.0", "detection.ensemble: expected"),
        ("[engine.policy]\npersist_s = 0.0", "engine.policy: expected"),
        ('[engine]\nlauncher = "slurmm"', "no launchers plug-in 'slurmm'"),
    ],
)
def test_mistakes_in_plug_in_settings_are_found(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "t.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        check.check_config(path)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_doctor_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert check.doctor(config=None, json="-") == 0
    names = {row["name"]: row["state"] for row in json.loads(capsys.readouterr().out)["checks"]}
    assert names["bus"] == "note"
    assert names["collector host"] == "fine"
    assert list(tmp_path.iterdir()) == []


def test_doctor_says_what_is_bad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINWARDEN_BUS", f"embedded:{tmp_path}/none/bus.db")
    assert check.doctor(config=None, json=None) == 1


def test_plan_answers_exactly(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    question = tmp_path / "q.json"
    question.write_text('{"micro_batch_s": [1.0, 1.0, 2.0], "total": 12}')
    assert check.plan_microbatches(str(question), "-") == 0
    assert json.loads(capsys.readouterr().out) == {"micro_batches": [5, 5, 2], "iteration_s": 5.0}


@pytest.mark.parametrize("text", ["", "[]", '{"micro_batch_s": ["a"], "total": 1}', '{"micro_batch_s": [1.0]}'])
def test_plan_refuses_what_is_no_question(tmp_path: Path, text: str) -> None:
    question = tmp_path / "q.json"
    question.write_text(text)
    with pytest.raises(ConfigError, match="plan: input must be"):
        check.plan_microbatches(str(question), None)


def test_plan_refuses_what_has_no_answer(tmp_path: Path) -> None:
    question = tmp_path / "q.json"
    question.write_text('{"micro_batch_s": [1.0, 1.0], "total": 1}')
    with pytest.raises(DataError):
        check.plan_microbatches(str(question), None)
