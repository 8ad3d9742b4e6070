"""Change points: fast equals slow and plain, ranks may be permuted, spikes are no changes, state can be cut."""

from __future__ import annotations

import itertools
from math import exp, inf, lgamma, log, pi
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.benchmarks import bench_bocd
from tests.examples import examples
from tests.unit.detectors.detection_streams import START_S, Job
from trainwarden.detectors.job.common_mode import median_of_others, quiet_median
from trainwarden.detectors.job.object_codec import ObjectCodec
from trainwarden.detectors.pace.bocd import ALPHA, BETA, KAPPA, Bocd
from trainwarden.detectors.pace.change_point import ChangePoint
from trainwarden.detectors.pace.periodic import SeasonalityFilter
from trainwarden.detectors.pace.shifts.history import LevelMarks
from trainwarden.detectors.pace.shifts.level_shifts import LevelShifts, ShiftConfig
from trainwarden.detectors.peers.peer_deviation import PeerDeviation
from trainwarden.records import IterationRecord

Floats = npt.NDArray[np.float64]
seeds = st.integers(0, 2**32 - 1)


def student_t(x: float, nu: float, mean: float, variance: float) -> float:
    norm = lgamma((nu + 1) / 2) - lgamma(nu / 2) - 0.5 * log(nu * pi * variance)
    return norm - (nu + 1) / 2 * log(1 + (x - mean) ** 2 / (nu * variance))


def plain_posterior(values: list[float], hazard: float) -> dict[int, float]:
    """Posterior of the run length by keeping every value of every hypothesis; quadratic in all respects."""
    mass = {0: 0.0}  # run length -> log mass
    for place, x in enumerate(values):
        fresh: dict[int, float] = {}
        for run, old in mass.items():
            if run == 0:
                continue
            past = values[place - run : place]
            kappa, alpha = KAPPA + run, ALPHA + run / 2
            mean = sum(past) / kappa
            centre = sum(past) / run
            beta = BETA + 0.5 * sum((v - centre) ** 2 for v in past) + 0.5 * KAPPA * run * centre**2 / kappa
            grown = student_t(x, 2 * alpha, mean, beta * (kappa + 1) / (alpha * kappa))
            fresh[run + 1] = old + grown + log(1 - hazard)
        born = student_t(x, 2 * ALPHA, 0.0, BETA * (KAPPA + 1) / (ALPHA * KAPPA))
        fresh[1] = 0.0 if place == 0 else born + log(hazard)
        top = max(fresh.values())
        total = top + log(sum(exp(m - top) for m in fresh.values()))
        mass = {run: m - total for run, m in fresh.items()}
    return {run: exp(m) for run, m in mass.items() if m > -inf}


def series(seed: int, length: int, *, shift_at: int | None = None, shift: float = 0.0) -> Floats:
    values = np.random.default_rng(seed).normal(0.0, 1.0, length)
    if shift_at is not None:
        values[shift_at:] += shift
    return values


