"""Large jobs are thinned around their annotated faults and the entities that were named for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.archive_doubles import NOON_S, Log, Service
from tests.training_data import annotate
from trainwarden.detectors.job.samples import Entity
from trainwarden.recorded.folder import read_metrics_of
from trainwarden.recorded.part import ReadLimit
from trainwarden.records import MetricsRecord
from trainwarden.trainer_offline.archive.export_metrics import export_part
from trainwarden.trainer_offline.data.annotations import Culprit
from trainwarden.trainer_offline.data.grids import LOOK_BACK, JobGrid, PrepareConfig, thinned
from trainwarden.trainer_offline.data.prepare import prepare
from trainwarden.trainer_offline.fit.judge import segments

ENTITIES, SAMPLES = 64, 8_640  # a day of 64 entities, at a tenth of 1 Hz and with a tenth of the rows
ROWS = 40_000
FAULT = (5_003, 5_063)  # ten minutes


def grid(faults: Any = (FAULT,)) -> JobGrid:
    fault = np.zeros(SAMPLES, dtype=np.bool_)
    for first, last in faults:
        fault[first:last] = True
    return JobGrid(
        family="gpu", names=("a",), entities=tuple(Entity("n", f"g{one}", one) for one in range(ENTITIES)),
        roles=("",) * ENTITIES, every_s=10.0, times_s=10.0 * np.arange(SAMPLES),
        values=np.zeros((ENTITIES, 1, SAMPLES)), normal=~fault, quiet=~fault, fault=fault,
    )  # fmt: skip


@pytest.fixture(scope="module")
def day() -> JobGrid:
    return grid()


@pytest.mark.parametrize("seed", range(40))
def test_a_fault_stays_with_what_the_models_look_back_on(day: JobGrid, seed: int) -> None:
    found = thinned(day, ROWS, PrepareConfig(), seed)
    assert found.times_s[found.fault].tolist() == [10.0 * place for place in range(*FAULT)]
    begin = int(np.flatnonzero(found.fault)[0])
    assert (np.diff(found.times_s[begin - LOOK_BACK : begin + 1]) == 10.0).all()
    assert found.times_s.size * len(found.entities) <= ROWS
    normal = found.times_s[found.normal]
    assert normal[0] < 0.4 * normal[-1], "what is normal still comes from everywhere"
    assert normal[-1] > 0.6 * day.times_s[-1]


@pytest.mark.parametrize("seed", range(40))
def test_who_was_named_stays(day: JobGrid, seed: int) -> None:
    few = PrepareConfig(max_entities=8)
    found = thinned(day, ROWS, few, seed, (Culprit(rank=17), Culprit(node="n", device="g40")))
    assert len(found.entities) == 8
    assert {17, 40} <= {one.rank for one in found.entities}


def test_of_long_or_many_faults_the_beginnings_stay_within_half_of_the_rows() -> None:
    found = thinned(grid([(1_000, 3_000), (5_000, 8_000)]), ROWS, PrepareConfig(), 0)
    assert found.times_s.size * ENTITIES <= ROWS
    kept = set(found.times_s[found.fault].tolist())
    assert {10_000.0, 50_000.0} <= kept
    assert ROWS / ENTITIES / 4 < len(kept) <= ROWS / ENTITIES / 2
    many = thinned(grid([(place, place + 5) for place in range(100, 8_600, 10)]), ROWS, PrepareConfig(), 0)
    assert many.times_s.size * ENTITIES <= ROWS
    assert many.fault.any()
    assert many.normal.sum() >= ROWS / ENTITIES / 2


def table(folder: Path) -> Path:
    times = np.repeat(10.0 * np.arange(2_000), 12)
    nodes = np.tile([f"n{one}" for one in range(12)], 2_000)
    ranks = np.tile(np.arange(12), 2_000)
    values = np.random.default_rng(0).normal(size=(2, times.size))
    folder.mkdir()
    frame = pd.DataFrame({"time_s": times, "node": nodes, "rank": ranks, "power": values[0], "clock": values[1]})
    frame.to_parquet(folder / "metrics.parquet", row_group_size=5_000, index=False)
    return folder


@pytest.mark.parametrize("seed", range(5))
def test_of_a_job_that_is_read_in_part_too(tmp_path: Path, seed: int) -> None:
    """The fault alone is more than half of what may be read: its beginning is read, of the rank that was named."""
    folder = table(tmp_path / "job0")
    annotate(folder, "job0,10000,20000,fault,slow_compute,rank=7,")
    config = PrepareConfig(max_cells=20_000, max_rows=4_000, max_entities=4)
    data = prepare(folder, config, workers=1, seed=seed)
    kept = [one for job in (*data.train, *data.test) for one in job.grids]
    assert {one.rank for one in kept[0].entities} > {7}
    assert any(10_000.0 in one.times_s[one.fault] for one in kept)


@pytest.mark.thorough
def test_of_an_archive_the_nodes_of_named_ranks_are_read(tmp_path: Path) -> None:
    log = Log()
    for tick in range(60):
        for node in range(12):
            log.put(
                MetricsRecord(job="llama", node=f"n{node}", time_s=NOON_S + tick, devices=("GPU-0",), names=("a",),
                              values=((float(tick),),), ranks=(node,))
            )  # fmt: skip
    service = Service(log, tmp_path / "archive")
    service.rounds(200)
    service.handler.finish()
    service.handler.close()
    for seed in range(5):
        limit = ReadLimit(200, 4, seed, ((NOON_S + 20, NOON_S + 25),), ((None, "9", None), ("n3", None, "GPU-0")))
        folder = tmp_path / f"part{seed}"
        folder.mkdir()
        export_part(tmp_path / "archive", "llama", folder / "metrics.parquet", limit)
        read = read_metrics_of(folder, "llama").metrics
        assert read is not None
        assert {"n9", "n3"} < {*read.nodes}
        assert len(read.nodes) == 4
        assert NOON_S + 20 in read.times_s


@given(st.lists(st.tuples(st.integers(0, SAMPLES - 1), st.integers(1, 300)), min_size=1, max_size=12),
       st.integers(500, ENTITIES * SAMPLES), st.integers(0, 9))  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_every_fault_is_still_there_as_an_event_of_its_own(spans: list[tuple[int, int]], rows: int, seed: int) -> None:
    """Of more faults than half of the rows have room for, as many as there is room for."""
    day = grid([(first, first + length) for first, length in spans])
    config = PrepareConfig(max_entities=8)
    found = thinned(day, rows, config, seed)
    room = max(1, max(rows // len(found.entities), config.least_samples) // 2 // config.least_samples)
    begins = day.times_s[segments(day.fault)[:, 0]]
    kept = found.times_s[segments(found.fault)[:, 0]]
    assert len(set(begins.tolist()) & set(kept.tolist())) >= min(len(begins), room)
    assert set(kept.tolist()) <= set(begins.tolist()), "none is cut in two, and none begins later than it did"
