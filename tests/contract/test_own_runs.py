"""The captured runs: what their labels say is what the plan says and what their records hold."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from tests.benchmarks.detection.own_runs.plan import Run, runs
from tests.benchmarks.detection.own_runs.reading import DATA, Captured, one_run

PLANNED = {run.name: run for run in runs()}


@pytest.fixture(scope="module", params=sorted(PLANNED))
def captured(request: pytest.FixtureRequest) -> Captured:
    return one_run(DATA / request.param)


def planned(captured: Captured) -> Run:
    return PLANNED[captured.name]


def test_every_planned_run_is_there_and_no_other() -> None:
    assert {path.parent.name for path in DATA.glob("*/labels.json")} == set(PLANNED)


def test_the_labels_say_what_was_planned(captured: Captured) -> None:
    plan = planned(captured)
    said = (captured.name, captured.half, captured.script, captured.ranks)
    assert said == (plan.name, plan.half, plan.script, plan.ranks)
    assert [(one.kind, one.rank) for one in captured.faults] == [(one.kind, one.rank) for one in plan.spells]
    first_s, last_s = captured.span_s
    for fault, spell in zip(captured.faults, plan.spells, strict=True):
        assert fault.to_s - fault.from_s == pytest.approx(spell.length_s)
        assert first_s + 120.0 < fault.from_s < fault.to_s < last_s, "it lies in the run, after a healthy start"


def test_all_ranks_speak_every_second_and_make_the_steps_that_were_asked_for(captured: Captured) -> None:
    table, steps = captured.job.metrics, captured.job.iterations
    assert table is not None
    assert steps is not None
    ranks = [place for place, device in enumerate(table.devices) if (device or "").startswith("rank-")]
    assert sorted(rank for place in ranks if (rank := table.ranks[place]) is not None) == list(range(captured.ranks))
    for place in ranks:
        times_s = table.times_s[table.entity == place]
        assert np.median(np.diff(times_s)) == pytest.approx(1.0, abs=0.1)
        assert times_s[-1] - times_s[0] > 0.9 * (captured.span_s[1] - captured.span_s[0]) - 60.0
    assert set(steps.ranks) == set(range(captured.ranks))
    wanted = int(planned(captured).arguments[1])
    assert steps.step.size >= 0.98 * wanted * captured.ranks


def test_a_fault_shows_where_its_label_says(captured: Captured) -> None:
    """By the plainest sign of each kind; what nothing shows is no label."""
    table, steps = captured.job.metrics, captured.job.iterations
    assert table is not None
    assert steps is not None
    for fault in captured.faults:
        place = table.devices.index(f"rank-{fault.rank}")

        def level(metric: str, during: bool, place: int = place, fault=fault) -> float:
            rows = table.entity == place
            inside = (table.times_s >= fault.from_s + 20.0) & (table.times_s < fault.to_s)
            before = (table.times_s >= fault.from_s - 60.0) & (table.times_s < fault.from_s)
            lane = table.values[rows & (inside if during else before), table.names.index(metric)]
            return float(np.nanmax(lane) if metric.endswith("bytes") else np.nanmedian(lane))

        rows = steps.rank == steps.ranks.index(fault.rank)
        inside = rows & (steps.end_s >= fault.from_s + 10.0) & (steps.end_s < fault.to_s)
        before = rows & (steps.end_s >= fault.from_s - 60.0) & (steps.end_s < fault.from_s)
        if fault.kind == "leak":
            assert level("rank_resident_memory_bytes", True) > 5e8 + level("rank_resident_memory_bytes", False)
        elif fault.kind == "threads":
            assert level("rank_threads_count", True) >= 20 + level("rank_threads_count", False)
        elif fault.kind == "starved":
            waited = level("rank_run_queue_wait_ratio", False)
            assert level("rank_run_queue_wait_ratio", True) > max(3.0 * waited, 0.03)
        elif fault.kind == "stopped":
            assert np.median(steps.duration_s[inside]) > 1.2 * np.median(steps.duration_s[before])
        elif fault.kind == "data_stall":
            assert np.median(steps.pause_s[inside]) > 0.5 + np.median(steps.pause_s[before])
        elif fault.kind == "log_storm":
            lines = [
                log.times_s[row] for log in captured.job.logs for row in range(len(log.lines))
                if log.ranks[row] == fault.rank and "truncated record" in log.lines[row]
            ]  # fmt: skip
            assert len(lines) > 1_000
            assert fault.from_s - 1.0 < min(lines) < max(lines) < fault.to_s + 5.0


def test_the_set_is_small_and_names_no_place_of_the_machine_it_was_made_on() -> None:
    files = [path for path in DATA.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 7_000_000
    for path in files:
        if path.suffix != ".parquet":
            content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
            assert not [word for word in (b"/tmp/", b"/work/", b"/root/", b"/home/") if word in content], path


def test_the_readme_says_where_it_comes_from() -> None:
    text = Path(DATA / "README.md").read_text(encoding="utf-8")
    for word in ("licence", "one sample a second", "own_runs capture", "labels.json", "choose", "report"):
        assert word in text
