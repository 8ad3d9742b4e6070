"""Roles of ranks: told apart by what lasts, and never by a slow rank, a fault or noise."""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.places import shared_data
from trainwarden.detectors.recorded.stream import ReplayStream
from trainwarden.errors import DataError
from trainwarden.recorded.folder import read_folder, read_levels_of
from trainwarden.records import IterationRecord
from trainwarden.trainer_offline.suggest.entity_series import entity_series
from trainwarden.trainer_offline.suggest.roles import Roles, propose
from trainwarden.trainer_offline.suggest.roles_file import write_roles

STEPS = 120


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time warping is not compiled in tests (`tests/conftest.py`)."""
    monkeypatch.setattr("trainwarden.trainer_offline.suggest.roles.MOST_ROLES", 3)


def job(folder: Path, compute_s: np.ndarray) -> Path:
    """A synchronous job of ``compute_s [ranks, steps]``: who has computed waits for the last."""
    ranks, steps = compute_s.shape
    whole_s = compute_s.max(axis=0) + 0.1
    frame = pd.DataFrame({"step": np.tile(np.arange(steps), ranks), "rank": np.repeat(np.arange(ranks), steps)})
    frame["duration_s"], frame["compute_s"] = np.tile(whole_s, ranks), compute_s.ravel()
    frame["wait_s"] = (whole_s - compute_s).ravel()
    folder.mkdir(parents=True, exist_ok=True)
    frame.to_csv(folder / "iterations.csv", index=False)
    return folder


def computing(levels: Mapping[int, float], ranks: int, seed: int = 0) -> np.ndarray:
    """Rank r computes for as long as the last level that begins at or before it; all vary together, and alone."""
    rng = np.random.default_rng(seed)
    level = np.array([levels[max(first for first in levels if first <= rank)] for rank in range(ranks)])
    return level[:, None] * (1.0 + rng.normal(0.0, 0.05, STEPS)) + rng.normal(0.0, 0.02, (ranks, STEPS))


def proposed(folder: Path) -> Roles:
    series = entity_series(read_levels_of(folder))
    assert series is not None
    return propose(series)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "levels", [{0: 1.0}, {0: 1.0, 4: 1.3}, {0: 1.0, 3: 1.2, 6: 1.5}, {0: 1.2, 3: 1.0}], ids=["one", "2", "3", "uneven"]
)
def test_as_many_roles_as_there_are(tmp_path: Path, levels: dict[int, float]) -> None:
    found = proposed(job(tmp_path / "job", computing(levels, 9)))
    true = [sum(first <= rank for first in levels) - 1 for rank in range(9)]
    assert found.labels.tolist() == true, found.why
    assert (found.count > 1) == (len(levels) > 1)


@pytest.mark.thorough
@pytest.mark.parametrize("slow", [1, 2])
def test_a_few_slow_ranks_are_no_role_and_are_named(tmp_path: Path, slow: int) -> None:
    found = proposed(job(tmp_path / "job", computing({0: 1.0, 9 - slow: 1.5}, 9)))
    assert found.count == 1
    assert found.why.startswith(", ".join(f"rank {rank}" for rank in range(9 - slow, 9)) + " alone stand apart")


@pytest.mark.thorough
def test_a_node_that_is_slow_for_a_while_is_no_role(tmp_path: Path) -> None:
    compute_s = computing({0: 1.0}, 9)
    compute_s[6:, int(0.4 * STEPS) :] += 0.8
    found = proposed(job(tmp_path / "job", compute_s))
    assert (found.count, found.why) == (1, "what tells them apart is not there throughout, as a role would be")


def test_who_does_the_same_or_nothing_has_one_role(tmp_path: Path) -> None:
    for number, compute_s in enumerate((np.full((8, 40), 1.0), np.full((8, 1), 1.0), np.full((2, 40), [[1.0], [2.0]]))):
        assert proposed(job(tmp_path / str(number), compute_s)).count == 1


@pytest.mark.parametrize("rows", ["1,0.5\n2,0.5\n", ""], ids=["of the whole job", "none"])
def test_iterations_without_ranks_tell_no_ranks_apart(tmp_path: Path, rows: str) -> None:
    (tmp_path / "iterations.csv").write_text(f"step,duration_s\n{rows}")
    assert entity_series(read_levels_of(tmp_path)) is None


@pytest.mark.thorough
def test_devices_without_ranks_and_with_gaps_are_told_apart_by_metrics(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = [
        {"time_s": float(time), "node": "n0", "device": f"GPU-{gpu}", "gpu_power_watts": (400.0, 250.0)[gpu // 3]}
        for time in range(40) for gpu in range(6) if (time, gpu) != (20, 1)
    ]  # fmt: skip
    frame = pd.DataFrame(rows)
    frame["gpu_power_watts"] += rng.normal(0.0, 5.0, len(frame))
    frame.loc[::7, "gpu_power_watts"] = np.nan
    frame["gpu_temperature_celsius"] = rng.normal(60.0, 1.0, len(frame))  # noise, alike for all
    frame.to_csv(tmp_path / "metrics.csv", index=False)
    series = entity_series(read_levels_of(tmp_path))
    assert series is not None
    assert series.names_of_lanes == ("gpu_power_watts",)
    assert propose(series).labels.tolist() == [0, 0, 0, 1, 1, 1]


def test_roles_are_read_where_they_were_written(tmp_path: Path) -> None:
    folder = job(tmp_path / "job", computing({0: 1.0}, 4))
    (folder / "job.toml").write_text('name = "j"\nparallel = {pp = 2}\n\n[[planned_change]]\nstep = 3\nwhat = "x"')
    write_roles(folder, {"role0": [0, 1, 3], "role1": [2]})
    read = read_folder(folder)
    assert (read.name, read.parallel, len(read.planned)) == ("j", {"pp": 2}, 1)
    assert read.roles == {0: "role0", 1: "role0", 2: "role1", 3: "role0"}
    records = [one for _, part in ReplayStream(read).windows() for one in part if isinstance(one, IterationRecord)]
    assert {one.rank: one.role for one in records} == read.roles
    with pytest.raises(DataError, match="has roles already"):
        write_roles(folder, {"role0": [0]})
    assert read_folder(folder).roles == read.roles


@pytest.mark.parametrize(
    ("roles", "why"),
    [
        ('a = "0-x"', "key roles.a: '0-x' is neither a rank nor a range"),
        ('a = "0-3"\nb = "3"', "rank 3 is both a and b"),
        (f'a = "{",".join(["0-999999"] * 3)}"', "names more than 1,000,000 ranks"),
        ("a = 3", "roles"),
    ],
)
def test_wrong_roles_are_one_sentence(tmp_path: Path, roles: str, why: str) -> None:
    folder = job(tmp_path / "job", computing({0: 1.0}, 2))
    (folder / "job.toml").write_text(f"[roles]\n{roles}\n")
    with pytest.raises(DataError, match=r"job\.toml") as caught:
        read_folder(folder)
    assert why in str(caught.value)


@pytest.mark.thorough
def test_stages_of_a_recorded_job_are_found(tmp_path: Path) -> None:
    """ByteDance's job of uneven sequences: two stages of 32 ranks each; every fifth rank, for time's sake."""
    data = shared_data()
    if data is None:
        pytest.skip("no shared data on this machine")
    with gzip.open(data / "bytedance_straggler" / "compute_per_rank-SE.csv.gz", "rt") as file:
        table = pd.read_csv(file).set_index("step").to_numpy().T
    assert proposed(job(tmp_path / "job", table[::5])).labels.tolist() == [0] * 7 + [1] * 6
