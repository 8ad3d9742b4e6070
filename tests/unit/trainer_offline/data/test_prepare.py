"""Every sentence of methods 10 about data: chosen, cut, filtered, laid on a grid, split by job, described."""

from __future__ import annotations

import numpy as np
import pytest

from tests.archive_doubles import NOON_S, Log, Service
from tests.training_data import EVERY_S, SMALL, annotate, batch, job
from trainwarden.detectors.job.samples import Entity
from trainwarden.detectors.recorded.grids import MetricGrid
from trainwarden.errors import DataError
from trainwarden.records import MetricsRecord
from trainwarden.trainer_offline.data.grids import PrepareConfig, on_grid
from trainwarden.trainer_offline.data.prepare import prepare
from trainwarden.trainer_offline.data.prepare_job import settled_index
from trainwarden.trainer_offline.fit.fit import fit

CONFIG = PrepareConfig()


def ready(data, **options):
    return prepare(data, CONFIG, workers=1, **options)


def rows_of(jobs):
    return sum(grid.normal_rows for one in jobs for grid in one.grids)


@pytest.mark.thorough
def test_metrics_are_chosen_by_domain_list_and_correlation_and_the_dropped_are_named(tmp_path):
    data = ready(batch_with_total(tmp_path))
    fit(data, SMALL.models, 0)
    why = {one["name"]: one["why"] for one in data.card.metrics_dropped}
    assert "domain list" in why["gpu_memory_total_bytes"]
    assert "near-duplicate of power" in why["power_twice"]
    assert why["seven"] == "constant"
    assert data.card.metrics_kept == ["power", "clock", "traffic"]


def batch_with_total(folder):
    for number in range(3):
        job(folder / f"job{number}", number, gpu_memory_total_bytes=8e10)
    return folder


def test_the_initialisation_phase_is_cut_and_said(tmp_path):
    batch(tmp_path)
    job(tmp_path / "job9", 9, start=25)
    data = ready(tmp_path)
    assert data.card.initialisation_s == {"job9": 25 * EVERY_S}
    kept = next(one for one in (*data.train, *data.test) if one.name == "job9").grids[0]
    assert kept.times_s[kept.normal][0] == 25 * EVERY_S


def test_how_a_job_ends_is_no_normal_training_nor_a_quiet_time_to_be_judged_on(tmp_path):
    batch(tmp_path)
    job(tmp_path / "job9", 9, end=15)
    data = ready(tmp_path)
    assert data.card.ending_s == {"job9": 14 * EVERY_S}
    kept = next(one for one in (*data.train, *data.test) if one.name == "job9").grids[0]
    assert kept.times_s[kept.normal][-1] == kept.times_s[kept.quiet][-1] == (600 - 15 - 1) * EVERY_S


@pytest.mark.parametrize("how", ["keep_start", "normal_until_s", "annotated normal", "annotated fault"])
def test_what_somebody_says_of_the_end_of_a_job_counts(tmp_path, how):
    job(tmp_path / "job9", 9, end=15)
    if how.startswith("annotated"):
        kind = "slow_link" if how.endswith("fault") else ""
        annotate(tmp_path, f"job9,5000,,{how.split()[1]},{kind},,")
    options = {"keep_start": {"keep_start": True}, "normal_until_s": {"normal_until_s": 1e9}}
    data = ready(tmp_path if how.startswith("annotated") else tmp_path / "job9", **options.get(how, {}))
    (grid,) = data.test[0].grids
    assert (grid.fault if how == "annotated fault" else grid.normal)[-1]


@pytest.mark.parametrize("how", ["keep_start", "annotation"])
def test_the_cut_is_overridable(tmp_path, how):
    job(tmp_path / "job9", 9, start=25)
    if how == "annotation":
        annotate(tmp_path, "job9,,100,initialisation,,,")
    data = ready(tmp_path / "job9" if how == "keep_start" else tmp_path, keep_start=how == "keep_start")
    grid = data.train[0].grids[0]
    assert grid.times_s[grid.normal][0] == (0.0 if how == "keep_start" else 100.0)


