"""What never moved and moves now: evidence by how long it had stood, and when it is none."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from trainwarden.detectors.job.samples import Entity, FamilySamples
from trainwarden.detectors.job.state import JobState
from trainwarden.detectors.metrics.still_metrics import StillMetrics
from trainwarden.detectors.recorded.grids import MetricGrid, first_moves_s
from trainwarden.detectors.recorded.replay import replay
from trainwarden.recorded.folder import read_folder
from trainwarden.settings import DetectionSettings

START_S = 1_000_000.0
NAN = float("nan")
EMPTY = JobState("job").window(now_s=START_S)
ERRORS = "gpu_nvlink_replay_errors_count"


def shown(lanes, *, name=ERRORS, every_s=60.0, phase="", detector=None, first=0, normal=0, shift_s=0.0, family="gpu"):
    """The votes of a detector that is shown ``lanes [entities, samples]`` of one metric."""
    detector, votes = detector or StillMetrics(StillMetrics.Config()), []
    lanes = np.asarray(lanes, dtype=np.float64)
    size = len(lanes)
    for tick in range(lanes.shape[1]):
        time_s = START_S + every_s * (first + tick)
        at_s = np.full((size, 1), time_s)
        at_s[0] -= shift_s
        samples = FamilySamples(
            family, (name,), np.arange(size), tuple(Entity(f"n{one}", "0") for one in range(size)), ("",) * size,
            lanes[:, tick, None, None], at_s, normal=tick < normal,
        )  # fmt: skip
        window = replace(EMPTY, now_s=time_s, samples=(samples,), phase=phase)
        detector.update(window)
        votes.append(detector.score(window))
    return votes


def stood(minutes, *then, entities=1):
    """One that stands at 7 for so many minutes and goes on as `then`; the others stand for good."""
    lane = [7.0] * minutes + list(then)
    return [lane] + [[7.0] * len(lane)] * (entities - 1)


@pytest.mark.parametrize("away", [8.0, 6.0, 7.001])
def test_what_stood_for_two_hours_and_moves_is_told_when_it_lasts(away):
    votes = shown(stood(120, *[away] * 5, entities=4))
    assert [vote.verified for vote in votes[118:]] == [False, False, False, False, True, True, True]
    assert votes[120].opinion == "anomalous"  # one sample supports the others
    vote = votes[-1]
    assert [one.node for one in vote.suspects] == ["n0"]
    assert vote.metrics == (ERRORS,)
    assert vote.onset_s == START_S + 60.0 * 120
    assert f"{ERRORS} stood at 7 for 2.0 h and is {away:g}" in vote.reason


def test_the_longer_it_stood_the_more_it_says():
    scores = [shown(stood(minutes, 8.0, 8.0, 8.0))[-1].score for minutes in (25, 60, 600, 1200)]
    assert scores[0] == 0.0
    assert scores[1:] == sorted(scores[1:])
    assert scores[1] == pytest.approx(0.41, abs=0.01)
    assert shown(stood(60, 8.0, 8.0, 8.0, entities=8))[-1].score == scores[1]


def test_sampled_more_often_it_says_the_same():
    often = shown(stood(720, 8.0, 8.0, 8.0), every_s=10.0)[-1].score
    assert often == pytest.approx(shown(stood(120, 8.0, 8.0, 8.0))[-1].score, abs=0.01)


@pytest.mark.parametrize(
    "before",
    [
        [7.0, 7.0, 8.0] + [7.0] * 200,  # it has moved before
        [float(minute) for minute in range(200)],
        [NAN] * 200,
        [float("inf")] * 200,
    ],
)
def test_what_has_moved_before_or_was_never_measured_is_no_evidence(before):
    assert {vote.opinion for vote in shown([before + [9.0] * 5])} == {"normal"}


def test_rounding_is_no_movement():
    assert {vote.opinion for vote in shown(stood(120, *[7.0 * (1.0 + 1e-12)] * 9))} == {"normal"}


@pytest.mark.thorough
def test_work_that_begins_is_no_fault():
    """What measures work supports others at most, what a fifth of the devices do at once is told by nobody."""
    lanes = stood(120, *[8.0] * 5, entities=4)
    assert not any(vote.verified for vote in shown(lanes, name="gpu_power_watts"))
    assert shown(lanes, name="our_own_errors")[-1].verified
    assert not shown(lanes, name="our_own_queue")[-1].verified
    week = stood(7 * 24 * 6, *[8.0] * 5, entities=4)
    assert shown(week, name="our_own_queue", every_s=600.0)[-1].verified
    all_at_once = [stood(120, *[8.0] * 5)[0]] * 4
    assert shown(all_at_once)[-1].opinion == "normal"
    assert {vote.opinion for vote in shown(lanes, phase="start")} == {"normal"}


def test_samples_that_somebody_calls_normal_teach():
    lanes = [[7.0] * 120 + [8.0] * 40 + [7.0] * 40 + [8.0] * 5]
    assert {vote.opinion for vote in shown(lanes, normal=200)} == {"normal"}
    assert shown(lanes)[-1].opinion == "anomalous"


def test_it_is_over_when_the_metric_has_been_back_for_a_while_and_counts_less_the_next_time():
    votes = shown(stood(600, *[8.0] * 5, *[7.0] * 20, *[8.0] * 5))
    told = [place for place, vote in enumerate(votes) if vote.verified]
    assert told == [602, 603, 604, 605, 606]
    assert [vote.opinion for vote in votes[608:610]] == ["anomalous", "normal"]  # nothing of it in the newest five
    assert votes[629].opinion == "anomalous"  # what has come and gone before supports others at most
    assert votes[629].score < votes[604].score


def test_sampled_every_five_minutes_what_comes_and_goes_is_told_once():
    votes = shown(stood(600, *4 * ([8.0] * 5 + [7.0] * 20)), every_s=300.0)
    assert [place for place, vote in enumerate(votes) if vote.verified] == [602, 603, 604, 605, 606]


def test_after_a_day_it_stands_elsewhere():
    votes = shown(stood(60, *[8.0] * 150), every_s=600.0)
    assert votes[60 + 143].verified
    assert votes[-1].opinion == "normal"


def test_of_what_was_not_heard_of_for_ten_minutes_nothing_is_said():
    detector = StillMetrics(StillMetrics.Config())
    assert shown(stood(120, *[8.0] * 5, entities=4), detector=detector)[-1].verified
    votes = shown([[7.0] * 12], detector=detector, first=125, family="nic")
    assert [vote.opinion for vote in votes[8:10]] == ["anomalous", "normal"]


def test_late_metrics_gaps_and_clocks_apart():
    assert shown([[NAN] * 100 + stood(120, *[8.0] * 5)[0]])[-1].verified
    holes = [7.0 if minute % 3 else NAN for minute in range(240)] + [8.0, NAN, 8.0, NAN, 8.0]
    assert shown([holes])[-1].verified
    assert shown(stood(120, *[8.0] * 5, entities=4), shift_s=7200.0)[-1].verified


def test_cut_anywhere_it_goes_on():
    lanes = np.array(stood(70, 8.0, 8.0, 7.0, 8.0, *[7.0] * 20, 9.0, 9.0, 9.0, entities=3))
    whole = shown(lanes)
    for cut in (1, 69, 71, 73, 80, 92, 95):
        before = StillMetrics(StillMetrics.Config())
        shown(lanes[:, :cut], detector=before)
        after = StillMetrics(StillMetrics.Config())
        after.restore(before.state())
        assert shown(lanes[:, cut:], detector=after, first=cut) == whole[cut:]


def test_one_can_be_left_out():
    detector = StillMetrics(StillMetrics.Config(leave_out=(ERRORS,)))
    assert {vote.opinion for vote in shown(stood(120, 8.0, 8.0, 8.0), detector=detector)} == {"normal"}


def test_in_a_recording_what_moves_all_the_time_is_not_looked_at_all_the_time():
    times_s = np.arange(4000.0)
    restless = np.where(times_s % 2, 1.0, 0.0)[None, None]
    grid = MetricGrid("", ("m",), (Entity(),), restless, times_s[None], times_s, np.zeros((1, 4000), np.int64), ("",))
    assert len(first_moves_s(grid)) < 100


def recorded(folder, lane):
    columns = {"time_s": 60.0 * np.arange(len(lane)), "node": "n1", "board_errors": lane}
    columns["load"] = np.random.default_rng(0).uniform(size=len(lane))
    pd.DataFrame(columns).to_csv(folder / "metrics.csv", index=False)
    return replay(
        read_folder(folder), DetectionSettings(), names=["still_metrics"], normal_until_s=60.0 * 300
    ).incidents  # fmt: skip


def test_a_recording_opens_when_the_metric_has_moved_three_times(tmp_path):
    (incident,) = recorded(tmp_path, [0.0] * 400 + [3.0] * 40 + [0.0] * 60)
    assert (incident.kind, incident.metrics) == ("metric_anomaly", ("board_errors",))
    assert incident.opened_at_s == 60.0 * 402
    assert incident.closed_at_s is not None
    assert not recorded(tmp_path, [0.0] * 200 + [3.0] * 40 + [0.0] * 60 + [3.0] * 40)  # it did so in normal time
