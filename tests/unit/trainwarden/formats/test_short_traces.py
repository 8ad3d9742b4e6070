"""Traces of few steps: the one rank that computes longer in all of them, and what is no reason to name one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.unit.detectors.last_words.judged import judged
from trainwarden.formats.reading import read_job
from trainwarden.recorded.job import RecordedJob

STEP_US = 1_000_000.0


def trace(rank: int, compute: list[float], call: str = "AllReduce_Sum_f32_RING", step_us: float = STEP_US) -> str:
    """Steps of `step_us`, of which `compute` is the share before a call that lasts to the end."""
    events = []
    for step, share in enumerate(compute):
        begin = step * step_us
        events.append(
            {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}", "ts": begin, "dur": step_us}
        )
        events.append({"ph": "X", "cat": "kernel", "name": f"ncclDevKernel_{call}(args)",
                       "ts": begin + share * step_us, "dur": (1.0 - share) * step_us})  # fmt: skip
    return json.dumps({"schemaVersion": 1, "distributedInfo": {"rank": rank, "world_size": 8}, "traceEvents": events})


def job(folder: Path, shares: Mapping[int, list[float]], call: str = "AllReduce_Sum_f32_RING") -> RecordedJob:
    for rank, compute in shares.items():
        (folder / f"worker{rank}.pt.trace.json").write_text(trace(rank, compute, call), encoding="utf-8")
    return read_job(folder)


def found(read: RecordedJob) -> list[tuple[int | None, str]]:
    return [(log.ranks[0], log.lines[0].split(":")[1].strip()) for log in read.logs]


EVEN = {rank: [0.6 + 0.002 * rank] * 4 for rank in range(6)}


def test_the_rank_that_computes_longest_in_every_step_is_told(tmp_path: Path):
    read = job(tmp_path, {**EVEN, 2: [0.9, 0.88, 0.91, 0.9]})
    assert found(read) == [(2, "rank2 compute failed")]
    assert "1.49 times the" in read.logs[0].lines[0]


@pytest.mark.parametrize(
    "shares",
    [
        EVEN,
        {**EVEN, 2: [0.9, 0.6, 0.9, 0.9]},  # not in every step
        {**EVEN, 2: [0.66] * 4},  # little longer
        {**EVEN, 2: [0.9] * 4, 3: [0.9] * 4},  # half of a stage, or a pair
        {**EVEN, 2: [0.3] * 4},  # the one that waits
        {rank: compute[:2] for rank, compute in {**EVEN, 2: [0.9] * 4}.items()},  # two steps
        {0: [0.6] * 4, 1: [0.9] * 4, 2: [0.6] * 4},  # three ranks
        {rank: [0.4 + 0.1 * rank] * 4 for rank in range(6)},  # work that is uneven by itself
    ],
)
def test_nobody_is_told_where_work_is_even_or_uneven_by_itself(tmp_path: Path, shares: dict[int, list[float]]):
    assert found(job(tmp_path, shares)) == []


def test_stages_and_experts_are_not_compared(tmp_path: Path):
    read = job(tmp_path, {**EVEN, 2: [0.9] * 4}, "SendRecv")
    assert found(read) == []


def test_a_rank_that_waits_longest_as_well_is_not_the_slow_one(tmp_path: Path):
    job(tmp_path, EVEN)
    longer = trace(2, EVEN[2], step_us=2 * STEP_US)
    (tmp_path / "worker2.pt.trace.json").write_text(longer, encoding="utf-8")
    assert found(read_job(tmp_path)) == []


def test_the_rank_is_named_in_an_incident_though_a_job_of_few_steps_has_only_begun(tmp_path: Path):
    job(tmp_path, {**EVEN, 2: [0.9] * 4})
    (incident,) = judged(tmp_path, {})
    assert (incident.kind, [one.rank for one in incident.suspects]) == ("slow_compute", [2])
