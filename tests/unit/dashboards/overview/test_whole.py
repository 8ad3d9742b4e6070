"""Whole runs: bins that double as the run grows hold the same sums, and verdicts are thinned but not lost."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.page_world import NOW_S, publish, world
from trainwarden.bus.embedded.engine import EmbeddedBus
from trainwarden.dashboards.overview.job import MAX_VERDICTS, JobOverview
from trainwarden.dashboards.overview.pace import BINS, SHORT_BIN_S, Pace
from trainwarden.dashboards.overview.whole import read_whole
from trainwarden.protocols import Message
from trainwarden.records import IterationRecord, VerdictRecord


def steps(rank: int, end_s: list[float], seconds: float) -> IterationRecord:
    numbers = tuple(range(len(end_s)))
    return IterationRecord(
        job="j", node="n", rank=rank, incarnation="a", steps=numbers, end_s=tuple(end_s),
        duration_s=(seconds,) * len(end_s),
    )  # fmt: skip


@pytest.mark.parametrize("order", ["as they came", "one at a time", "the newest first"])
def test_doubled_bins_hold_what_they_held(order: str) -> None:
    ends = [NOW_S + 7.3 * number for number in range(200)]
    pace = Pace(whole=True)
    groups = {"as they came": [ends], "one at a time": [[end] for end in ends]}.get(order) or [ends[100:], ends[:100]]
    for group in groups:
        for rank in range(3):
            pace.apply(steps(rank, group, 1.0 + rank), arrived_s=group[-1])
        pace.apply_pending()
    sums, counts = pace.sums("duration")
    assert counts.sum(axis=1).tolist() == [200.0] * 3
    assert np.allclose(sums.sum(axis=1), [200.0, 400.0, 600.0])
    assert pace.bin_s == SHORT_BIN_S * 64  # 1,453 s in 360 bins
    newest = counts[0].nonzero()[0]
    assert newest[-1] == BINS - 1
    assert pace.until_s is not None
    for end_s in ends:  # each where it belongs
        assert counts[0, BINS - 1 - int(pace.until_s / pace.bin_s - 1 - end_s // pace.bin_s)] > 0


def test_a_time_out_of_this_world_makes_no_room_for_itself() -> None:
    pace = Pace(whole=True)
    pace.apply(steps(0, [-1e300, 1.0, NOW_S], 1.0), arrived_s=NOW_S)
    pace.apply_pending()
    assert pace.bin_s == SHORT_BIN_S
    assert pace.sums("duration")[1].sum() == 1.0


def test_verdicts_of_a_long_run_are_thinned_to_those_that_found_something() -> None:
    job = JobOverview("j", whole=True)
    count = 3 * MAX_VERDICTS
    for number in range(count):
        record = VerdictRecord(
            id=f"v{number}", job="j", time_s=float(number), window_s=1.0, anomalous=number == 7, reason="r"
        )
        job.apply(Message("trainwarden.verdicts", 0, number, float(number), "j", record))
    assert len(job.verdicts) <= MAX_VERDICTS
    times = [one.time_s for one in job.verdicts]
    assert times == sorted(times)
    assert times[0] < 16.0
    assert times[-1] == count - 1.0
    assert [one.time_s for one in job.verdicts if one.anomalous] == [7.0]


@pytest.mark.thorough
def test_a_bus_is_read_whole(tmp_path: Path) -> None:
    address = publish(tmp_path / "bus.db", world(ranks=4))
    bus = EmbeddedBus(address.partition(":")[2])
    try:
        jobs = read_whole(bus)
        assert sorted(jobs) == ["llama-70b", "mixtral-8x22b", "vit-sweep.17"]
        assert list(read_whole(bus, "llama-70b")) == ["llama-70b"]
    finally:
        bus.close()
    job = jobs["llama-70b"]
    assert len(job.incidents) == 2
    assert job.healthy_s == 1.6
    assert job.pace.sums("compute")[1].sum(axis=1).tolist() == [944.0] * 4
