"""Recorded folders with collective calls: the same path finds the late rank and the slow link."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.simulated_ranks.layout import Layout
from tests.simulated_ranks.steps import Fault, Ranks
from trainwarden.detectors.calls.functions import NAMES
from trainwarden.detectors.recorded.findings import job_object
from trainwarden.detectors.recorded.replay import replay
from trainwarden.errors import DataError
from trainwarden.recorded.cut import between
from trainwarden.recorded.folder import jobs_in, read_folder
from trainwarden.settings import DetectionSettings

LAYOUT = Layout(4, 2, 2, per_node=4)


def written(folder: Path, *faults: Fault, ending: str = "csv", steps: int = 60, iterations: bool = False) -> Path:
    """Sampled steps of a simulated job, with what the contract names."""
    ranks, tables, ends = Ranks(LAYOUT, seed=3, noise=0.02, faults=faults), [], []
    now_s = 0.0
    for step in range(steps):
        calls, took_s = ranks.step()
        now_s += took_s
        tables.append(pd.DataFrame({
            "step": 64 * step, "rank": calls.column, "comm": [LAYOUT.counts.names[comm] for comm in calls.comm],
            "func": [NAMES[code] for code in calls.function], "seq": calls.seq, "bytes": calls.call_bytes,
            "device_s": calls.device_s, "nodes": LAYOUT.spans[calls.comm], "enqueued_s": 64 * now_s + 9 * calls.column,
        }))  # fmt: skip
        ends.append(64 * now_s)
    table = pd.concat(tables)
    table.to_csv(folder / "collectives.csv", index=False) if ending == "csv" else table.to_parquet(
        folder / "collectives.parquet"
    )
    if iterations:
        rows = [(64 * step, rank, LAYOUT.nodes[rank], end_s, 1.0)
                for step, end_s in enumerate(ends) for rank in range(LAYOUT.ranks)]  # fmt: skip
        pd.DataFrame(rows, columns=["step", "rank", "node", "time_s", "duration_s"]).to_csv(
            folder / "iterations.csv", index=False
        )
    return folder


def found(folder: Path) -> dict:
    return job_object(replay(read_folder(folder), DetectionSettings()))


@pytest.mark.thorough
@pytest.mark.parametrize("ending", ["csv", pytest.param("parquet", marks=pytest.mark.thorough)])
def test_a_straggler_is_named_by_its_collectives(tmp_path, ending):
    answer = found(written(tmp_path, Fault("late", 5, 0.2, 30), ending=ending))
    (straggler,) = answer["stragglers"]
    assert (straggler["rank"], straggler["evidence"], straggler["basis"]) == (5, "collectives", "peers")
    assert straggler["ratio"] == pytest.approx(1.2, abs=0.06)
    assert abs(straggler["from_step"] - 64 * 30) <= 64 * 2
    (incident,) = answer["incidents"]
    assert (incident["kind"], incident["suspects"][0]["rank"]) == ("slow_compute", 5)
    assert answer["input"]["collectives"] > 10_000


@pytest.mark.thorough
def test_calls_are_of_the_processes_that_the_iterations_name(tmp_path):
    folder = written(tmp_path, Fault("late", 5, 0.2, 30), iterations=True)
    pd.read_csv(folder / "iterations.csv").assign(incarnation="p7").to_csv(folder / "iterations.csv", index=False)
    assert [one["rank"] for one in found(folder)["stragglers"] if one["evidence"] == "collectives"] == [5]


@pytest.mark.thorough
def test_a_slow_pair_is_two_suspects_with_their_nodes(tmp_path):
    answer = found(written(tmp_path, Fault("pair", 5, 0.5, 30), iterations=True))
    (incident,) = answer["incidents"]
    assert incident["kind"] == "slow_link"
    assert [(one["rank"], one["node"]) for one in incident["suspects"]] == [(5, "node1"), (13, "node3")]
    assert answer["stragglers"] == []


@pytest.mark.thorough
def test_nobody_is_accused_while_all_is_well(tmp_path):
    answer = found(written(tmp_path))
    assert (answer["incidents"], answer["stragglers"]) == ([], [])
    assert "collective_waits" not in answer["abstained"]


def test_without_collectives_it_says_so(tmp_path):
    (tmp_path / "iterations.csv").write_text("step,duration_s\n1,1.0\n2,1.0\n", encoding="utf-8")
    assert found(tmp_path)["abstained"]["collective_waits"] == "no collectives were recorded"


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("1,0,w,AllReduce,0,x,0.1", "collectives.csv line 2, column bytes: 'x' is not a number"),
        ("1,zero,w,AllReduce,0,8,0.1", "collectives.csv line 2, column rank: 'zero' is not a rank"),
        ("1,0,,AllReduce,0,8,0.1", "collectives.csv line 2, column comm: the cell is empty"),
        ("1,0,w,AllReduce,0.5,8,0.1", "collectives.csv line 2, column seq: 0.5 is not a whole number"),
        ("1,0,w,AllReduce,0,8,-1", "collectives.csv line 2, column device_s: -1 is below zero"),
        ("1,,w,AllReduce,0,8,1", "collectives.csv line 2, column rank: the cell is empty"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path, row, said):
    (tmp_path / "collectives.csv").write_text(f"step,rank,comm,func,seq,bytes,device_s\n{row}\n", encoding="utf-8")
    assert jobs_in(tmp_path) == [tmp_path]
    with pytest.raises(DataError) as error:
        read_folder(tmp_path)
    assert str(error.value).startswith(said)


def test_a_missing_column_is_named(tmp_path):
    (tmp_path / "collectives.csv").write_text("step,rank,comm,func,seq,bytes\n1,0,w,AllReduce,0,8\n", encoding="utf-8")
    with pytest.raises(DataError, match="there is no column device_s"):
        read_folder(tmp_path)


def test_an_empty_table_is_no_table(tmp_path):
    (tmp_path / "collectives.csv").write_text("step,rank,comm,func,seq,bytes,device_s\n", encoding="utf-8")
    assert read_folder(tmp_path).collectives is None


def test_not_measured_is_nothing(tmp_path):
    lines = [f"{step},{rank},w,AllReduce,{step},8," for step in range(30) for rank in range(4)]
    (tmp_path / "collectives.csv").write_text(
        "step,rank,comm,func,seq,bytes,device_s\n" + "\n".join(lines) + "\n", encoding="utf-8"
    )
    assert np.isnan(read_folder(tmp_path).collectives.device_s).all()
    assert found(tmp_path)["incidents"] == []


def test_a_stretch_holds_the_calls_of_its_steps(tmp_path):
    job = read_folder(written(tmp_path, steps=20, iterations=True))
    first_s, last_s = job.iterations.end_s[16 * 5], job.iterations.end_s[16 * 9]
    cut = between(job, first_s, last_s)
    assert np.unique(cut.collectives.step).tolist() == [64 * step for step in range(5, 10)]
    assert between(job, -2.0, -1.0).collectives is None
