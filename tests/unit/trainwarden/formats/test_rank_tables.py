"""Tables of what each rank takes: a column or a row a rank, parts of steps, units in cells and beside them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from trainwarden.detectors.recorded.replay import replay
from trainwarden.errors import DataError
from trainwarden.formats.reading import read_job
from trainwarden.recorded.job import RecordedJob
from trainwarden.settings import DetectionSettings

STEPS, RANKS, SLOW = 64, 8, 5


def times_ms(sick: bool) -> np.ndarray:
    """Milliseconds of each step and rank; the slow one takes 1.4 times as long from the start."""
    times = 1_000.0 * np.random.default_rng(3).normal(1.0, 0.01, (STEPS, RANKS))
    times[:, SLOW] *= 1.4 if sick else 1.0
    return times


def wide(column: str, first: str = "iteration", unit: str = "") -> Callable[[np.ndarray], str]:
    def write(times: np.ndarray) -> str:
        lines = [",".join([first, *(column.format(rank) for rank in range(RANKS))])]
        return "\n".join([*lines, *(f"{step}," + ",".join(f"{one:.2f}{unit}" for one in row)
                                    for step, row in enumerate(times))])  # fmt: skip

    return write


def long(header: str, row: str) -> Callable[[np.ndarray], str]:
    def write(times: np.ndarray) -> str:
        return "\n".join([header, *(row.format(step=step, rank=rank, ms=ms, s=ms / 1e3, half=ms / 2.0)
                                    for (step, rank), ms in np.ndenumerate(times))])  # fmt: skip

    return write


def transposed(times: np.ndarray) -> str:
    lines = ["compute time (ms)," + ",".join(f"step {step}" for step in range(STEPS))]
    return "\n".join([*lines, *(f"Rank {rank}," + ",".join(f"{one:.2f}" for one in column)
                                for rank, column in enumerate(times.T))])  # fmt: skip


def mixed_units(times: np.ndarray) -> str:
    lines = ["step,rank,compute_time,unit"]
    for (step, rank), ms in np.ndenumerate(times):
        lines.append(f"{step},{rank},{ms:.2f},ms" if rank == 2 else f"{step},{rank},{ms / 1e3:.5f},s")
    return "\n".join(lines)


def sampled(times: np.ndarray) -> str:
    lines = ['"Time",' + ",".join(f'"rank {rank}"' for rank in range(RANKS))]
    for number, row in enumerate(times):
        clock = f"2026-09-21 {10 + number // 60:02d}:{number % 60:02d}:00"
        lines.append(f'"{clock}",' + ",".join(f'"{one / 1e3:.4f} s"' for one in row))
    return "\n".join(lines)


LAYOUTS = {
    "fwd_bwd_time_ms.csv": wide("rank{}"),
    "a.csv": wide("rank{}_step_time_ms"),
    "b.csv": wide("compute_ms/rank_{}"),
    "step_times_ms.csv": wide("{}", "step"),
    "c.csv": wide("Rank {}", "compute time (ms)"),
    "d.csv": transposed,
    "e.csv": long("step,rank,compute_ms", "{step},rank{rank},{ms:.2f}"),
    "f.csv": long("step,rank,forward_ms,backward_ms", "{step},gpu-{rank},{half:.2f},{half:.2f}"),
    "g.csv": long("step,Rank,Forward + backward (ms)", "{step},Rank {rank},{ms:.2f}"),
    "h.csv": long("step,global_rank,metric,value", "{step},{rank},compute_ms,{ms:.2f}"),
    "i.csv": mixed_units,
    "compute_time_ms.csv": lambda times: transposed(times).replace("compute time (ms)", "rank").replace("step ", ""),
    "j.csv": long("step,gpu,compute_ms", "{step},{rank},{ms:.2f}"),
    "Compute time per rank-data-2026-09-21 12_00_00.csv": sampled,
}


def judged(folder: Path, name: str, text: str) -> tuple[RecordedJob, list[int | None]]:
    (folder / name).write_text(text + "\n", encoding="utf-8")
    job = read_job(folder / name)
    found = replay(job, DetectionSettings()).incidents
    return job, [one.suspects[0].rank if one.suspects else None for one in found]


@pytest.mark.parametrize("name", list(LAYOUTS))
def test_the_rank_that_computes_longest_is_named_and_a_healthy_job_is_not_accused(name: str, tmp_path: Path):
    job, named = judged(tmp_path, name, LAYOUTS[name](times_ms(True)))
    assert named == [SLOW]
    table = job.iterations
    assert table is not None
    assert sorted(table.ranks) == list(range(RANKS))
    own_s = table.duration_s if np.isnan(table.compute_s).all() else table.compute_s
    assert np.median(own_s) == pytest.approx(1.0, rel=0.05)
    assert judged(tmp_path, name, LAYOUTS[name](times_ms(False)))[1] == []


def test_units_beside_values_and_in_cells_are_read_row_by_row(tmp_path: Path):
    text = mixed_units(times_ms(False)).replace("compute_time", "step_time")
    job, named = judged(tmp_path, "t.csv", text)
    assert named == []
    assert job.iterations is not None
    assert float(job.iterations.duration_s.max()) < 1.1
    damaged = text.replace(",ms", ",furlongs")
    job, named = judged(tmp_path, "t.csv", damaged)
    assert named == []
    assert any("no unit that is known" in note for note in job.notes)


def test_local_ranks_of_several_nodes_are_counted_on(tmp_path: Path):
    lines = ["step,hostname,local_rank,compute_ms"]
    lines += [f"{step},h{rank // 4},{rank % 4},{ms:.2f}" for (step, rank), ms in np.ndenumerate(times_ms(True))]
    job, named = judged(tmp_path, "t.csv", "\n".join(lines))
    assert named == [SLOW]
    assert any("in the order of nodes" in note for note in job.notes)


def test_a_workbook_with_a_row_a_rank_is_read(tmp_path: Path):
    times = times_ms(True) / 1e3
    frame = pd.DataFrame(times.T, columns=[f"step {step}" for step in range(STEPS)])
    frame.insert(0, "compute time (s)", [f"Rank {rank}" for rank in range(RANKS)])
    frame.to_excel(tmp_path / "t.xlsx", index=False)
    incidents = replay(read_job(tmp_path / "t.xlsx"), DetectionSettings()).incidents
    assert [one.suspects[0].rank for one in incidents] == [SLOW]


@pytest.mark.parametrize(
    "text",
    [
        "step,rank0,rank1\n1,0.5,0.6\n2,0.5,0.6\n",  # nothing says what was measured
        "step,rank0_queue_depth,rank1_queue_depth\n1,5,6\n2,5,6\n",
        "name,step 1,step 2,step 3\nalpha,1,2,3\nbeta,2,3,4\n",
    ],
)
def test_what_names_no_rank_or_no_time_is_not_judged(text: str, tmp_path: Path):
    (tmp_path / "t.csv").write_text(text, encoding="utf-8")
    found = read_job(tmp_path / "t.csv")
    assert found.iterations is None


def test_a_rank_that_is_none_is_told_with_its_line(tmp_path: Path):
    (tmp_path / "t.csv").write_text("step,rank,compute_ms\n1,head,5\n2,tail,6\n", encoding="utf-8")
    with pytest.raises(DataError, match="line 2, column rank: 'head' is not a rank"):
        read_job(tmp_path / "t.csv")


def test_two_steps_are_not_judged(tmp_path: Path):
    rows = [f"{step},{rank},{(31.0 if step == 0 else 6.0) + 0.1 * rank}" for step in (0, 1) for rank in range(4)]
    (tmp_path / "t.csv").write_text("\n".join(["step,rank,step_time", *rows]) + "\n", encoding="utf-8")
    found = replay(read_job(tmp_path / "t.csv"), DetectionSettings())
    assert not found.incidents
    assert "nothing tells how long ranks were on a processor" in found.abstained["cpu_time"]
