"""`annotate suggest`, `confirm`, `refuse`: found, kept, decided once, and no truth for training before."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.archive_doubles import NOON_S, archived
from tests.unit.trainer_offline.suggest.recordings import plain_nearest, slow_spell, spell
from trainwarden.cli.learn.annotate import annotate
from trainwarden.errors import ConfigError, DataError
from trainwarden.records import IterationRecord, MetricsRecord
from trainwarden.trainer_offline.data.annotations import FILE, Annotation, add, read
from trainwarden.trainer_offline.data.grids import PrepareConfig
from trainwarden.trainer_offline.data.prepare import prepare


def said(word: Any, data: Path, number: int | None = None, **named: Any) -> dict[str, Any]:
    target = data.parent / "said.json"
    assert annotate(word, number, data=data, json=str(target), **({"discords": False} | named)) == 0
    found: dict[str, Any] = json.loads(target.read_text())
    return found


def test_suggested_kept_confirmed_and_not_suggested_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = slow_spell(tmp_path / "job")
    [job] = said("suggest", data)["jobs"]
    assert (job["job"], len(job["suggestions"]), job["known"]) == ("job", 1, 0)
    assert not (data / FILE).exists()
    [one] = said("suggest", data, write=True)["jobs"][0]["suggestions"]
    assert one["number"] == 1
    assert "step duration " in capsys.readouterr().out
    assert said("suggest", data, write=True)["jobs"][0]["known"] == 1
    confirmed = said("confirm", data, 1, label="fault", kind="slow_compute", suspects="rank=3")["annotation"]
    assert (confirmed["label"], confirmed["from_s"], confirmed["to_s"]) == ("fault", one["from_s"], one["to_s"])
    assert [str(who) for who in read(data)[0].suspects] == ["rank=3"]
    job = said("suggest", data, write=True)["jobs"][0]
    assert (job["suggestions"], job["known"], len(read(data))) == ([], 1, 1)


def test_what_was_refused_is_not_suggested_again_and_may_be_confirmed_after_all(tmp_path: Path) -> None:
    data = slow_spell(tmp_path / "job")
    said("suggest", data, write=True)
    assert said("refuse", data, 1)["annotation"]["label"] == "refused"
    assert said("suggest", data)["jobs"][0]["suggestions"] == []
    changed = said("confirm", data, 1, label="ignore", from_time="0", note="a test")["annotation"]
    assert (changed["label"], changed["from_s"], changed["note"]) == ("ignore", 0.0, "a test")
    with pytest.raises(ConfigError, match="is no suggestion, it says ignore"):
        said("refuse", data, 1)


def test_a_stretch_unlike_the_rest_is_suggested_until_somebody_has_said_what_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainwarden.trainer_offline.suggest.discords.nearest", plain_nearest)
    data = spell(tmp_path / "job")
    [job] = said("suggest", data, write=True, discords=True)["jobs"]
    [one] = [one for one in job["suggestions"] if one.get("unlike")]
    assert one["from_s"] < 300.0 < one["to_s"]
    assert one["unlike"]["series"][0] == "gpu/gpu_power_watts"
    assert read(data)[one["number"] - 1].note.startswith("unlike the rest of the recording, ")
    assert said("suggest", data, write=True, discords=True)["jobs"][0]["suggestions"] == []
    said("confirm", data, one["number"], label="fault", kind="slow_compute", from_time="295", to_time="309")
    assert said("suggest", data, discords=True)["jobs"][0]["suggestions"] == []


def test_without_discords_stumpy_is_not_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "stumpy",
        "trainwarden.trainer_offline.suggest.discords",
        "trainwarden.trainer_offline.suggest.unlike",
    ):
        monkeypatch.setitem(sys.modules, name, None)
    data = slow_spell(tmp_path / "job")
    assert len(said("suggest", data)["jobs"][0]["suggestions"]) == 1
    with pytest.raises(ConfigError, match="is not installed"):
        said("suggest", data, discords=True)


def test_training_takes_no_suggestion_for_truth(tmp_path: Path) -> None:
    data = slow_spell(tmp_path / "job")

    def content() -> list[str]:
        made = prepare(data, PrepareConfig(), workers=1)
        return [grid.digest() for job in (*made.train, *made.test) for grid in job.grids]

    before = content()
    said("suggest", data, write=True)
    assert content() == before
    said("refuse", data, 1)
    assert content() == before
    said("confirm", data, 1, label="fault", kind="slow_compute")
    assert content() != before


def test_a_job_of_the_archive_is_looked_at_where_it_has_metrics_or_steps(tmp_path: Path) -> None:
    folder = tmp_path / "archive"
    values = np.random.default_rng(0).normal(1.0, 0.02, 300)
    values[150:] += 0.5
    ends_s = NOON_S + np.cumsum(values)
    parts = [
        IterationRecord(
            job="steps", node="n0", rank=0, incarnation="1-1", steps=tuple(range(first, first + 50)),
            end_s=tuple(ends_s[first : first + 50].tolist()), duration_s=tuple(values[first : first + 50].tolist()),
        )
        for first in range(0, 300, 50)
    ]  # fmt: skip
    watts = [
        MetricsRecord(
            job="metrics", node="n0", time_s=NOON_S + number, devices=("gpu0", "gpu1"), names=("gpu_power_watts",),
            values=((400.0 * value, 401.0 * value),),
        )
        for number, value in enumerate(values.tolist())
    ]  # fmt: skip
    archived([*parts, *watts], folder)
    told = {job["job"]: job["suggestions"] for job in said("suggest", folder, write=True)["jobs"]}
    assert [shift["series"] for one in told["steps"] for shift in one["shifts"]] == ["step duration"]
    assert told["steps"][0]["shifts"][0]["step"] == 150
    assert [shift["series"] for one in told["metrics"] for shift in one["shifts"]] == ["gpu/gpu_power_watts"]
    assert told["metrics"][0]["from_s"] == NOON_S + 150
    assert {one.job for one in read(folder)} == {"steps", "metrics"}


def test_two_that_write_at_once_write_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = slow_spell(tmp_path / "job")
    said("suggest", data, write=True)
    monkeypatch.setattr("trainwarden.cli.learn.suggest._said", lambda data, source: [])  # read before the other wrote
    said("suggest", data, write=True)
    assert len(read(data)) == 1


def test_jobs_of_a_batch_one_of_which_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "batch"
    slow_spell(data / "a")
    slow_spell(data / "b", seed=1)
    (data / "b" / "metrics.csv").write_text("time_s,power\n1,abc\n")
    told = said("suggest", data, write=True)
    assert [job["job"] for job in told["jobs"]] == ["a"]
    assert told["failed"][0]["job"] == "b"
    assert "b is left out: metrics.csv line 2" in capsys.readouterr().out
    assert [one.job for one in read(data)] == ["a"]
    with pytest.raises(DataError, match="no job could be read"):
        said("suggest", data, job="b")
    with pytest.raises(DataError, match="of a job 'c'"):
        said("suggest", data, job="c")


def test_wrong_use_is_one_sentence(tmp_path: Path) -> None:
    data = slow_spell(tmp_path / "job")
    add(data, Annotation(job="job", label="suggested", from_s=1.0))
    with pytest.raises(ConfigError, match="not both"):
        annotate("suggest", data=data, folder=data)
    with pytest.raises(ConfigError, match="give the number"):
        said("refuse", data)
    for label in (None, "suggested", "refused"):
        with pytest.raises(ConfigError, match="give --label normal"):
            said("confirm", data, 1, label=label)
    with pytest.raises(DataError, match="a fault needs a kind"):
        said("confirm", data, 1, label="fault")
    with pytest.raises(ConfigError, match="no time"):
        said("confirm", data, 1, label="normal", from_time="inf")
    with pytest.raises(DataError, match="no annotation 2"):
        said("refuse", data, 2)
    assert [one.label for one in read(data)] == ["suggested"]
