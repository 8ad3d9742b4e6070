"""Memory of nodes in a recording that knows no steps: one that fills up within days is named, healthy ones are not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest

from trainwarden.cli.ask.detect_jobs import Asked, jobs_to_judge, judge_folder

TIMES_S = np.arange(0.0, 5.0 * 3600.0, 60.0)
GB = 1e9


def incidents(tmp_path: Path, left: npt.NDArray[np.float64]) -> list[tuple[str, str | None]]:
    """What is found where one of four nodes has `left` of its memory over time, and the others 900 GB with noise."""
    rng, rows = np.random.default_rng(0), []
    for node in range(4):
        values = (left if node == 2 else np.full(TIMES_S.size, 900.0 * GB)) + rng.normal(0.0, GB, TIMES_S.size)
        rows.append(pd.DataFrame({"timestamp": 1.79e9 + TIMES_S, "node": f"n{node}", "mem_available": values}))
    file = tmp_path / "memory.csv"
    pd.concat(rows).sort_values("timestamp").to_csv(file, index=False)
    (work,), _ = jobs_to_judge(file, Asked(None, None, None, None, want_scores=False), None)
    return [(one.kind, one.suspects[0].node) for one in judge_folder(work).records]


def test_a_node_whose_memory_falls_steadily_is_named(tmp_path: Path) -> None:
    falls = 900.0 * GB - 120.0 * GB * np.maximum(0.0, TIMES_S / 3600.0 - 1.0)
    assert incidents(tmp_path, falls) == [("memory_leak", "n2")]


@pytest.mark.parametrize(
    "left",
    [
        900.0 * GB - 300.0 * GB * (TIMES_S > 7200.0),  # a file system in memory that is filled at once
        900.0 * GB - 300.0 * GB * np.minimum(1.0, TIMES_S / 1800.0),  # a model that is loaded
        900.0 * GB - 200.0 * GB * (TIMES_S % 5400.0) / 5400.0,  # collected now and then
        900.0 * GB - 2.0 * GB * TIMES_S / 3600.0,  # full in weeks
    ],
    ids=["at once", "loaded", "sawtooth", "slowly"],
)
def test_what_healthy_nodes_do_is_no_leak(left: npt.NDArray[np.float64], tmp_path: Path) -> None:
    assert incidents(tmp_path, left) == []
