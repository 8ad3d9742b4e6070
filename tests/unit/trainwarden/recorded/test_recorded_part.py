"""Metrics larger than the limit are read in part: evenly, with whole samples, with the faults, and never more."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.archive_doubles import NOON_S, Log, Service
from tests.training_data import EVERY_S, annotate, batch
from trainwarden.errors import DataError
from trainwarden.recorded import parquet_columns
from trainwarden.recorded.folder import read_folder, read_metrics_of
from trainwarden.recorded.part import MOST_TIMES, ReadLimit, Survey
from trainwarden.records import MetricsRecord
from trainwarden.trainer_offline.data.grids import PrepareConfig
from trainwarden.trainer_offline.data.prepare import prepare

NODES, SAMPLES = 12, 4_000


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(parquet_columns, "MAX_BLOCK_ROWS", 5_000)


@pytest.fixture(scope="module")
def large(tmp_path_factory) -> Path:
    """A job of 12 nodes x 4,000 samples x 4 columns whose first 100 samples are its initialisation."""
    folder = tmp_path_factory.mktemp("large") / "job0"
    folder.mkdir()
    rng = np.random.default_rng(0)
    times = np.repeat(EVERY_S * np.arange(SAMPLES), NODES)
    power = rng.normal(400.0, 5.0, times.size)
    clock = rng.normal(1.4e9, 1e6, times.size)
    power[: 100 * NODES], clock[: 100 * NODES] = 80.0, 3e8
    nodes = np.tile([f"n{n}" for n in range(NODES)], SAMPLES)
    frame = pd.DataFrame({"time_s": times, "node": nodes, "power": power, "clock": clock})
    frame.to_parquet(folder / "metrics.parquet", row_group_size=7_000, index=False)
    return folder


def test_no_more_than_the_limit_is_read_and_what_is_read_is_as_it_stands_there(large):
    whole = read_folder(large).metrics
    part = read_metrics_of(large, limit=ReadLimit(40_000)).metrics
    columns = 4
    assert part.times_s.size * columns <= 44_000
    assert part.times_s.size * columns >= 30_000
    assert part.share == pytest.approx(part.times_s.size / whole.times_s.size, rel=0.1)
    rows = {
        (time_s, whole.nodes[e]): tuple(v)
        for time_s, e, v in zip(whole.times_s, whole.entity, whole.values, strict=True)
    }
    for time_s, entity, values in zip(part.times_s, part.entity, part.values, strict=True):
        assert rows[time_s, part.nodes[entity]] == tuple(values)


def test_stretches_reach_from_the_beginning_to_the_end_and_are_everybodys(large):
    part = read_metrics_of(large, limit=ReadLimit(40_000)).metrics
    gaps = np.flatnonzero(np.diff(np.unique(part.times_s)) > EVERY_S)
    assert 15 <= len(gaps) < 20
    assert part.times_s[0] == 0.0
    assert part.times_s[-1] > 0.9 * SAMPLES * EVERY_S
    counts = np.bincount(part.entity)
    assert len(set(counts.tolist())) == 1
    assert 4 <= len(counts) < NODES


def test_a_table_within_the_limit_is_read_whole(large):
    part = read_metrics_of(large, limit=ReadLimit(NODES * SAMPLES * 4)).metrics
    assert part.times_s.size == NODES * SAMPLES
    assert part.share == 1.0


def test_annotated_faults_are_read_whole(large):
    span = (1_000 * EVERY_S, 1_040 * EVERY_S)
    part = read_metrics_of(large, limit=ReadLimit(40_000, spans=(span,))).metrics
    there = np.unique(part.times_s[(part.times_s >= span[0]) & (part.times_s < span[1])])
    assert there.size == 40
    assert part.times_s.size * 4 <= 44_000


def test_a_mistake_in_a_large_table_is_named_by_its_row_in_the_file(tmp_path):
    times = [str(time) for time in range(9_000)]
    times[7_000] = "noon"
    pd.DataFrame({"time_s": times, "power": 1.0}).to_parquet(tmp_path / "metrics.parquet")
    with pytest.raises(DataError, match=r"metrics.parquet row 7001, column time_s: 'noon' is not a number"):
        read_metrics_of(tmp_path, limit=ReadLimit(1_000))


def test_only_metrics_are_read_to_train_on(tmp_path):
    batch(tmp_path)
    (tmp_path / "job1" / "iterations.csv").write_text("nonsense\n")
    (tmp_path / "job1" / "logs.jsonl").write_text("{\n")
    assert prepare(tmp_path, PrepareConfig(), workers=1).card.jobs == 3


def test_preparing_a_large_job_says_so_and_still_finds_its_initialisation(large):
    config = PrepareConfig(max_cells=150_000)
    data = prepare(large.parent, config, workers=1)
    assert any("job0: " in note and "of its values were read" in note for note in data.card.notes)
    assert data.card.initialisation_s["job0"] >= 90 * EVERY_S
    assert data.card.hash == prepare(large.parent, config, workers=1).card.hash
    assert data.card.hash != prepare(large.parent, PrepareConfig(), workers=1).card.hash


def archive(folder: Path, samples: int) -> Path:
    rng = np.random.default_rng(0)
    log = Log()
    for tick in range(samples):
        for node in range(6):
            values = tuple(tuple(row) for row in rng.normal(size=(2, 2)).tolist())
            log.put(
                MetricsRecord(
                    job="llama", node=f"n{node}", time_s=NOON_S + tick, devices=("gpu0", "gpu1"), names=("a", "b"),
                    values=values,
                )
            )  # fmt: skip
    service = Service(log, folder)
    service.rounds(samples * 6 // 2)
    service.handler.finish()
    service.handler.close()
    return folder


@pytest.mark.thorough
def test_an_archived_job_is_thinned_while_it_is_read(tmp_path):
    folder = archive(tmp_path / "archive", 300)
    whole = prepare(folder, PrepareConfig(), workers=1, keep_start=True)
    part = prepare(folder, PrepareConfig(max_cells=1_500), workers=1, keep_start=True)
    assert whole.card.rows == 300 * 12
    assert 0.5 * 1_500 / 2 <= part.card.rows <= 1.1 * 1_500 / 2
    assert "of its values were read" in json.dumps(part.card.notes)
    rows = {}
    for one in (*whole.train, *whole.test):
        for grid in one.grids:
            for place, entity in enumerate(grid.entities):
                rows |= {(entity, t): tuple(v) for t, v in zip(grid.times_s, grid.values[place].T, strict=True)}
    for one in (*part.train, *part.test):
        for grid in one.grids:
            for place, entity in enumerate(grid.entities):
                for time_s, values in zip(grid.times_s, grid.values[place].T, strict=True):
                    assert rows[entity, time_s] == tuple(values)


@pytest.mark.thorough
def test_annotated_faults_of_a_large_archived_job_are_read(tmp_path):
    folder = archive(tmp_path / "archive", 600)
    annotate(folder, f"llama,{NOON_S + 300},{NOON_S + 320},fault,slow_link,,")
    data = prepare(folder, PrepareConfig(max_cells=4_800), workers=1, keep_start=True)
    marked = np.concatenate([grid.times_s[grid.fault] for one in (*data.train, *data.test) for grid in one.grids])
    assert marked.tolist() == [NOON_S + 300 + tick for tick in range(20)]


def test_rows_to_train_on_are_bounded_however_many_jobs_there_are(tmp_path):
    for number in range(12):
        rng = np.random.default_rng(number)
        nodes, samples = 40, 60
        folder = tmp_path / f"job{number}"
        folder.mkdir()
        times, names = np.repeat(np.arange(samples), nodes), np.tile([f"n{n}" for n in range(nodes)], samples)
        frame = pd.DataFrame({"time_s": times, "node": names, "power": rng.normal(size=times.size)})
        frame.to_parquet(folder / "metrics.parquet")
    card = prepare(tmp_path, PrepareConfig(max_rows=1_000), workers=1, keep_start=True).card
    assert card.train_rows <= 1_000


def test_a_survey_stays_small_however_much_it_sees():
    survey = Survey(groups={"n": 0}, columns={"": 0})
    zeros = np.zeros(1 << 16, np.int64)
    for block in range(64):
        survey.add(np.arange(block << 16, (block + 1) << 16, dtype=np.float64), zeros, zeros, 1 << 16)
    assert survey._held <= MOST_TIMES
    part = survey.part(ReadLimit(1 << 18))
    kept = sum(min(to_s, 64 << 16) - from_s for from_s, to_s in part.spans)
    assert kept == pytest.approx(1 << 18, rel=0.02)


def test_what_is_learnt_from_never_lies_across_a_gap_of_what_was_read(large):
    config = PrepareConfig(max_cells=100_000, max_rows=1_800, every_s=EVERY_S)
    data = prepare(large.parent, config, workers=1, keep_start=True)
    series, _ = data.series()
    lengths = {len(values) for _, _, values in series[""]}
    assert min(lengths) >= 80, "blocks of 4 x least_samples, whole but for the cut between training and test"
