"""Memory of nodes in a recording that knows no steps: one that fills up within days is named, healthy ones are not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest

from trainwarden.cli.ask.detect_jobs import Asked, jobs_to_judge, judge_folder

TIMES_S = np.arange(0.0, 5.0 * 3600.0, 20.0)
GB = 1e9


def judged(file: Path) -> list[tuple[str, list[tuple[str | None, int | None]]]]:
    (work,), _ = jobs_to_judge(file, Asked(None, None, None, None, want_scores=False), None)
    return [(one.kind, [(who.node, who.rank) for who in one.suspects]) for one in judge_folder(work).records]


def incidents(tmp_path: Path, left: npt.NDArray[np.float64]) -> list[tuple[str, list[tuple[str | None, int | None]]]]:
    """What is found where one of four nodes has `left` of its memory over time, and the others 900 GB with noise."""
    rng, rows = np.random.default_rng(0), []
    for node in range(4):
        values = (left if node == 2 else np.full(TIMES_S.size, 900.0 * GB)) + rng.normal(0.0, GB, TIMES_S.size)
        rows.append(pd.DataFrame({"timestamp": 1.79e9 + TIMES_S, "node": f"n{node}", "mem_available": values}))
    file = tmp_path / "memory.csv"
    pd.concat(rows).sort_values("timestamp").to_csv(file, index=False)
    return judged(file)


def test_a_node_whose_memory_falls_steadily_is_named(tmp_path: Path) -> None:
    falls = 900.0 * GB - 120.0 * GB * np.maximum(0.0, TIMES_S / 3600.0 - 1.0)
    assert incidents(tmp_path, falls) == [("memory_leak", [("n2", None)])]


@pytest.mark.parametrize(
    "left",
    [
        900.0 * GB - 300.0 * GB * (TIMES_S > 7200.0),  # a file system in memory that is filled at once
        900.0 * GB - 300.0 * GB * np.clip((TIMES_S - 3600.0) / 720.0, 0.0, 1.0),  # a model that is loaded
        900.0 * GB - 200.0 * GB * (TIMES_S % 5400.0) / 5400.0,  # collected now and then
        900.0 * GB - 2.0 * GB * TIMES_S / 3600.0,  # full in weeks
    ],
    ids=["at once", "loaded", "sawtooth", "slowly"],
)
def test_what_healthy_nodes_do_is_no_leak(left: npt.NDArray[np.float64], tmp_path: Path) -> None:
    assert incidents(tmp_path, left) == []


def test_where_a_rank_is_known_to_leak_its_node_is_not_blamed_beside_it(tmp_path: Path) -> None:
    leaked = 120.0 * GB * np.maximum(0.0, TIMES_S / 3600.0 - 1.0)
    times_s = 1.79e9 + TIMES_S
    rank = pd.DataFrame({"time_s": times_s, "node": "n0", "rank": "0", "rank_anonymous_memory_bytes": 90 * GB + leaked})
    node = pd.DataFrame({"time_s": times_s, "node": "n0", "rank": "", "host_memory_available_bytes": 900 * GB - leaked})
    file = tmp_path / "memory.csv"
    pd.concat([rank, node]).sort_values("time_s").to_csv(file, index=False)
    assert judged(file) == [("memory_leak", [("n0", 0)])]
