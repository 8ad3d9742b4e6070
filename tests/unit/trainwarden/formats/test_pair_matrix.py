"""Matrices of bandwidths and delays: a slow pair is a link, a slow row and column a member, a structure neither."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from trainwarden.detectors.recorded.replay import replay
from trainwarden.formats.reading import read_job
from trainwarden.settings import DetectionSettings


def fabric(nodes: int, gpus: int = 1, inside: float = 390.0, between: float = 46.0) -> tuple[list[str], np.ndarray]:
    """A healthy fabric whose pairs differ by 2 %."""
    names = [f"node{node:02d}" + (f":gpu{gpu}" if gpus > 1 else "") for node in range(nodes) for gpu in range(gpus)]
    node = np.arange(nodes * gpus) // gpus
    values = np.where(node[:, None] == node, inside, between)
    return names, values * np.random.default_rng(2).normal(1.0, 0.02, values.shape)


def written(names: list[str], values: np.ndarray, form: str, corner: str = "GB/s") -> str:
    rows = [[corner, *names]]
    rows += [[name, *("-" if i == j else f"{one:.2f}" for j, one in enumerate(row))]
             for i, (name, row) in enumerate(zip(names, values, strict=True))]  # fmt: skip
    if form == "md":
        lines = ["| " + " | ".join(row) + " |" for row in rows]
        return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])
    if form == "txt":
        return "\n".join("  ".join(cell.rjust(14) for cell in row) for row in rows)
    return "\n".join((";" if form == "semi" else "," if form == "csv" else "\t").join(row) for row in rows)


def reasons(path: Path) -> list[str]:
    found = replay(read_job(path), DetectionSettings()).incidents
    assert all(one.kind == "slow_link" for one in found)
    return [one.reason for one in found]


def told(folder: Path, text: str, name: str = "m.csv") -> list[str]:
    (folder / name).write_text(text + "\n", encoding="utf-8")
    return reasons(folder / name)


@pytest.mark.parametrize("form", ["md", "csv", "semi", "tsv", "txt"])
def test_a_slow_pair_is_the_link_between_the_two(form: str, tmp_path: Path):
    names, values = fabric(8)
    assert told(tmp_path, written(names, values, form), f"m.{form}") == []
    values[2, 5] = 14.0  # one direction is enough
    (reason,) = told(tmp_path, written(names, values, form), f"m.{form}")
    assert "node02 - node05 reaches 14" in reason


def test_a_slow_row_and_column_is_the_member(tmp_path: Path):
    names, values = fabric(8)
    values[3, :] *= 0.5
    values[:, 3] *= 0.5
    (reason,) = told(tmp_path, written(names, values, "csv"))
    assert "each pair of node03 reaches 22" in reason


def test_nodes_of_several_gpus_are_a_structure(tmp_path: Path):
    names, values = fabric(4, 4)
    assert told(tmp_path, written(names, values, "csv")) == []
    values[5, 6] = values[6, 5] = 180.0  # within a node, and faster than all pairs between nodes
    (reason,) = told(tmp_path, written(names, values, "csv"))
    assert "node01:gpu1 - node01:gpu2 reaches 180" in reason
    names, values = fabric(4, 4)
    across = np.zeros_like(values, dtype=bool)
    across[8:12], across[8:12, 8:12] = True, False
    values[across | across.T] *= 0.5
    (reason,) = told(tmp_path, written(names, values, "csv"))
    assert "each pair of node02 reaches 22" in reason


def test_unequal_halves_of_a_fabric_are_not_accused(tmp_path: Path):
    names, values = fabric(8)
    values[:6, 6:] *= 0.5
    values[6:, :6] *= 0.5
    assert told(tmp_path, written(names, values, "csv")) == []


def test_a_delay_is_worse_where_it_is_longer(tmp_path: Path):
    names, values = fabric(6, between=5.0)
    assert told(tmp_path, written(names, values, "csv", "latency (us)")) == []
    values[1, 4] = 40.0
    (reason,) = told(tmp_path, written(names, values, "csv", "latency (us)"))
    assert "node01 - node04 takes 40" in reason


def test_a_workbook_holds_the_same_matrix(tmp_path: Path):
    names, values = fabric(6)
    values[0, 3] = 9.0
    frame = pd.DataFrame(values, columns=names).mask(np.eye(6, dtype=bool))
    frame.insert(0, "busbw GB/s", names)
    frame.to_excel(tmp_path / "m.xlsx", index=False)
    (reason,) = reasons(tmp_path / "m.xlsx")
    assert "node00 - node03 reaches 9" in reason


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda text: text.replace("GB/s", "from"), "nothing says whether"),
        (lambda text: "\n".join(line.split("4", 1)[0] if i else line for i, line in enumerate(text.split("\n"))), ""),
        (lambda text: text.replace("46", "?"), ""),
        (lambda text: "\n".join(text.split("\n")[:5]), "rows of its matrix are missing"),
    ],
)
def test_what_is_damaged_or_says_no_unit_is_not_judged(damage, why: str, tmp_path: Path):
    names, values = fabric(8, between=46.0)
    values[2, 5] = 14.0
    (tmp_path / "m.csv").write_text(damage(written(names, values, "csv")) + "\n", encoding="utf-8")
    job = read_job(tmp_path / "m.csv")
    assert not replay(job, DetectionSettings()).incidents
    if why:
        assert why in job.unread[0].why
    else:
        assert [one.format for one in job.files] == ["plain text"]  # lines of which no rule knows one: not judged


def test_steps_of_ranks_are_no_matrix(tmp_path: Path):
    rows = ["step,0,1,2,3", *(f"{step}," + ",".join(["0.5"] * 4) for step in range(40))]
    (tmp_path / "step_time_bw.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    assert read_job(tmp_path / "step_time_bw.csv").files[0].format == "table"
