"""Metrics beside those of the role's peers: told from the first full window on, without a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from trainwarden.detectors.devices.metric_peers import MAX_SUSPECTS, MetricPeers
from trainwarden.detectors.devices.rounds import ROUNDS, SILENT, PeerRounds
from trainwarden.detectors.job.samples import Entity, FamilySamples
from trainwarden.detectors.job.state import JobState
from trainwarden.records import Vote

Floats = npt.NDArray[np.float64]
NAMES = ("rank_cpu_ratio", "rank_run_queue_wait_ratio")
BLANK = JobState("job").window(0.0)


def ranks(peers: int = 8, samples: int = 70, metrics: int = 2) -> Floats:
    """Healthy values [peers, metrics, samples]."""
    return np.random.default_rng(0).normal(0.5, 0.02, (peers, metrics, samples))


def sick(values: Floats, row: int = 5, first: int = 35, last: int | None = None) -> Floats:
    values[row, :, first:last] += 0.4
    return values


def shown(
    values: Floats,
    *,
    names: Sequence[str] = NAMES,
    detector: MetricPeers | None = None,
    phase: str = "",
    roles: Sequence[str] | None = None,
    offset: int = 0,
    family: str = "rank",
    blocks: int = 1,
) -> list[Vote]:
    """Votes after each sample; entities come in `blocks` parts, one after the other."""
    detector = detector or MetricPeers(MetricPeers.Config())
    votes = []
    for sample in range(values.shape[2]):
        for rows in np.array_split(np.arange(len(values)), blocks):
            who = tuple(Entity(f"n{row}", f"{family}-{row}", row) for row in rows.tolist())
            own_roles = tuple("" if roles is None else roles[row] for row in rows.tolist())
            times_s = 1e6 + offset + sample + 40.0 * rows[:, None]  # clocks are apart
            new = FamilySamples(family, tuple(names), rows, who, own_roles, values[rows][:, :, [sample]], times_s)
            window = replace(BLANK, now_s=1e6 + offset + sample, phase=phase, samples=(new,))
            detector.update(window)
        votes.append(detector.score(window))
    return votes


def told(votes: Sequence[Vote]) -> list[int]:
    return [place for place, vote in enumerate(votes) if vote.opinion == "anomalous"]


def test_who_becomes_unlike_its_peers_is_told_within_half_a_minute():
    votes = shown(sick(ranks()))
    first = told(votes)[0]
    assert 35 < first < 35 + ROUNDS
    assert votes[first].verified
    assert [one.rank for one in votes[first].suspects] == [5]
    assert "where its 7 peers have 0.5" in votes[first].reason
    assert votes[first].onset_s == 1e6 + 35 + 40.0 * 5  # by its own clock
    assert set(votes[first].metrics) == set(NAMES)


def test_one_metric_supports_others_and_opens_nothing():
    values = ranks()
    values[5, 0, 35:] += 0.4
    votes = shown(values)
    assert told(votes)
    assert not any(vote.verified for vote in votes)


def test_it_is_over_when_it_is_over():
    votes = shown(sick(ranks(samples=120), last=70))
    assert told(votes)[-1] < 70 + ROUNDS


@pytest.mark.parametrize("peers", [1, 2])
def test_of_one_or_two_nobody_is_the_odd_one_and_it_says_so(peers):
    votes = shown(sick(ranks(peers), row=0))
    assert {vote.opinion for vote in votes} == {"abstain"}
    assert votes[-1].reason == f"rank: {peers} of a role, and of fewer than 3 nobody can say which is the odd one"


def test_three_are_enough():
    assert {one.rank for vote in shown(sick(ranks(3), row=1)) for one in vote.suspects} == {1}


def test_roles_of_two_are_not_compared_where_roles_of_four_are():
    values = ranks(6)
    values[4:] += 5.0
    votes = shown(sick(values, row=5), roles=["a", "a", "a", "a", "b", "b"])
    assert not told(votes)
    assert votes[-1].opinion == "normal"


def test_it_abstains_until_the_first_full_window():
    votes = shown(ranks())
    assert votes[20].opinion == "abstain"
    assert votes[20].reason == f"rank: warm-up: 20 of {ROUNDS} rounds of samples"
    assert votes[ROUNDS].opinion == "normal"


def test_a_standing_distance_is_usual_but_not_where_peers_must_be_alike():
    values = ranks()
    values[5] += 0.4
    assert not told(shown(values))
    assert told(shown(2e9 * values, names=("gpu_sm_clock_hertz", "gpu_memory_clock_hertz"), family="gpu"))


@pytest.mark.parametrize("many", [2, 4, 8])
def test_what_many_do_is_other_work(many):
    values = ranks()
    values[:many, :, 35:] += 0.4
    assert not told(shown(values))


@pytest.mark.parametrize(("peers", "late"), [(8, 1), (250, 40)])
def test_who_lags_behind_its_peers_by_a_few_rounds_is_not_unlike_them(peers, late):
    """A slow rise of all that reaches some three samples later: they are below the others for as long as it lasts."""
    values = ranks(peers, samples=80)
    rise = 0.12 * np.clip(np.arange(80) - 40.0, 0.0, None)
    values += rise
    values[:late] += np.append(np.zeros(3), rise[:-3]) - rise
    assert not told(shown(values))


@pytest.mark.parametrize("phase", ["checkpoint", "start", "evaluation"])
def test_a_phase_is_neither_judged_nor_learnt_from(phase):
    detector = MetricPeers(MetricPeers.Config())
    assert not told(shown(sick(ranks(), first=0), detector=detector, phase=phase))
    assert detector.score(BLANK).opinion == "abstain"


def test_metrics_that_are_missing_doubled_or_not_finite_hurt_nobody():
    values = sick(ranks())
    values[2, 0, ::3] = np.nan
    values[3, :, 10:20] = np.inf
    values[4, :] = np.nan
    votes = shown(values)
    assert {one.rank for vote in votes for one in vote.suspects} == {5}
    doubled = np.repeat(sick(ranks()), 2, axis=2)
    assert {one.rank for vote in shown(doubled) for one in vote.suspects} == {5}


def test_what_the_window_cannot_hold_counts_as_missing():
    values = ranks()
    values[3, 0, 40:60:4], values[6, 1, 41:60:4] = 1e300, -1e39
    assert told(shown(values)) == []
    assert told(shown(sick(values)))


@pytest.mark.parametrize("factor", [1e3, 1e-3])
def test_a_unit_that_changes_everywhere_accuses_nobody_and_of_one_opens_nothing(factor):
    values = ranks()
    values[:, :, 35:] *= factor
    assert told(shown(values)) == []
    values = ranks()
    values[5, 0, 35:] *= factor
    votes = shown(values)
    assert told(votes)
    assert not any(vote.verified for vote in votes)
    longer = ranks(samples=130)
    longer[:, :, 20:] *= 1.5  # who falls ill later is found all the same, in the new unit
    assert [one.rank for one in shown(sick(longer, first=100))[-1].suspects] == [5]


def test_a_constant_metric_that_twitches_is_below_the_least_distance():
    values = np.full((8, 2, 70), 0.5)
    values[5, :, 35:] += 0.01
    assert not told(shown(values))


def test_a_metric_that_appears_late_is_judged_a_window_later():
    values = ranks(samples=110)
    values[:, 1, :40] = np.nan
    values[5, 1, 80:] += 0.4
    votes = shown(values)
    assert 80 < told(votes)[0] < 80 + ROUNDS


def test_nodes_that_speak_one_after_the_other_are_compared_all_the_same():
    assert {one.rank for vote in shown(sick(ranks()), blocks=4) for one in vote.suspects} == {5}


def test_who_is_silent_is_not_spoken_of():
    values = sick(ranks(samples=100))
    values[5, :, 60:] = np.nan
    detector = MetricPeers(MetricPeers.Config())
    assert told(shown(values[:, :, :60], detector=detector))[-1] == 59
    assert not any(vote.suspects for vote in shown(values[:5, :, 60:], detector=detector, offset=60)[SILENT:])


@pytest.mark.thorough
def test_after_a_day_a_distance_is_usual():
    values = ranks(samples=400)
    values[5, :, 100:] += 0.4
    detector = MetricPeers(MetricPeers.Config())
    shown(values[:, :, :150], detector=detector)
    votes = shown(values[:, :, 150:], detector=detector, offset=90_000)
    assert not told(votes[ROUNDS:])


def test_after_a_day_many_are_usual_at_once():
    values = ranks(200, samples=80, metrics=1)
    values[:35, :, 40:] += 0.4
    detector = MetricPeers(MetricPeers.Config())
    assert len(shown(values, names=NAMES[:1], detector=detector)[-1].suspects) == MAX_SUSPECTS
    later = values[:, :, -5:]
    assert told(shown(later, names=NAMES[:1], detector=detector, offset=90_000)) == [0]  # the round before the day's


def test_after_a_restart_nobody_is_told_of_before_the_first_full_window():
    detector = MetricPeers(MetricPeers.Config())
    assert told(shown(sick(ranks()), detector=detector))[-1] == 69
    detector.update(replace(BLANK, restarts=1))
    assert detector.score(BLANK).reason == f"rank: warm-up: 0 of {ROUNDS} rounds of samples"


def test_what_is_left_out_is_not_told():
    detector = MetricPeers(MetricPeers.Config(leave_out=NAMES))
    assert not told(shown(sick(ranks()), detector=detector))


def test_unknown_metrics_and_those_without_a_least_distance_are_not_compared():
    votes = shown(sick(ranks()), names=("our_own", "rank_compute_seconds"))
    assert {vote.reason for vote in votes} == {"no metric by which peers are compared"}


@pytest.mark.parametrize("every_s", [1.0, 10.0, 60.0])
def test_what_is_told_of_peers_is_counted_in_their_own_samples(every_s: float) -> None:
    """20 rounds to tell, 11 to be over, whatever the interval (docs/detection.md)."""
    rounds, random = PeerRounds(), np.random.default_rng(0)
    who = tuple(Entity(f"n{one}", "GPU-0", one) for one in range(8))
    told = []
    for second in range(300):
        values = 60.0 + random.normal(0.0, 0.5, (8, 1, 1))
        values[3] += 20.0 * (120 <= second < 240)
        times_s, names = np.full((8, 1), second * every_s), ("gpu_temperature_celsius",)
        new = FamilySamples("gpu", names, np.arange(8), who, ("",) * 8, values, times_s)
        rounds.observe(new, 0, quiet=False)
        told += [second] * len(rounds.outlying())
    assert (told[0] - 120, told[-1] + 1 - 240) == (20, 11)


@pytest.mark.thorough
@pytest.mark.parametrize("every_s", [0.1, 1.0])
def test_two_seconds_are_too_short_however_many_samples_they_have(every_s: float) -> None:
    """Ten samples a second are no more independent than one; what lasts is told after as long at both."""
    rounds, random = PeerRounds(), np.random.default_rng(0)
    who, told_s = tuple(Entity(f"n{one}", "GPU-0", one) for one in range(8)), []
    for time_s in np.arange(0.0, 180.0, every_s).tolist():
        values = 60.0 + random.normal(0.0, 0.5, (8, 1, 1))
        values[3] += 20.0 * (60.0 <= time_s < 63.0 or time_s >= 120.0)
        new = FamilySamples("gpu", ("gpu_temperature_celsius",), np.arange(8), who, ("",) * 8, values,
                            np.full((8, 1), time_s))  # fmt: skip
        rounds.observe(new, 0, quiet=False)
        told_s += [time_s] * len(rounds.outlying())
    assert 139.0 <= told_s[0] <= 140.5


def test_the_only_metric_of_a_family_opens_where_it_is_far_away():
    values = ranks()[:, :1]
    values[5, 0, 35:] += 0.8
    votes = shown(values, names=NAMES[:1])
    assert votes[told(votes)[0]].verified
    near = ranks()[:, :1]
    near[5, 0, 35:] += 0.12
    assert not any(vote.verified for vote in shown(near, names=NAMES[:1]))


CLOCK, HEAT, POWER, USE = (
    "gpu_sm_clock_hertz", "gpu_temperature_celsius", "gpu_power_watts", "gpu_utilization_ratio",
)  # fmt: skip


@pytest.mark.parametrize(
    ("names", "is_then", "kind"),
    [
        ((CLOCK, HEAT), (0.9e9, 91.0), "gpu_throttle"),
        ((CLOCK, POWER, USE), (0.9e9, 300.0, 0.99), "gpu_throttle"),
        ((CLOCK, POWER, USE), (0.9e9, 300.0, 0.1), "metric_anomaly"),  # it has less to do
        ((CLOCK, POWER), (0.9e9, 300.0), "metric_anomaly"),
        ((CLOCK, HEAT), (0.9e9, 30.0), "metric_anomaly"),
        ((CLOCK, USE), (1.2e9, 0.99), "gpu_throttle"),  # nothing that could bear it out is measured
    ],
)
def test_a_gpu_that_is_held_back_is_told_as_that_of_few_peers_too(names, is_then, kind):
    normal = {CLOCK: 1.98e9, HEAT: 61.0, POWER: 640.0, USE: 0.99}
    levels = np.array([normal[name] for name in names])[None, :, None]
    values = levels * np.random.default_rng(0).normal(1.0, 0.002, (4, len(names), 70))
    values[1, :, 35:] = np.array(is_then)[:, None]
    votes = shown(values, names=names, family="gpu")
    assert {votes[place].kind for place in told(votes)[1:]} == {kind}


@pytest.mark.parametrize(
    ("names", "is_then"),
    [
        ((CLOCK, USE), (1.5e9, 0.99)),  # a quarter less: a heavier part of the model does that under a power cap
        ((CLOCK, USE), (2.9e9, 0.99)),
        ((CLOCK, POWER, USE), (0.9e9, 640.0, 0.99)),  # its power is known, and does not bear it out
    ],
)
def test_a_clock_alone_opens_nothing_where_it_is_near_or_could_be_borne_out(names, is_then):
    normal = {CLOCK: 1.98e9, POWER: 640.0, USE: 0.99}
    levels = np.array([normal[name] for name in names])[None, :, None]
    values = levels * np.random.default_rng(0).normal(1.0, 0.002, (8, len(names), 70))
    values[1, :, 35:] = np.array(is_then)[:, None]
    assert not any(vote.verified for vote in shown(values, names=names, family="gpu"))