@given(seed=seeds, length=st.integers(1, 24), shift=st.floats(-8, 8), hazard=st.floats(0.001, 0.2))
@examples(60)
def test_batched_bocd_equals_the_plain_one(seed: int, length: int, shift: float, hazard: float) -> None:
    values = np.stack([series(seed + i, length, shift_at=length // 2, shift=shift) for i in range(3)])
    bocd = Bocd(3, hazard, width=32)
    for column in values.T:
        bocd.update(column)
    for line in range(3):
        expected = plain_posterior(values[line].tolist(), hazard)
        for run, mass in expected.items():
            found = float(np.exp(bocd.log_mass[line][bocd.run[line] == run]).sum())
            assert abs(found - mass) < 1e-9


def test_unpruned_posteriors_equal_the_reference_packages() -> None:
    reference = pytest.importorskip("bayesian_changepoint_detection.online_changepoint_detection")
    assert bench_bocd.apart(reference) < bench_bocd.TOLERANCE


@given(seed=seeds, gaps=st.lists(st.booleans(), min_size=30, max_size=30))
@examples(40)
def test_unknown_values_leave_a_series_as_it_was(seed: int, gaps: list[bool]) -> None:
    values = series(seed, 30)
    whole, gappy = Bocd(1, 0.01), Bocd(2, 0.01)
    for x, gap in zip(values, gaps, strict=True):
        if not gap:
            whole.update(np.array([x]))
        gappy.update(np.array([np.nan if gap else x, x]))
    assert np.allclose(whole.log_mass[0], gappy.log_mass[0])


@given(
    values=st.lists(st.lists(st.one_of(st.just(float("nan")), st.floats(-5, 5)), min_size=5, max_size=5), min_size=1)
)
@examples(100)
def test_median_of_others_equals_the_plain_one(values: list[list[float]]) -> None:
    array = np.array(values)
    found = median_of_others(array)
    for row in range(len(array)):
        for rank in range(5):
            others = [v for i, v in enumerate(array[row]) if i != rank and np.isfinite(v)]
            if others:
                assert found[row, rank] == np.median(others)
            else:
                assert np.isnan(found[row, rank])
    for rank, middle in enumerate(quiet_median(array)):
        known = array[:, rank][np.isfinite(array[:, rank])]
        assert (middle == np.median(known)) if known.size else np.isnan(middle)


def rows_of(seed: int, ranks: int, length: int, culprit: int) -> Floats:
    rng = np.random.default_rng(seed)
    rows = rng.normal(0.0, 0.03, (length, ranks))
    rows[length // 2 :, culprit] += 0.5
    return rows


@pytest.mark.thorough
@given(seed=seeds, order=st.permutations(range(5)))
@examples(20)
def test_permuting_ranks_permutes_the_answers(seed: int, order: list[int]) -> None:
    rows = rows_of(seed, 5, 90, culprit=2)
    straight, mixed = LevelShifts(ShiftConfig()), LevelShifts(ShiftConfig())
    left, right = [], []
    for seq, row in enumerate(rows):
        left += [(s.series, s.onset, s.reported, s.before, s.after) for s in straight.update(seq, row)]
        right += [(order[s.series], s.onset, s.reported, s.before, s.after) for s in mixed.update(seq, row[order])]
    assert sorted(left) == sorted(right)
    assert left


@given(seed=seeds)
@examples(8)
def test_a_single_spike_is_no_change(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count = 32  # series that do not meddle with each other are judged at once
    values = rng.normal(0.0, 1.0, (120, count)) * rng.choice([0.005, 0.02, 0.06], count)
    values[rng.integers(0, 120, count), np.arange(count)] += np.log(rng.uniform(1.5, 50.0, count))
    shifts = LevelShifts(ShiftConfig())
    assert [shift for seq, row in enumerate(values) for shift in shifts.update(seq, row)] == []


@pytest.mark.thorough
@given(seed=seeds)
@examples(8)
def test_a_clear_change_is_found_once_soon_and_where_it_is(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count = 32
    at, size = rng.integers(40, 101, count), np.log(rng.uniform(1.35, 4.0, count))
    values = rng.normal(0.0, 1.0, (160, count)) * rng.choice([0.005, 0.02, 0.05], count)
    values += size * (np.arange(160)[:, None] >= at)
    shifts = LevelShifts(ShiftConfig())
    found = [shift for seq, row in enumerate(values) for shift in shifts.update(seq, row)]
    assert sorted(shift.series for shift in found) == list(range(count))
    for shift in found:
        assert abs(shift.onset - at[shift.series]) <= 3
        assert shift.reported <= at[shift.series] + 12
        assert abs(log(shift.after / shift.before) - size[shift.series]) < 0.12


def cut_and_loaded(rows: Floats, cut: int) -> list[Any]:
    """What two find of whom the second goes on where the first has left off."""
    first, second = LevelShifts(ShiftConfig()), LevelShifts(ShiftConfig())
    found = [shift for seq, row in enumerate(rows[:cut]) for shift in first.update(seq, row)]
    ObjectCodec().load(second, ObjectCodec().dump(first))
    return found + [shift for seq, row in enumerate(rows[cut:], cut) for shift in second.update(seq, row)]


@pytest.mark.thorough
@given(seed=seeds, cut=st.integers(1, 119))
@examples(16)
def test_level_shifts_may_be_cut_anywhere(seed: int, cut: int) -> None:
    rows = np.hstack([rows_of(seed + one, 3, 120, culprit=1) for one in range(4)])
    whole = LevelShifts(ShiftConfig())
    assert cut_and_loaded(rows, cut) == [shift for seq, row in enumerate(rows) for shift in whole.update(seq, row)]


@pytest.mark.thorough
@given(seed=seeds, cut=st.integers(1, 199))
@examples(12)
def test_series_with_a_pattern_may_be_cut_anywhere_and_do_not_meddle(seed: int, cut: int) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.normal(0.0, 0.01, (200, 12))
    for column, period in enumerate(range(2, 9), 1):
        rows[:, column] += np.tile(rng.normal(0.0, 0.4, period), 200)[:200]
    rows[150:, :10] += 0.4
    whole, alone = LevelShifts(ShiftConfig()), LevelShifts(ShiftConfig())
    expected = [shift for seq, row in enumerate(rows) for shift in whole.update(seq, row)]
    assert cut_and_loaded(rows, cut) == expected
    assert [s for s in expected if s.series == 0] == [
        shift for seq, row in enumerate(rows) for shift in alone.update(seq, row[:1])
    ]


@given(seed=seeds, period=st.integers(2, 8), skipped=st.integers(100, 140))
@examples(30)
def test_a_pattern_is_taken_out_in_whatever_phase(seed: int, period: int, skipped: int) -> None:
    rng = np.random.default_rng(seed)
    pattern = rng.normal(0.0, 0.4, period)
    values = np.delete(np.tile(pattern, 100)[:200], skipped) + rng.normal(0.0, 0.005, 199)
    steady = SeasonalityFilter()
    said = []
    for value in values:
        said.append(float(steady.update(np.array([value]))[0]))
        steady.changed()
    if steady.period[0] > 1:
        assert np.ptp(said[-30:]) < 0.1
    else:
        assert np.abs(np.diff(pattern)).mean() < 0.5  # too little of a pattern


@given(seed=seeds, period=st.integers(2, 8), slipped=st.integers(0, 7), series=st.integers(1, 5))
@examples(15)
def test_the_phase_is_the_one_that_a_plain_search_finds(seed: int, period: int, slipped: int, series: int) -> None:
    rng = np.random.default_rng(seed)
    pattern = rng.normal(0.0, 0.4, (period, series))
    values = np.tile(pattern, (12, 1)) + rng.normal(0.0, 0.05, (12 * period, series))
    values[rng.random(values.shape) < 0.05] = np.nan
    values[-1] = np.nan_to_num(values[-1])
    steady = SeasonalityFilter()
    for row in np.vstack([values, values[: 1 + slipped]]):
        steady.update(row)
    steady.period[:], steady._pattern[:period] = period, pattern
    before = rng.integers(0, period, series)
    steady._phase[:] = before
    row = np.nan_to_num(rng.normal(0.0, 0.4, series))
    said = steady.update(row)
    newest = np.vstack([values, values[: 1 + slipped], row])[::-1][: 2 * period]
    for one in range(series):
        errors = []
        for slip in range(period):
            phases = [(before[one] + 1 + slip - back) % period for back in range(len(newest))]
            rest = newest[:, one] - pattern[phases, one]
            known = rest[np.isfinite(rest)]
            distance = np.sort(np.abs(known - np.median(known)))
            kept = distance[np.arange(distance.size) < 0.9 * known.size]
            errors.append(kept.mean())
        best = int(np.argmin(errors))
        slip = best if errors[best] < 0.5 * errors[0] else 0
        assert said[one] == row[one] - pattern[(before[one] + 1 + slip) % period, one]


@pytest.mark.thorough
@given(cut=st.integers(1, 89), which=st.sampled_from([ChangePoint, PeerDeviation]))
@examples(20)
def test_detectors_may_be_cut_anywhere(cut: int, which: type[ChangePoint] | type[PeerDeviation]) -> None:
    from trainwarden.detectors.job.state import JobState

    job = Job(slow=lambda rank, step: 1.8 if rank == 1 and step >= 50 else 1.0).run(90)
    records = sorted(job.records, key=lambda entry: entry[0])
    state, whole, cuttable = JobState("job"), which(which.Config()), which(which.Config())
    for place in range(90):
        for _, record in records[place * len(records) // 90 : (place + 1) * len(records) // 90]:
            state.feed(record)
        window = state.window(START_S + place)
        if place == cut:
            fresh = which(which.Config())
            fresh.restore(cuttable.state())
            cuttable = fresh
        whole.update(window)
        cuttable.update(window)
        assert cuttable.score(window) == whole.score(window)
    assert whole.score(window).opinion == "anomalous"


@given(length=st.integers(2, 6000))
@examples(30)
def test_marks_remember_the_level_of_half_time(length: int) -> None:
    marks = LevelMarks(stride=1)
    marks.resize(1)
    for seq in range(length):
        if marks.due():
            marks.add(seq, np.array([float(seq)]))
    found = float(marks.at(np.array([length // 2]), np.array([0]), np.array([-1.0]))[0])
    assert length / 2 - 0.01 * length - 2 <= found <= length / 2


def changes_of(durations: Floats, chunks: list[int], **config: Any) -> list[tuple[Any, ...]]:
    """What a recorded job [rows, ranks] shows if its rows come in windows of these sizes, over and over."""
    from trainwarden.detectors.job.state import JobState

    state, detector = JobState("job"), ChangePoint(ChangePoint.Config(**config))
    ends, begin = np.cumsum(durations.max(axis=1)), 0
    sizes = itertools.cycle(chunks)
    while begin < len(durations):
        part = slice(begin, begin + next(sizes))
        for rank in range(durations.shape[1]):
            state.feed(
                IterationRecord(
                    job="job", node="node0", rank=rank, incarnation="1", steps=tuple(range(len(durations)))[part],
                    end_s=tuple(ends[part]), duration_s=tuple(durations[part, rank]),
                )
            )  # fmt: skip
        detector.update(state.window(float(ends[part][-1])))
        begin = part.stop
    return [
        (f.rank, f.step, f.reported_step, f.time_s, f.before_s, f.after_s, f.direction, f.planned)
        for f in detector.found
    ]


sizes = st.lists(st.integers(1, 200), min_size=1, max_size=4)


@pytest.mark.thorough
@given(seed=seeds, several=st.lists(sizes, min_size=2, max_size=2), ranks=st.integers(1, 3))
@examples(4)
def test_the_size_of_windows_does_not_matter(seed: int, several: list[list[int]], ranks: int) -> None:
    rng = np.random.default_rng(seed)
    level = np.zeros((460, ranks))
    level[90:160, 0] += 0.4
    level[200:, :] += np.linspace(0.0, 0.3, 260)[:, None]
    durations = 0.2 * np.exp(level + rng.normal(0.0, 0.02, level.shape))
    one_by_one = changes_of(durations, [1], planned_steps=(91,))
    for chunks in several:
        assert changes_of(durations, chunks, planned_steps=(91,)) == one_by_one
    assert one_by_one


@pytest.mark.thorough
@given(seed=seeds, constant=st.floats(0.01, 10.0))
@examples(10)
def test_a_further_rank_that_never_changes_changes_nothing_for_the_others(seed: int, constant: float) -> None:
    rows = rows_of(seed, 4, 90, culprit=1)
    few, more = LevelShifts(ShiftConfig()), LevelShifts(ShiftConfig())
    left, right = [], []
    for seq, row in enumerate(rows):
        left += few.update(seq, row)
        right += more.update(seq, np.append(row, np.log(constant)))
    assert left == right
    assert left


@pytest.mark.thorough
@given(seed=seeds, planned=st.sampled_from([(), (150,), (300,)]), slower=st.booleans())
@examples(15)
def test_a_planned_change_is_marked_and_becomes_the_baseline(seed: int, planned: tuple[int, ...], slower: bool) -> None:
    log_times = np.random.default_rng(seed).normal(0.0, 0.01, (400, 1))
    log_times[152:] += 0.5 if slower else -0.5
    found = changes_of(np.exp(log_times), [50], planned_steps=planned)
    assert [(entry[6], entry[7]) for entry in found] == [("slower" if slower else "faster", planned == (150,))]
    assert abs(found[0][1] - 152) <= 2
