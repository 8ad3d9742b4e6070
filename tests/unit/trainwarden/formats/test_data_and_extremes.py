"""Data that take most of a step, and the rank that stays the slowest, by what trainers print of them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.unit.detectors.last_words.judged import judged
from trainwarden.formats.text.step_times import line_time_s
from trainwarden.recorded.job import IterationTable, LogTable

METERS: dict[str, Callable[[int, float, float], str]] = {
    "imagenet": lambda step, time, data: f"Epoch: [1][{step:>4}/5005]\tTime {time:6.3f} ( 0.2)\tData {data:6.3f} ( 0.1)\tLoss 2.1",  # noqa: E501
    "timm": lambda step, time, data: f"Train: 0 [{step:>4}/1251 (  4%)]  Loss: 6.9 (6.9)  Time: {time:.3f}s, 820.51/s  (0.3s, 752.94/s)  LR: 1e-1  Data: {data:.3f} (0.020)",  # noqa: E501
    "torchvision": lambda step, time, data: f"Epoch: [0]  [{step:>4}/1251]  eta: 0:10:11  loss: 6.9 (6.9)  time: {time:.4f}  data: {data:.4f}  max mem: 3000",  # noqa: E501
    "detectron2": lambda step, time, data: f"[09/21 08:{step // 60:02d}:{step % 60:02d} d2.utils.events]:  eta: 2:10:11  iter: {step}  total_loss: 1.2  time: {time:.4f}  data_time: {data:.4f}  lr: 0.02",  # noqa: E501
    "mmengine": lambda step, time, data: f"09/21 08:{step // 60:02d}:{step % 60:02d} - mmengine - INFO - Epoch(train)  [1][{step:>5}/9000]  lr: 2.0e-02  eta: 2:10:11  time: {time:.4f}  data_time: {data:.4f}  loss: 2.1",  # noqa: E501
    "open_clip": lambda step, time, data: f"2026-09-21,08:{step // 60:02d}:{step % 60:02d} | INFO | Train Epoch: 0 [{step:>7}/256000 (10%)] Data (t): {data:.3f} Batch (t): {time:.3f}, 169.3/s LR: 0.0001 Loss: 3.2 (3.2)",  # noqa: E501
}  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("trainer", METERS)
def test_steps_that_begin_to_wait_for_data_accuse_nobody(tmp_path: Path, trainer: str) -> None:
    lines = [METERS[trainer](step, 0.16, 0.01) for step in range(10, 410, 10)]
    lines += [METERS[trainer](step, 8.1 + step % 3 / 10, 7.95 + step % 3 / 10) for step in range(410, 810, 10)]
    (incident,) = judged(tmp_path, {"train.log": lines})
    assert (incident.kind, [one.rank for one in incident.suspects]) == ("data_stall", [None])


@pytest.mark.parametrize("trainer", METERS)
@pytest.mark.parametrize("data", [0.01, 0.12])
def test_even_meters_and_a_slow_first_batch_of_an_epoch_are_healthy(tmp_path: Path, trainer: str, data: float) -> None:
    lines = [
        METERS[trainer](step, 4.0 if step == 10 else 0.16, 3.9 if step == 10 else data) for step in range(10, 810, 10)
    ]
    assert judged(tmp_path, {"train.log": lines}) == []


def composer(batch: int, rank: int, least: float) -> list[str]:
    return [f"[batch={batch}/900]:", f"\t Train time/batch: {batch - 1}",
            f"\t Train MinThroughput/Rank: {least:.2f}TF/{rank}", "\t Train MaxThroughput/Rank: 129.60TF/2",
            f"\t Train MinClock/Rank: {1155 if least < 100 else 1755}MHz/{rank}",
            f"\t Train throughput/batches_per_sec: {0.31 * min(least, 129.0) / 129.0:.4f}"]  # fmt: skip


def megatron(batch: int, rank: int, least: float) -> list[str]:
    return [
        f" iteration {batch}/ 900 | elapsed time per iteration (ms): {3200.0 * 129.0 / min(least, 129.0):.1f} | loss 2.1 |",  # noqa: E501
        f" 0: INFO:megatron.core.utils:[2026-03-14 23:{batch // 60:02d}:{batch % 60:02d}] | MnRtt/Rnk: 34.08ms/8 | "
        f"MnClk/Rnk: 1950MHz/{rank} | MnEtpt/Rnk: {least:.2f}TF/{rank} | MxEtpt/Rnk: 129.60TF/8",
    ]


@pytest.mark.parametrize("printed", [pytest.param(composer, marks=pytest.mark.thorough), megatron])
def test_the_rank_that_stays_the_slowest_by_far_is_named(
    tmp_path: Path, printed: Callable[[int, int, float], list[str]]
) -> None:
    lines = [line for batch in range(1, 60) for line in printed(batch, batch * 5 % 32, 129.3)]
    lines += [line for batch in range(60, 120) for line in printed(batch, 13, 88.0 + batch % 3)]
    (incident,) = judged(tmp_path, {"train.log": lines})
    assert (incident.kind, [one.rank for one in incident.suspects]) == ("slow_compute", [13])


@pytest.mark.parametrize("printed", [composer, megatron])
@pytest.mark.parametrize("rank", [None, 13])
def test_ranks_that_differ_a_little_or_by_themselves_are_not(
    tmp_path: Path, printed: Callable[[int, int, float], list[str]], rank: int | None
) -> None:
    least = 127.0 if rank is None else 110.0  # a stage of a pipeline is so from the beginning
    lines = [line for batch in range(1, 120) for line in printed(batch, 13 if rank else batch * 5 % 32, least)]
    assert judged(tmp_path, {"train.log": lines}) == []


def test_ranks_stand_since_the_last_line_of_the_logs(tmp_path: Path) -> None:
    stack = '==> py-spy dump --pid 4120{0}  (rank {0}) <==\nThread 0x7F1 (active): "MainThread"\n    {1}\n    forward (a.py:703)\n'  # noqa: E501
    waits, works = "all_gather_coalesced (torch/distributed/distributed_c10d.py:2901)", "compute (model.py:41)"
    dump = tmp_path / "pyspy.txt"
    dump.write_text("".join(stack.format(rank, works if rank == 5 else waits) for rank in range(8)))
    steps = [f"2026-01-13 22:00:{second:02d} step {second} loss 2.5" for second in range(50)]
    os.utime(dump, (1_900_000_000, 1_900_000_000))
    (incident,) = judged(tmp_path, {"train.log": steps})
    assert (incident.kind, incident.suspects[0].rank) == ("hang", 5)
    assert incident.onset_s == pytest.approx(1_768_341_649.0, abs=2.0)


def test_a_line_behind_steps_without_stamps_is_as_old_as_they_say(tmp_path: Path) -> None:
    steps = [f"step {number} | loss 2.5 | dt: 60000ms" for number in range(1, 61)]
    lost = "The node with node id: ada3 and address: 10.9.8.5 and node name: n5 has been marked dead because the detector has missed too many heartbeats from it."  # noqa: E501
    (incident,) = judged(tmp_path, {"driver.log": ["2026-01-13 22:00:00 start", *steps, lost]})
    assert (incident.kind, incident.onset_s) == ("node_lost", 1_768_341_600.0 + 3600.0)


@pytest.mark.parametrize(
    ("stamps", "prints", "time_s"),
    [
        ([5.0, 6.0, 7.0, 8.0], 4, 8.0),  # its own stamp
        ([np.nan] * 4, 4, 40.0),  # the fourth step's end
        ([np.nan] * 4, 3, 40.0),  # the first step came without such a line
        ([np.nan] * 14, 14, np.nan),  # not one for each step
    ],
)
def test_a_line_that_comes_with_each_step_has_its_time(stamps: list[float], prints: int, time_s: float) -> None:
    nobody, empty = (None,) * len(stamps), np.full(4, np.nan)
    log = LogTable("a.log", np.array(stamps), nobody, nobody, ["x"] * len(stamps))
    told = IterationTable(
        rank=np.zeros(4, np.int64), ranks=(None,), nodes=(None,), step=np.arange(4),
        end_s=np.array([10.0, 20.0, 30.0, 40.0]),
        duration_s=np.full(4, 10.0), compute_s=empty, wait_s=empty, pause_s=empty,
        micro_batches=np.zeros(4, np.int64), steps=np.ones(4, np.int64), timed=False,
    )  # fmt: skip
    found = line_time_s(log, range(len(stamps) - prints, len(stamps)), prints - 1, told)
    assert found == time_s or (np.isnan(found) and np.isnan(time_s))
