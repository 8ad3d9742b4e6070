"""`trainwarden detect --data` as people and scripts call it."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.places import ROOT
from tests.unit.detectors import recordings
from trainwarden.cli import main as command_line
from trainwarden.cli.ask.detect import detect
from trainwarden.cli.ask.detect_fleet import Fleet
from trainwarden.errors import DetectorError
from trainwarden.json_objects import incident_object
from trainwarden.records import IncidentRecord

INCIDENT = {
    "id", "job", "kind", "severity", "opened_at_s", "closed_at_s", "onset_s", "onset_step", "opened_step", "reason",
    "suspects", "metrics", "votes", "model_versions",
}  # fmt: skip


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    """The console script with `arguments`; its exit code."""
    monkeypatch.setattr(sys, "argv", ["trainwarden", "detect", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        command_line.run()
    return int(ended.value.code or 0)


def answer(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


@pytest.fixture
def slow_rank(tmp_path: Path) -> Path:
    table = recordings.iterations(ranks=4, slow=lambda rank, step: 1.6 if rank == 2 and step >= 150 else 1.0)
    return recordings.write(recordings.job("slow", iterations=table), tmp_path / "slow")


@pytest.mark.thorough
def test_a_finding_is_exit_code_1_and_one_object(
    slow_rank: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "--data", slow_rank, "--json") == 1
    said = capsys.readouterr()
    found = json.loads(said.out)
    (job,) = found["jobs"]
    assert found["wall_s"] > 0
    assert job["job"] == "slow"
    assert set(job["input"]) >= {"metrics_rows", "entities", "metrics", "iterations", "log_lines", "span_s"}
    (incident,) = job["incidents"]
    assert set(incident) >= INCIDENT
    assert (incident["kind"], incident["suspects"][0]["rank"]) == ("slow_compute", 2)
    assert (job["stragglers"][0]["rank"], job["stragglers"][0]["to_step"]) == (2, None)
    assert "slow_compute" in said.err
    assert found["answer"] == job["answer"] == "incident"
    monkeypatch.setattr(sys, "argv", ["trainwarden", "explain", incident["id"][:8]])
    with pytest.raises(SystemExit):
        command_line.run()
    assert "slow_compute (sev3) of job slow" in capsys.readouterr().out


def test_nothing_found_is_exit_code_0(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = recordings.write(recordings.job(iterations=recordings.iterations()), tmp_path / "calm")
    assert run(monkeypatch, "--data", folder, "--json", tmp_path / "out.json") == 0
    (job,) = answer(tmp_path / "out.json")["jobs"]
    assert (job["incidents"], job["change_points"]) == ([], [])


@pytest.mark.parametrize(("name", "text"), [("logs.txt", ""), ("metrics.csv", "time_s,metric,value\n")])
def test_what_holds_nothing_is_not_judged(
    name: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / name).write_text(text)
    assert run(monkeypatch, "--data", tmp_path / "job", "--json", tmp_path / "out.json") == 3
    (job,) = answer(tmp_path / "out.json")["jobs"]
    assert (job["answer"], job["judged_by"]) == ("not judged", [])
    assert [one["reason"] for one in job["not_judged"]] == ["everything that was read is empty"]


@pytest.mark.thorough
def test_a_batch_goes_on_past_a_folder_that_cannot_be_read(
    slow_rank: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = tmp_path / "bad"
    bad.mkdir()
    (bad / "iterations.csv").write_text("step,duration_s\n1,0.5\n2,often\n")
    assert run(monkeypatch, "--data", tmp_path, "--json", tmp_path / "out.json") == 1
    first, second = answer(tmp_path / "out.json")["jobs"]
    assert set(first) == {"job", "error"}
    assert first["job"] == "bad"
    assert "iterations.csv line 3, column duration_s" in first["error"]
    assert (second["job"], len(second["incidents"])) == ("slow", 1)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--normal-until", "soon"], "neither a number of seconds nor an ISO 8601 time"),
        (["--normal-until", "5", "--normal", "."], "exclude each other"),
        (["--detectors", "lof,magic"], "there is no detector 'magic'"),
        (["--scores", "scores.txt"], "must end in .csv, .csv.gz or .parquet"),
        (["--models", "nowhere"], "nowhere"),
        (["--normal", "nowhere"], "nowhere"),
    ],
)
def test_wrong_use_is_one_sentence_and_exit_code_2(
    arguments: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    folder = recordings.write(recordings.job(metrics=recordings.metrics(rows=20)), tmp_path / "job")
    assert run(monkeypatch, "--data", folder, *arguments) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert says in said[-1]
    assert said[-1].startswith("trainwarden: ")


def test_a_folder_that_cannot_be_read_is_exit_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "metrics.csv").write_text("time_s,load\n1,2\n2,much\n")
    assert run(monkeypatch, "--data", tmp_path) == 2
    assert "metrics.csv line 3, column load: 'much' is not a number" in capsys.readouterr().err


@pytest.fixture
def strange(tmp_path: Path) -> Path:
    table = recordings.metrics(strange=lambda entity, row: 12.0 if entity == 2 and 700 <= row < 740 else 0.0)
    return recordings.write(recordings.job("strange", metrics=table), tmp_path / "strange")


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["scores.csv", "scores.csv.gz", "scores.parquet"])
def test_scores_have_one_row_for_each_time_and_entity(
    name: str, strange: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    until_s = recordings.START_S + 6_000.0
    target = tmp_path / name
    assert run(monkeypatch, "--data", strange, "--normal-until", until_s, "--scores", target, "--detectors",
               "metric_change,kmeans,nearest,pca") == 1  # fmt: skip
    frame = pd.read_parquet(target) if name.endswith("parquet") else pd.read_csv(target)
    assert len(frame) == 3_600
    assert list(frame.columns[:2]) == ["job", "time_s"]
    assert {"node", "training", "kmeans", "pca", "ensemble"} <= set(frame.columns)
    assert (frame.training == (frame.time_s < until_s)).all()
    scored = frame.dropna(subset=["ensemble"])
    assert scored.ensemble.between(0.0, 1.0).all()
    worst = scored.loc[scored[scored.training == 0].ensemble.idxmax()]
    assert worst.node == "node2"
    assert 700 <= (worst.time_s - recordings.START_S) / 10.0 < 745


@pytest.mark.thorough
def test_scores_are_written_though_no_model_votes(
    strange: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "scores.csv"
    until_s = recordings.START_S + 6_000.0
    assert run(monkeypatch, "--data", strange, "--normal-until", until_s, "--scores", target, "--detectors",
               "change_point") == 3  # fmt: skip
    frame = pd.read_csv(target)
    assert frame.node[frame.ensemble.idxmax()] == "node2"
    assert "kmeans" not in frame.columns


@pytest.mark.thorough
def test_a_normal_folder_trains_and_is_not_scored(
    strange: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calm = recordings.write(recordings.job(metrics=recordings.metrics(seed=7, rows=600)), tmp_path / "calm")
    scores = tmp_path / "scores.csv.gz"
    assert run(monkeypatch, "--data", strange, "--normal", calm, "--scores", scores, "--json",
               tmp_path / "out.json") == 1  # fmt: skip
    (job,) = answer(tmp_path / "out.json")["jobs"]
    assert job["incidents"][0]["suspects"][0]["node"] == "node2"
    assert "lof" not in job["abstained"]
    with gzip.open(scores, "rt") as file:
        frame = pd.read_csv(file)
    assert len(frame) == 3_600
    assert not frame.training.any()


def test_models_that_are_refused_are_no_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(registry: str) -> Path:
        raise DetectorError(f"{registry}: lof.npz is damaged")

    monkeypatch.setattr("trainwarden.trainer_offline.registry.serving.local_bundle", refused)
    folder = recordings.write(recordings.job(metrics=recordings.metrics(rows=20)), tmp_path / "job")
    assert run(monkeypatch, "--data", folder, "--models", "http://mlflow") == 2
    assert "http://mlflow: lof.npz is damaged" in capsys.readouterr().err


def test_without_anything_normal_the_models_abstain(
    strange: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(monkeypatch, "--data", strange, "--json", tmp_path / "out.json") == 3
    (job,) = answer(tmp_path / "out.json")["jobs"]
    assert "nothing says what is normal" in job["abstained"]["lof"]
    assert (job["answer"], answer(tmp_path / "out.json")["answer"]) == ("not judged", "not judged")
    assert "--normal-until" in job["not_judged"][0]["remedy"]


def test_what_is_found_in_a_prometheus_is_kept_for_explain(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = IncidentRecord(id="ab12" * 4, job="fleet", kind="gpu_lost", severity="sev1", state="opened", revision=0,
                           opened_at_s=5.0, updated_at_s=5.0, reason="GPU 3 fell off the bus")  # fmt: skip
    job = {"job": "fleet", "input": {"nodes": 1, "entities": 8}, "answer": "incident",
           "abstained": {}, "incidents": [incident_object(found)], "change_points": [], "stragglers": [],
           "log_findings": []}  # fmt: skip
    told = Fleet({"jobs": [job], "partial": []}, [found])
    monkeypatch.setattr("trainwarden.cli.ask.detect.judged_fleet", lambda *_: told)
    assert run(monkeypatch, "--prometheus", "http://127.0.0.1:9") == 1
    assert "GPU 3 fell off the bus" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["trainwarden", "explain", "ab12"])
    with pytest.raises(SystemExit) as ended:
        command_line.run()
    assert (ended.value.code, "GPU 3 fell off the bus" in capsys.readouterr().out) == (0, True)


def test_who_ended_a_job_that_did_not_fail_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steps = [f"[2026-05-03 10:{n // 60:02d}:{n % 60:02d}] step {n} loss {3 - 0.01 * n:.2f}" for n in range(120)]
    end = "slurmstepd: error: *** JOB 9 ON gpu1 CANCELLED AT 2026-05-03T10:02:00 DUE TO TIME LIMIT ***"
    log = tmp_path / "slurm-9.out"
    log.write_text("\n".join([*steps, end, ""]))
    assert detect(log) == 0
    assert "  its time limit stopped the job at 2026-05-03 10:0" in capsys.readouterr().out
    killed = "2026-05-03 10:01:59 [rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    log.write_text("\n".join([*steps, killed, end, ""]))
    assert detect(log) == 1
    assert "stopped the job" not in capsys.readouterr().out


def test_a_rank_that_lines_of_ranks_name_is_named_although_steps_are_of_the_whole_job(tmp_path: Path) -> None:
    head = "ProcessGroupNCCL.cpp:1] [PG ID 0 PG GUID 0(default_pg) Rank"
    lines = [
        f"[rank{rank}]:[titan] 2026-11-04 08:{n // 6:02d}:{10 * n % 60:02d},020 - root - INFO - "
        f"step: {n + 1}  loss:  2.5"
        for n in range(40)
        for rank in range(4)
    ]
    for rank in (0, 1, 3):
        lines += [
            f"[rank{rank}]:[E1104 08:16:40.996670 ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught collective "
            "operation timeout: WorkNCCL(SeqNum=41, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran "
            "for 600040 milliseconds before timing out.",
            f"[rank{rank}]:[E1104 08:16:40.996690 {head} {rank}]  failure detected by watchdog at work sequence id: 41 "
            "PG status: last enqueued work: 43, last completed work: 40",
        ]
    lines.append(
        f"[rank2]:[E1104 08:16:41.440268 {head} 2] Received a dump signal due to a collective timeout from  rank 0 and "
        "we will try our best to dump the debug info. Last enqueued NCCL work: 40, last completed NCCL work: 40."
    )
    log, out = tmp_path / "train.log", tmp_path / "out.json"
    log.write_text("\n".join([*lines, ""]))
    assert detect(log, json=str(out)) == 1
    (incident,) = json.loads(out.read_text())["jobs"][0]["incidents"]
    assert (incident["kind"], [who["rank"] for who in incident["suspects"]]) == ("hang", [2])


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        (
            "queue.txt",
            "             JOBID PARTITION     NAME     USER ST       TIME  NODES NODELIST(REASON)\n"
            "               881     train  llama70    alice  R 1-02:11:09     16 gpu-[01-16]\n",
            "queue.txt: no job of it has ended",
        ),
        (
            "ras.txt",
            (ROOT / "tests/data/formats/nccl_ras/killed.txt").read_text().split("Errors")[0],
            "a second answer",
        ),
    ],
)
def test_what_was_read_and_says_nothing_is_not_called_empty(
    name: str, text: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_text(text)
    assert detect(tmp_path / name) == 3
    assert reason in capsys.readouterr().out
