"""Ranks that names of files and columns tell: their steps are compared, and runs that differ otherwise are not."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.unit.trainwarden.formats.answers import Suspects, answer_to
from trainwarden.formats.joining.named_ranks import rank_in

T0, STEPS, RANKS = 1_790_000_000, 240, 8


def durations(rank: int, slow: int | None) -> list[float]:
    """Seconds of each step; rank `slow` takes 1.5 times as long from step 160 on."""
    noise = np.random.default_rng(rank).uniform(-0.02, 0.02, STEPS)
    return [2.0 * (1.5 if rank == slow and step >= 160 else 1.0) + noise[step] for step in range(STEPS)]


def tensorboard(rank: int, slow: int | None) -> str:
    rows = [f"{T0 + 3 * step},{step},{value}" for step, value in enumerate(durations(rank, slow))]
    return "\n".join(["Wall time,Step,Value", *rows, ""])


def history(rank: int, slow: int | None) -> str:
    rows = [{"_step": step, "_timestamp": T0 + 3 * step, "step_time": value, "loss": 3.0 - step / 200}
            for step, value in enumerate(durations(rank, slow))]  # fmt: skip
    return "".join(json.dumps(row) + "\n" for row in rows)


def clearml(slow: int | None, word: str = "rank{}") -> str:
    steps = list(range(STEPS))
    series = {word.format(rank): {"name": word.format(rank), "x": steps, "y": durations(rank, slow)}
              for rank in range(RANKS)}  # fmt: skip
    return json.dumps({"step_time": series})


def panel(slow: int | None) -> str:
    """As W&B exports a panel, with the least and the most of each series."""
    names = [f"rank{rank} - train/step_time{end}" for rank in range(RANKS) for end in ("", "__MIN", "__MAX")]
    lanes = [durations(rank, slow) for rank in range(RANKS) for _ in range(3)]
    rows = [[f'"{lane[step]}"' for lane in lanes] for step in range(STEPS)]
    return "\n".join(['"Step",' + ",".join(f'"{one}"' for one in names),
                      *(f'"{step}",' + ",".join(row) for step, row in enumerate(rows)), ""])  # fmt: skip


def files(kind: str, slow: int | None) -> dict[str, str]:
    if kind == "tensorboard":
        return {f"run-rank{rank}-tag-step_time.csv": tensorboard(rank, slow) for rank in range(RANKS)}
    if kind == "wandb":
        return {f"history_rank_{rank}.jsonl": history(rank, slow) for rank in range(RANKS)}
    return {"scalars.json": clearml(slow)} if kind == "clearml" else {"panel.csv": panel(slow)}


FOUND: tuple[str, list[tuple[str, Suspects]]] = ("incident", [("slow_compute", [(5, None, None)])])


@pytest.mark.parametrize("kind", ["tensorboard", "wandb", "clearml", "panel"])
def test_the_rank_whose_steps_become_longer_is_named_and_even_ones_are_healthy(tmp_path: Path, kind: str):
    assert answer_to(tmp_path / "slow", files(kind, 5)) == FOUND
    assert answer_to(tmp_path / "even", files(kind, None)) == ("healthy", [])


@pytest.mark.parametrize("word", ["lora_rank{}", "rank{}", "run{}"])
def test_runs_that_differ_by_the_rank_of_their_matrices_are_not_compared(tmp_path: Path, word: str):
    sizes = (8, 16, 32, 64)
    runs = {f"{word.format(size)}.jsonl": history(place, 2) for place, size in enumerate(sizes)}
    assert [suspects for _, suspects in answer_to(tmp_path, runs)[1] if suspects] == []


def test_one_file_that_is_cut_short_leaves_the_others_judged(tmp_path: Path):
    whole = files("tensorboard", 5)
    name = next(iter(whole))
    assert answer_to(tmp_path, {**whole, name: whole[name][:600]})[1] == FOUND[1]


@pytest.mark.parametrize(
    "name", ["local_rank3.csv", "lora_rank8.csv", "low-rank4.csv", "frank3.csv", "rank1/rank2.csv"]
)
def test_what_is_no_rank_of_the_job_is_none(name: str):
    assert rank_in(name) is None
