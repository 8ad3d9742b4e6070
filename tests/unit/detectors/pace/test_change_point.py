"""Change points on a seeded mix of injected fail-slows: nearly everything found, soon, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from tests.benchmarks.detection.change_baselines import ours
from tests.benchmarks.detection.change_series import Floats
from tests.benchmarks.detection.change_synthetic import synthetic
from tests.benchmarks.detection.changes import match, metrics
from trainwarden.detectors.job.state import JobState
from trainwarden.detectors.pace.change_point import ChangePoint
from trainwarden.detectors.pace.iteration_threshold import IterationThreshold
from trainwarden.detectors.pace.shifts.level_shifts import LevelShifts, ShiftConfig
from trainwarden.detectors.verdict.ensemble import Ensemble
from trainwarden.detectors.verdict.incidents import IncidentTracker
from trainwarden.detectors.verdict.rule import EnsembleConfig
from trainwarden.records import IncidentRecord, IterationRecord


def found_in(values: Floats, stride: int = 1) -> list[tuple[int, int, bool]]:
    shifts = LevelShifts(ShiftConfig())
    found = [shift for seq, x in enumerate(values) for shift in shifts.update(seq, np.array([x]), stride)]
    return [(shift.onset, shift.reported, shift.slower) for shift in found]


def noisy(length: int, width: float = 0.01, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).normal(0.0, width, length)


@pytest.fixture(scope="module")
def mix() -> dict[str, object]:
    runs = synthetic("tune", 12, ())
    return metrics([match(run, found) for run, found in zip(runs, ours(runs), strict=True)])


@pytest.mark.thorough
def test_a_mix_of_fail_slows_is_judged_right(mix: dict[str, float]) -> None:
    assert mix["changes"] == 60
    assert mix["job_accuracy"] >= 0.95
    assert mix["false_per_1000"] <= 0.04


@pytest.mark.thorough
def test_clear_changes_are_known_within_three_iterations(mix: dict[str, float]) -> None:
    assert mix["delay_median"] <= 3
    assert mix["relief_delay_median"] <= 5
    assert mix["after_passing_p90"] <= 30
    assert mix["ratio_error_median"] <= 0.02


@pytest.mark.thorough
def test_a_step_among_pauses_is_told_once_and_where_it_is() -> None:
    for seed in range(4):
        values = noisy(400, 0.02, seed)
        values[2::10] += 1.39  # a pause and a fast step every ten, as after validations
        values[3::10] -= 0.5
        values[200:240] += 0.56
        (onset, _, slower), (_, _, still) = found_in(values)
        assert (slower, still) == (True, False)
        assert abs(onset - 200) <= 10


def test_three_rows_of_a_hundred_iterations_each_tell_a_job_four_times_as_slow() -> None:
    values = noisy(120, 0.03)
    values[60:63] += np.log(4.0)
    assert found_in(values, stride=100) == [(60, 62, True), (63, 65, False)]
    assert found_in(values) == []  # of three single steps nobody knows whether they last
    values[62] = values[59]
    assert found_in(values, stride=100) == []


@pytest.mark.parametrize(("percent", "told"), [(9.0, 0), (9.5, 0), (10.5, 1), (12.0, 1)])
def test_a_drift_is_told_from_ten_per_cent_on(percent: float, told: int) -> None:
    values = noisy(500) + np.log(1.0 + percent / 100.0) * np.clip((np.arange(500) - 150) / 200, 0.0, 1.0)
    assert len(found_in(values)) == told


@pytest.mark.thorough
@pytest.mark.parametrize("apart", [0.0, 0.2])
@pytest.mark.parametrize("size", [-0.15, -0.6])
def test_a_few_fast_steps_of_a_slow_job_are_no_relief(apart: float, size: float) -> None:
    values = noisy(450) + np.tile([0.0, apart], 225)
    values[150:] += 0.3
    for at, rows in ((300, 4), (340, 6), (380, 8)):
        values[at : at + rows] += size  # not as fast as healthy steps, or faster
    assert found_in(values) == [(150, 153, True)]


def test_a_few_wildly_fast_steps_of_a_slow_job_are_no_gentle_relief() -> None:
    values = noisy(400)
    values[150:] += 0.15
    values[[300, 301, 302, 307, 308, 309]] -= 2.4
    assert found_in(values) == [(150, 159, True)]


def test_what_was_told_as_a_relief_and_came_back_is_waited_for_the_next_time() -> None:
    values = noisy(600)
    values[150:] += 0.3
    for at in range(250, 550, 60):
        values[at : at + 6] -= 0.3
    assert found_in(values) == [(150, 153, True), (250, 253, False), (256, 259, True)]


@pytest.mark.thorough
def test_a_drift_is_one_entry_from_its_beginning() -> None:
    values = noisy(900)
    values += np.clip(np.arange(900) - 200, 0, 500) * np.log(1.1) / 250  # 10 % at 450, 21 % in the end
    ((onset, reported, slower),) = found_in(values)
    assert slower
    assert 190 <= onset <= 240
    assert 430 <= reported <= 480


@pytest.mark.thorough
def test_a_drift_as_slow_as_a_growing_window_from_the_start_is_the_programs_own() -> None:
    values = noisy(1700) + np.arange(1700) * np.log(1.1) / 1000
    assert found_in(values) == []


def test_the_same_drift_sampled_is_as_slow_as_it_is() -> None:
    """Every tenth iteration of a rise of 10 % in 2,500 iterations: steep to see, yet slow."""
    values = noisy(260) + np.arange(260) * np.log(1.1) / 250
    shifts = LevelShifts(ShiftConfig())
    assert [s for seq, x in enumerate(values) for s in shifts.update(seq, np.array([x]), 10)] == []


@pytest.mark.thorough
def test_two_paces_in_turn_hide_no_change() -> None:
    values = noisy(300, 0.005) + np.where(np.arange(300) % 2 == 0, 0.0, np.log(34 / 28))
    assert found_in(values) == []
    values[200:] += np.log(1.15)
    ((onset, reported, slower),) = found_in(values)
    assert slower
    assert abs(onset - 200) <= 3
    assert reported <= 225


def test_clusters_of_three_slow_steps_are_no_change() -> None:
    values = noisy(600)
    for at in (100, 230, 231 + 40, 400):
        values[at : at + 3] += 0.6
    assert found_in(values) == []


def test_three_slow_steps_and_an_unrelated_fourth_are_no_change() -> None:
    values = noisy(300)
    values[200:203] += 0.5
    values[203] += 1.1
    assert found_in(values) == []


def test_the_slow_start_after_a_restart_is_no_change() -> None:
    """A pause of 15 times a step, then nine slow ones: as recorded where a run was stopped and resumed."""
    values = noisy(300)
    values[200] += np.log(15.0)
    values[201:210] += np.log(1.6)
    assert found_in(values) == []
    values[201:] = noisy(99, seed=1) + np.log(1.6)
    ((onset, reported, slower),) = found_in(values)
    assert slower
    assert abs(onset - 200) <= 1
    assert reported <= 220


@pytest.mark.thorough
def test_a_staircase_begins_with_its_first_stair() -> None:
    """Several noises: none may name an onset more than ten rows before the first stair."""
    values = np.column_stack([noisy(500, 0.012, seed) for seed in range(12)])  # judged at once, each by itself
    values[220:] += np.log(1.05)
    values[260:] += np.log(1.06)
    values[310:] += np.log(1.05)
    shifts = LevelShifts(ShiftConfig())
    found = [shift for seq, row in enumerate(values) for shift in shifts.update(seq, row)]
    assert sorted(shift.series for shift in found) == list(range(12))
    for shift in found:
        assert shift.slower
        assert 210 <= shift.onset <= 260
        assert shift.reported <= 290


def test_a_single_slow_step_hides_no_drop() -> None:
    values = noisy(400, 0.005)
    values[200:] -= np.log(1.12)
    values[219] += 1.5
    ((onset, _, slower),) = found_in(values)
    assert not slower
    assert abs(onset - 200) <= 1


@pytest.mark.thorough
def test_a_slow_step_in_every_few_hides_no_change() -> None:
    for pattern in ((0.0, 0.0, 0.0, 0.0, 0.35), (0.2, -0.2, 0.1, -0.1, 0.0), (0.0, 0.0, 0.5)):
        beat = np.tile(pattern, 200)[:400] + noisy(400)
        assert found_in(beat) == []
        beat[250:] += np.log(1.12)
        ((onset, reported, slower),) = found_in(beat)
        assert slower
        assert abs(onset - 250) <= 3
        assert reported <= 275


@pytest.mark.thorough
def test_a_skipped_beat_is_no_change() -> None:
    beat = np.tile([0.0, 0.1, 0.2, -0.2, -0.1], 100)
    assert found_in(np.delete(beat, [203, 304, 305]) + noisy(497)) == []


def test_a_gentle_relief_is_told() -> None:
    values = noisy(500)
    values[150:300] += 0.4
    values[300:] += 0.4 * np.exp(-(np.arange(200)) / 15.0)
    found = found_in(values)
    assert [slower for _, _, slower in found] == [True, False]
    assert 295 <= found[1][0] <= 330


def incidents_of(durations: Floats, planned: tuple[int, ...] = ()) -> list[IncidentRecord]:
    """All revisions of incidents of a recorded job; windows of one row each."""
    state, joiner = JobState("job"), IncidentTracker("job", EnsembleConfig())
    detectors = {
        "change_point": ChangePoint(ChangePoint.Config(planned_steps=planned)),
        "iteration_threshold": IterationThreshold(IterationThreshold.Config()),
    }
    ensemble = Ensemble(EnsembleConfig(), {name: detector.role for name, detector in detectors.items()})
    out, end_s = [], 0.0
    for step, duration_s in enumerate(durations):
        end_s += float(duration_s) + (3_600.0 if step == 120 else 0.0)  # an evaluation of an hour between two steps
        state.feed(
            IterationRecord(
                job="job",
                node="",
                rank=0,
                incarnation="",
                steps=(step,),
                end_s=(end_s,),
                duration_s=(float(duration_s),),
            )
        )
        window = state.window(end_s)
        votes = {}
        for name, detector in detectors.items():
            detector.update(window)
            votes[name] = detector.score(window)
        out += joiner.join(ensemble.candidates(window, votes), votes, window)
    return out


@pytest.mark.thorough
def test_a_recorded_slowdown_is_one_incident_until_its_relief() -> None:
    log_times = noisy(400)
    log_times[200:300] += np.log(1.3)
    told = incidents_of(np.exp(log_times))
    assert [record.state for record in told if record.state != "updated"] == ["opened", "closed"]
    opened, closed = told[0], told[-1]
    assert opened.kind == "slow_job"
    assert (opened.onset_step, opened.opened_step) == (200, 203)
    assert closed.closed_at_s is not None
    assert 300 < closed.closed_at_s - 3_600.0 - 0.3 * 100 < 310


@pytest.mark.thorough
def test_neither_a_planned_change_nor_a_long_gap_is_an_incident() -> None:
    log_times = noisy(400)
    log_times[200:] += np.log(1.5)
    assert incidents_of(np.exp(log_times), planned=(198,)) == []
    assert incidents_of(np.exp(noisy(400))) == []