def test_a_level_that_never_settles_early_is_no_initialisation():
    rng = np.random.default_rng(0)
    values = rng.normal(0.0, 1.0, (3, 400))
    assert settled_index(values, 0.2, 60.0) == 0
    values[:, :200] += 50.0
    assert settled_index(values, 0.2, 60.0) == 0


@pytest.mark.parametrize("every_s", [1.0, 60.0])
@pytest.mark.parametrize(
    ("begins_s", "pause_s", "settled_s"), [(0, 240, 960), (120, 240, 960), (0, 420, 360), (240, 240, 0)]
)
def test_an_initialisation_is_told_by_time_and_not_by_samples(every_s, begins_s, pause_s, settled_s):
    """Two stretches at other levels: a pause of less than five minutes between them ends nothing, at any interval."""
    times_s = np.arange(0.0, 12_000.0, every_s)
    values = np.random.default_rng(0).normal(0.0, 1.0, (3, times_s.size))
    values[:, (times_s >= begins_s) & (times_s < 360) | (times_s >= 360 + pause_s) & (times_s < 720 + pause_s)] += 50.0
    assert settled_index(values, 0.2, every_s) * every_s == settled_s


def test_a_start_of_minutes_is_cut_from_a_recording_of_minutes():
    values = np.random.default_rng(0).normal(0.0, 1.0, (3, 300))
    values[:, :25] += 50.0
    assert settled_index(values, 0.2, 1.0) == 25


def test_only_rows_before_t_are_learnt_from_and_job_toml_goes_first(tmp_path):
    batch(tmp_path)
    (tmp_path / "job0" / "job.toml").write_text("normal_until_s = 1000\n")
    data = ready(tmp_path, normal_until_s=3000.0)
    ends = {one.name: max(grid.times_s[grid.normal][-1] for grid in one.grids) for one in (*data.train, *data.test)}
    assert ends == {"job0": 990.0, "job1": 2990.0, "job2": 2990.0}


def test_annotations_of_jobs_that_are_not_there_are_told(tmp_path):
    batch(tmp_path, 3)
    annotate(tmp_path, "job0,1000,2000,fault,slow_link,,", "jbo1,,500,ignore,,,")
    notes = ready(tmp_path).card.notes
    assert notes == ["annotations name 'jbo1', but there is no such job here"]


def test_annotated_faults_and_ignored_spans_are_left_out(tmp_path):
    batch(tmp_path)
    annotate(tmp_path, "job0,1000,2000,fault,slow_link,,", "job1,,500,ignore,,,")
    data = ready(tmp_path)
    assert [one.name for one in data.test] == ["job0"], "jobs with faults are the test first"
    marked = data.test[0].grids[0]
    assert marked.times_s[marked.fault].tolist() == [EVERY_S * n for n in range(100, 200)]
    assert not (marked.normal & marked.fault).any()
    other = next(one for one in data.train if one.name == "job1").grids[0]
    assert other.times_s[0] == 500.0


@pytest.mark.thorough
def test_train_and_test_are_split_by_job_never_by_row_and_the_split_is_seeded(tmp_path):
    batch(tmp_path, jobs=6, rows=120)
    splits = {seed: tuple(ready(tmp_path, seed=seed).card.test_jobs) for seed in range(6)}
    assert splits[0] == tuple(ready(tmp_path, seed=0).card.test_jobs)
    assert len(set(splits.values())) > 1
    data = ready(tmp_path)
    assert not set(data.card.train_jobs) & set(data.card.test_jobs)
    assert len(data.card.test_jobs) == 2
    assert data.card.split == "by job"


def test_a_single_job_is_split_by_time_and_the_card_says_so(tmp_path):
    data = ready(job(tmp_path / "only", 0))
    assert data.card.split.startswith("time blocks")
    assert data.train[0].grids[0].times_s[-1] < data.test[0].grids[0].times_s[0]


def test_the_hash_is_of_the_content(tmp_path):
    first, moved = batch(tmp_path / "a", rows=100), batch(tmp_path / "b", rows=100)
    assert ready(first).card.hash == ready(moved).card.hash
    job(moved / "job1", 77, rows=100)
    assert ready(first).card.hash != ready(moved).card.hash


