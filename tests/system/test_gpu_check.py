"""``make gpu-check``: without a GPU it says so; its jobs run on processors, so that the check itself is checked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.gpu_check import __main__ as command
from tests.gpu_check import checks, jobs
from tests.gpu_check.jobs import Job, plain, told, watched
from tests.gpu_check.table import CHECKS, NAMES, Check, row
from tests.gpu_check.train import options
from tests.hook_doubles import write_header

NOTHING = {"device": None, "torch": "2.15.0", "nccl": "2.30.7", "gpus": 0}
GPU = {"device": "a GPU", "torch": "2.15.0", "nccl": "2.30.7", "gpus": 1}


def report(path: Path) -> dict[str, dict[str, Any]]:
    found = json.loads(path.read_text())
    assert set(found) == {"device", "torch", "nccl", "rows"}
    for one in found["rows"]:
        assert {"check", "value", "unit", "bar", "holds", "seen_on_hardware"} <= set(one)
    return {one["check"]: one for one in found["rows"]}


def test_without_a_gpu_it_says_so_in_one_sentence_and_in_every_row(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "gpu-check.json"
    assert command.main(["--json", str(out), "--to", str(tmp_path / "to")], lambda: NOTHING) == 0
    said = capsys.readouterr().out
    assert said.startswith("gpu-check: there is no GPU here, so nothing was checked")
    assert said.count("\n") == 1
    rows = report(out)
    assert list(rows) == list(NAMES)
    for one in rows.values():
        assert (one["value"], one["holds"], one["seen_on_hardware"]) == (None, None, False)
        assert one["why"] == "there is no GPU here"
    assert not (tmp_path / "to").exists()


def test_every_row_is_filled_by_exactly_one_part() -> None:
    named = [name for names, _ in command.parts() for name in names]
    assert sorted(named) == sorted(NAMES)
    assert len(set(NAMES)) == len(CHECKS)


@pytest.mark.thorough
def test_a_job_is_not_judged_by_what_an_earlier_one_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "torchrun", lambda job, truth: ["false"])
    job = Job("job", 2, ())
    for name in ("job/truth", "job/run/hook", "job-plain/truth"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "rank-0.json").write_text('{"rank": 0, "wall_step_s": 1.0, "done": true}')
    (tmp_path / "job" / "watch.json").write_text('{"incidents": [{"kind": "hang"}]}')
    write_header(tmp_path / "job" / "run" / "hook" / "rank-0-1.hook", 1)
    out = watched(job, tmp_path)
    assert out.exit_code
    assert (out.truth, out.headers) == ({}, {})
    assert "hang" not in {one["kind"] for one in out.incidents}
    assert plain(job, tmp_path, with_hook=False) is None
    assert told(tmp_path / "job-plain" / "truth") == {}


@pytest.mark.parametrize(
    ("check", "value", "holds"),
    [
        (Check("a", "u", "", 3), 3.0, True),
        (Check("a", "u", "", 3), 2.0, False),
        (Check("a", "u", "", 3, "most"), 3.5, False),
        (Check("a", "u", "", None), 3.5, None),
        (Check("a", "u", "", 3), None, None),
    ],
)
def test_a_bar_holds_or_not(check: Check, value: float | None, holds: bool | None) -> None:
    assert row(check, value, hardware=True).holds is holds
    assert row(check, value, hardware=True).seen_on_hardware is (value is not None)
    assert row(check, value, hardware=False).seen_on_hardware is False


def test_a_check_that_breaks_stops_no_other_and_a_bar_that_is_missed_is_the_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(lab: checks.Lab) -> checks.Values:
        raise OSError("no such thing")

    monkeypatch.setattr(checks, "costs", broken)
    monkeypatch.setattr(checks, "nvml", lambda lab: {"nvml_power": 0.01, "nvml_temperature": "no sensor"})
    out = tmp_path / "out.json"
    words = ["--json", str(out), "--to", str(tmp_path / "to"), "--only"]
    names = "event_record_us,nvml_power,nvml_temperature"
    assert command.main([*words, names], lambda: GPU) == 0
    rows = report(out)
    assert rows["event_record_us"]["why"] == "OSError: no such thing"
    assert (rows["nvml_power"]["holds"], rows["nvml_power"]["seen_on_hardware"]) == (True, True)
    assert rows["nvml_temperature"]["why"] == "no sensor"
    assert rows["slow_rank_2"]["why"] == "not asked for"
    assert "ok  nvml_power: 0.01 ratio" in capsys.readouterr().out
    monkeypatch.setattr(checks, "nvml", lambda lab: {"nvml_power": 7.0})
    assert command.main([*words, "nvml_power"], lambda: GPU) == 1


def test_wrong_words_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        command.main(["--only", "nonsense"], lambda: NOTHING)
    assert caught.value.code == 2
    assert "there is no check 'nonsense'; there are: timed_ranks" in capsys.readouterr().err


def test_the_script_takes_what_the_checks_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every word that a check gives to a job is one of the script's."""
    seen: list[str] = []

    def watched(job: checks.Job, folder: Path) -> checks.Outcome:
        options([*job.arguments, "--truth", str(folder)])
        seen.append(job.name)
        return checks.Outcome(0, [], {}, {}, {}, 0, "")

    def plain(job: checks.Job, folder: Path, *, with_hook: bool) -> float | None:
        options([*job.arguments, "--truth", str(folder)])
        seen.append(job.name)
        return 1.1 if with_hook else 1.0

    monkeypatch.setattr(checks, "watched", watched)
    monkeypatch.setattr(checks, "plain", plain)
    monkeypatch.setattr(checks, "costs", lambda lab: {})
    monkeypatch.setattr(checks, "nvml", lambda lab: {})
    found = command.carried_out(checks.Lab(tmp_path, "nccl"), frozenset(NAMES), hardware=True)
    assert found["hook_overhead"] == pytest.approx(0.1)
    assert found["slow_rank_4"] == 0.0
    assert found["slow_rank_2_after"] == "nothing was told"
    assert {"slow_rank_2", "stopped_rank_4", "skipped_2", "healthy_fsdp2_4", "healthy_graph_2", "slow_link_4"} <= {
        *seen
    }


@pytest.mark.system
@pytest.mark.timeout(290)
def test_a_slow_rank_on_processors(tmp_path: Path) -> None:
    """The whole way: torchrun under the warden, a fault, incidents, the report, a recording."""
    out = tmp_path / "out.json"
    only = "slow_rank_2,slow_rank_2_after,wait_split_error"
    words = ["--backend", "gloo", "--json", str(out), "--to", str(tmp_path / "to"), "--only", only]
    assert command.main(words, lambda: NOTHING) == 0
    rows = report(out)
    assert rows["slow_rank_2"]["holds"] is True, (tmp_path / "to" / "slow_rank_2" / "log.txt").read_text()[-3000:]
    assert rows["slow_rank_2_after"]["holds"] is True
    assert rows["wait_split_error"]["why"] == "needs a GPU"
    assert not any(one["seen_on_hardware"] for one in rows.values())
    assert (tmp_path / "to" / "slow_rank_2" / "recorded" / "iterations.csv").exists()
