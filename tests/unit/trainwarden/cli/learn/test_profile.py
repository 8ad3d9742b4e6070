"""`profile`: throughput by number of GPUs from recorded folders, and a sentence for each job that says nothing."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from trainwarden.cli.learn.plan import plan
from trainwarden.cli.learn.profile import profile
from trainwarden.errors import ConfigError, DataError


def job(folder: Path, ranks: int, step_s: float, steps: int = 40, toml: str = "") -> None:
    folder.mkdir(parents=True)
    rows = ["step,rank,duration_s"]
    for step in range(steps):
        slow = 3.0 if step < 5 or step % 10 == 9 else 1.0  # it warms up, and has slow steps
        rows += [f"{step},{rank},{step_s * slow}" for rank in range(ranks)]
    (folder / "iterations.csv").write_text("\n".join(rows) + "\n")
    if toml:
        (folder / "job.toml").write_text(toml)


def asked(capsys: pytest.CaptureFixture[str], data: list[Path], **more: Any) -> tuple[int, dict[str, Any]]:
    code = profile(data, json="-", **more)
    return code, json.loads(capsys.readouterr().out)


def test_a_batch_is_one_curve_that_a_plan_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job(tmp_path / "runs" / "two", 2, 0.5)
    job(tmp_path / "runs" / "two_faster", 2, 0.4)
    job(tmp_path / "runs" / "four", 1, 0.25, toml="[parallel]\ntp = 2\ndp = 2\npp = 1\n")  # one rank was recorded
    job(tmp_path / "runs" / "short", 8, 0.1, steps=19)
    job(tmp_path / "runs" / "broken", 1, 0.1)
    (tmp_path / "runs" / "broken" / "iterations.csv").write_text("step,duration_s\n1,x\n")
    code, found = asked(capsys, [tmp_path / "runs"], work_per_step=1000.0)
    assert code == 0
    assert found["throughput"] == [0.0, None, pytest.approx(2500.0), None, pytest.approx(4000.0)]
    assert [(one["job"], one["gpus"], one["steps"]) for one in found["measured"]] == [
        ("two_faster", 2, 40),
        ("four", 4, 40),
    ]
    why = {one["job"]: one["why"] for one in found["skipped"]}
    assert why["short"] == "it has 19 steps; 20 are needed"
    assert why["broken"].startswith("iterations.csv line 2")
    question = {"gpus": 6, "running_s": 10, "transition_s": 0}
    question["tasks"] = [{"name": "a", "throughput": found["throughput"]}, {"name": "b", "throughput": [0, 1, 9e3]}]
    (tmp_path / "q.json").write_text(json.dumps(question))
    assert plan("cluster", str(tmp_path / "q.json"), json="-") == 0
    assert json.loads(capsys.readouterr().out)["assignment"] == {"a": 4, "b": 2}


def test_sampled_steps_count_as_many_as_they_stand_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "iterations.csv").write_text("step,rank,duration_s,steps\n10,0,0.5,10\n20,0,0.5,10\n")
    code, found = asked(capsys, [tmp_path])
    assert (code, found["throughput"], found["measured"][0]["steps"]) == (0, [0.0, 2.0], 20)


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ([f"{step},0.5" for step in range(30)], "it does not say on how many ranks it ran"),
        ([], "it has no iterations"),
    ],
)
def test_a_job_that_says_nothing_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], rows: list[str], why: str
) -> None:
    (tmp_path / "iterations.csv").write_text("\n".join(["step,duration_s", *rows]) + "\n")
    code, found = asked(capsys, [tmp_path])
    assert (code, found["throughput"], found["measured"]) == (1, [0.0], [])
    assert re.search(why, found["skipped"][0]["why"])


@pytest.mark.parametrize("work", [0.0, -1.0, float("nan"), float("inf")])
def test_work_that_is_none_is_refused(tmp_path: Path, work: float) -> None:
    with pytest.raises(ConfigError, match="--work-per-step"):
        profile([tmp_path], work_per_step=work)


def test_a_folder_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no folder"):
        profile([tmp_path / "gone"])
