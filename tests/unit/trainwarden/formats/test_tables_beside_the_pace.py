"""What tables tell beside the pace: replicas that part, ranks that wait for data, saves that grew; with their twins."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from trainwarden.detectors.recorded.replay import replay
from trainwarden.formats.reading import read_job
from trainwarden.settings import DetectionSettings

STEPS, RANKS = 60, 8


def kinds(path: Path) -> list[tuple[str, list[int | None]]]:
    found = replay(read_job(path), DetectionSettings()).incidents
    return [(one.kind, [suspect.rank for suspect in one.suspects]) for one in found]


def written(folder: Path, text: str, name: str = "t.csv") -> list[tuple[str, list[int | None]]]:
    (folder / name).write_text(text + "\n", encoding="utf-8")
    return kinds(folder / name)


def losses(sick: bool, ranks: int = RANKS) -> np.ndarray:
    found = 2.0 + np.random.default_rng(1).normal(0.0, 0.03, (STEPS, ranks)) + np.linspace(1.0, 0.0, STEPS)[:, None]
    found[30:, 3] += np.linspace(0.2, 2.0, STEPS - 30) if sick else 0.0
    return found


def long_losses(values: np.ndarray) -> str:
    return "\n".join(["step,rank,loss", *(f"{step},{rank},{one:.4f}" for (step, rank), one in np.ndenumerate(values))])


def wide_losses(values: np.ndarray) -> str:
    header = "step," + ",".join(f"loss/rank_{rank}" for rank in range(values.shape[1]))
    return "\n".join([header, *(f"{step}," + ",".join(f"{one:.4f}" for one in row) for step, row in enumerate(values))])


@pytest.mark.parametrize("text", [long_losses, wide_losses])
def test_the_replica_whose_loss_leaves_the_others_is_named(text, tmp_path: Path):
    assert written(tmp_path, text(losses(True))) == [("silent_corruption", [3])]
    assert written(tmp_path, text(losses(False))) == []
    few = losses(True, 5)[:, [0, 3, 4]]
    assert written(tmp_path, text(few)) == []  # of three nobody knows who is right


def folders(base: Path, word: str, values: np.ndarray) -> Path:
    for rank, column in enumerate(values.T):
        (base / f"{word}{rank}").mkdir(parents=True)
        rows = [f"{step},{one:.4f}" for step, one in enumerate(column)]
        (base / f"{word}{rank}" / "loss.csv").write_text("\n".join(["step,loss", *rows]) + "\n", encoding="utf-8")
    return base


def test_runs_of_a_sweep_are_no_replicas(tmp_path: Path):
    assert kinds(folders(tmp_path / "ranks", "rank_", losses(True))) == [("silent_corruption", [3])]
    assert kinds(folders(tmp_path / "sweep", "lr_1e-", losses(True))) == []
    two_runs = losses(True)
    folders(tmp_path / "two" / "a", "rank_", two_runs)
    folders(tmp_path / "two" / "b", "rank_", two_runs + 0.5)
    assert kinds(tmp_path / "two") == []


def waits(sick: int) -> str:
    """Steps of a second; ranks of which some wait half a second for data in each second step from step 20 on."""
    lines = ["step,rank,step_time_s,data_wait_s"]
    for step in range(STEPS):
        stalled = step >= 20 and step % 2 == 0
        for rank in range(RANKS):
            wait = 0.01 + (0.5 if stalled and rank < sick else 0.0)
            lines.append(f"{step},{rank},{1.0 + (0.49 if stalled and sick else 0.0) + 0.001 * rank:.3f},{wait:.3f}")
    return "\n".join(lines)


def test_the_rank_that_waits_for_data_is_named_with_its_input(tmp_path: Path):
    found = written(tmp_path, waits(1))
    assert ("data_stall", [0]) in found
    assert not any(kind == "slow_compute" for kind, _ in found)
    assert written(tmp_path, waits(0)) == []
    assert not any(kind == "data_stall" for kind, _ in written(tmp_path, waits(RANKS)))  # nobody stands apart
    assert not any(kind == "data_stall" for kind, _ in written(tmp_path, waits(1).replace("data_wait_s", "data_size")))


def saves(times_s: list[float], name: str = "checkpoint_save_s") -> str:
    lines = [f"step,step_time_s,{name}"]
    for step in range(10 * len(times_s)):
        save = f"{times_s[step // 10]}" if step % 10 == 9 else ""
        lines.append(f"{step},{2.0 + 0.01 * (step % 3)},{save}")
    return "\n".join(lines)


SLOW = [11.5, 12.0, 11.0, 11.8, 92.0, 94.0, 91.0, 95.0]


def test_saves_that_become_much_longer_are_of_the_storage(tmp_path: Path):
    assert written(tmp_path, saves(SLOW)) == [("storage", [None])]
    assert written(tmp_path, saves([*SLOW[:4], 92.0, *SLOW[:3]])) == []  # one of them
    assert written(tmp_path, saves([40.0, *SLOW[:4], *SLOW[:3]])) == []  # the first one makes folders
    assert written(tmp_path, saves(SLOW, "checkpoint_size_s")) == []
    damaged = saves(SLOW).replace("92.0", "").replace("94.0", "nan").replace("91.0", "")
    assert written(tmp_path, damaged) == []  # of one save nothing follows