def test_the_card_counts_jobs_rows_hours_and_coverage(tmp_path):
    card = ready(batch(tmp_path)).card
    assert (card.jobs, card.rows) == (3, 3 * 4 * 600)
    assert card.hours == pytest.approx(3 * 599 * EVERY_S / 3600.0, abs=0.01)
    assert card.coverage["power"] == 1.0


@pytest.mark.thorough
def test_processes_find_the_same_as_one(tmp_path):
    batch(tmp_path, rows=120)
    assert prepare(tmp_path, CONFIG, workers=2).card == ready(tmp_path).card


def test_a_job_that_cannot_be_read_is_named_and_the_others_go_on(tmp_path):
    batch(tmp_path)
    (tmp_path / "job1" / "metrics.csv").write_text("time_s,power\nnonsense,1\n")
    data = ready(tmp_path)
    assert data.card.jobs == 2
    assert "job1 is left out" in data.card.notes[0]
    with pytest.raises(DataError, match="nothing to learn"):
        ready(tmp_path / "job1")


def test_memory_is_bounded_by_max_rows_whatever_the_jobs_hold(tmp_path):
    batch(tmp_path, rows=2000)
    data = prepare(tmp_path, PrepareConfig(max_rows=4_000), workers=1)
    assert rows_of(data.train) <= 4_000
    assert data.card.rows == 3 * 4 * 2000


def test_peers_are_of_one_job(tmp_path):
    batch(tmp_path, rows=120)
    series, _ = ready(tmp_path).series()
    times = {one.tobytes() for _, one, _ in series[""]}
    assert len(times) == 2, "four nodes of each of two training jobs share their times, the jobs do not"


def test_irregular_samples_are_laid_on_a_grid_with_gaps_kept():
    times = np.array([0.0, 10.0, 14.0, 30.0, 40.0, 100.0, 110.0, 123.0, 130.0, 140.0])
    values = np.arange(10.0)[None, None]
    grid = MetricGrid("", ("a",), (Entity(),), values, times[None], times, np.zeros((1, 10), dtype=np.int64), ("",))
    laid, filled, every_s = on_grid(grid, None, fill_samples=1)
    assert every_s == 10.0
    assert laid.tolist() == [0.0, 10.0, 20.0, 30.0, 40.0, 50.0, 100.0, 110.0, 120.0, 130.0, 140.0]
    assert filled[0, 0, :4].tolist() == [0.0, 1.5, 1.5, 3.0], (
        "two samples in one place are their mean, one gap is filled"
    )


@pytest.mark.thorough
def test_fast_switching_metrics_get_a_median_filter(tmp_path):
    votes = fit(ready(batch(tmp_path)), SMALL.models, 0).votes
    preparation = votes[""].preparation
    assert preparation.switching[preparation.names.index("traffic")]
    assert not preparation.switching[preparation.names.index("power")]


@pytest.mark.thorough
def test_fitting_is_deterministic_by_seed(tmp_path):
    data = ready(batch(tmp_path, rows=200))
    assert fit(data, SMALL.models, 3).versions == fit(data, SMALL.models, 3).versions
    assert fit(data, SMALL.models, 3).versions != fit(data, SMALL.models, 4).versions


def test_an_archive_is_read_with_its_annotations_and_trained_on(tmp_path):
    rng = np.random.default_rng(0)
    log = Log()
    for name in ("llama", "job with/odd name"):
        for tick in range(120):
            values = tuple((float(value),) for value in rng.normal(size=2))
            log.put(
                MetricsRecord(job=name, node="n", time_s=NOON_S + tick, devices=("",), names=("a", "b"), values=values)
            )
    service = Service(log, tmp_path / "archive")
    service.rounds(100)
    service.handler.finish()
    service.handler.close()
    annotate(tmp_path / "archive", f"llama,{NOON_S + 50},{NOON_S + 60},fault,slow_link,,")
    data = ready(tmp_path / "archive")
    assert [one.name for one in (*data.train, *data.test)] == ["job with/odd name", "llama"]
    assert data.card.jobs == 2
    assert data.card.test_jobs == ["llama"]
    assert data.card.rows == 2 * 120 - 10
