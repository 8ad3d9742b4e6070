"""GPUs of a whole job that idle together again and again are told as one stall; rests that a run has anyway are not."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd
import pytest

from tests.unit.trainwarden.formats.answers import answer_to
from trainwarden.formats.building import metric_table
from trainwarden.formats.gpu.idle_together import idle_together

T0, EVERY_S, SPAN_S = 1_790_000_000, 5, 3600
Use = Callable[[int, int], float]


def stalls(time_s: int, gpu: int) -> float:
    """40 s of every 180 s."""
    return 0.0 if time_s > 300 and time_s % 180 < 40 else 0.97


def table(use: Use, gpus: int = 4, nodes: int = 2, late_s: int = 0, every_s: int = EVERY_S,
          span_s: int = SPAN_S) -> list[str]:  # fmt: skip
    rows = [{"time_s": T0 + time_s + late_s * node, "node": f"n{node}", "device": f"gpu{gpu}",
             "gpu_utilization_ratio": use(time_s, gpu + gpus * node)}
            for time_s in range(0, span_s, every_s) for node in range(nodes) for gpu in range(gpus)]  # fmt: skip
    return [line for log in idle_together(metric_table(pd.DataFrame(rows))) for line in log.lines]


def test_stalls_of_all_gpus_are_told_with_how_often_and_how_long():
    (line,) = table(stalls)
    assert line.startswith("health check: job data failed: all 8 GPUs were idle together 18 times, for 40 s each and 2")


def test_nodes_that_sample_at_other_moments_and_seldom_are_compared_all_the_same():
    assert len(table(stalls, late_s=2)) == 1
    assert len(table(stalls, every_s=30)) == 1


def test_a_gpu_that_is_never_used_is_left_out():
    assert len(table(lambda time_s, gpu: 0.0 if gpu == 7 else stalls(time_s, gpu))) == 1


@pytest.mark.parametrize(
    "use",
    [
        lambda time_s, gpu: 0.97,
        lambda time_s, gpu: 0.0 if time_s % 300 < 25 else 0.97,  # checkpoints: 8 % of the time
        lambda time_s, gpu: 0.0 if time_s % 30 < 5 else 0.97,  # moments between steps
        lambda time_s, gpu: 0.3 if time_s % 180 < 40 else 0.97,  # an evaluation
        lambda time_s, gpu: stalls(time_s, gpu) if gpu == 3 else 0.97,  # one GPU has a cause of its own
        lambda time_s, gpu: stalls(time_s, gpu) if gpu < 4 else 0.97,  # half of them: another job
        lambda time_s, gpu: stalls(time_s, gpu) if gpu < 6 else 0.97,
        lambda time_s, gpu: 0.97 if time_s < 1800 else 0.0,  # ended
        lambda time_s, gpu: 0.0 if time_s < 1800 else 0.97,  # not begun
        lambda time_s, gpu: 0.0 if time_s % 900 < 300 else 0.97,  # three times, however long
        lambda time_s, gpu: 0.0,
    ],
)
def test_rests_that_a_run_has_anyway_are_not_told(use: Use):
    assert table(use) == []


def test_runs_one_after_the_other_are_no_stalls_of_one():
    assert table(lambda time_s, gpu: 0.0 if time_s % 1200 < 660 else 0.97, every_s=30, span_s=12_000) == []
    assert table(lambda time_s, gpu: 0.0 if time_s % 1200 < 540 else 0.97, every_s=30, span_s=12_000)


def test_a_single_gpu_has_no_others_to_idle_with():
    assert table(stalls, gpus=1, nodes=1) == []


def smi(use: Use, rows: int = SPAN_S // EVERY_S) -> str:
    lines = ["timestamp, index, utilization.gpu [%], temperature.gpu"]
    for place in range(rows):
        when = datetime.fromtimestamp(T0 + EVERY_S * place, UTC).strftime("%Y/%m/%d %H:%M:%S.000")
        lines += [f"{when}, {gpu}, {use(EVERY_S * place, gpu):.0%}, 61".replace("%", " %") for gpu in range(4)]
    return "\n".join(lines) + "\n"


def test_a_table_of_nvidia_smi_is_answered_by_a_stall_of_nobody(tmp_path: Path):
    both = {"n1.csv": smi(stalls), "n2.csv": smi(stalls)}
    assert answer_to(tmp_path / "two", both) == ("incident", [("data_stall", [(None, None, None)])])
    assert answer_to(tmp_path / "cut", {"gpu.csv": smi(stalls)[:-40]})[1] == [("data_stall", [(None, None, None)])]
    assert answer_to(tmp_path / "short", {"gpu.csv": smi(stalls, 100)}) == ("healthy", [])


def test_a_table_with_steps_is_judged_by_them(tmp_path: Path):
    steps = "step,time_s,duration_s\n" + "".join(f"{n},{T0 + 4 * n},4.0\n" for n in range(900))
    assert answer_to(tmp_path, {"gpu.csv": smi(stalls), "iterations.csv": steps})[1] == []
