"""The scoring protocol against slow plain twins and hand-made cases."""

from __future__ import annotations

import numpy as np
import pytest

from tests.benchmarks.detection.measures import blamed_share, bootstrap, event_quality, vus_pr
from trainwarden.errors import DataError
from trainwarden.trainer_offline.fit.judge import episodes, segments


def plain_vus_pr(labels, scores, buffer_samples):
    """Paparrizos et al. 2022, sections 3 and 4, loop by loop, at the published 250 thresholds."""
    ranked = np.sort(scores)[::-1]
    thresholds = [ranked[i] for i in np.linspace(0, len(scores) - 1, 250).astype(int)]
    areas = []
    for buffer in range(buffer_samples + 1):
        faded = np.array(labels, dtype=float)
        for first, last in segments(labels):
            for distance in range(1, buffer // 2 + 1):
                for place in (first - distance, last + distance):
                    if 0 <= place < len(labels):
                        faded[place] += np.sqrt(1 - distance / buffer)
        faded = np.minimum(faded, 1.0)
        positives = (np.sum(labels) + faded.sum()) / 2
        area, before = 0.0, 0.0
        for threshold in thresholds:
            alerts = scores >= threshold
            touched = np.mean([alerts[first : last + 1].any() for first, last in segments(faded > 0)])
            recall = min((faded * alerts).sum() / positives, 1.0) * touched
            area += (recall - before) * (faded * alerts).sum() / alerts.sum()
            before = recall
        areas.append(area)
    return np.mean(areas)


@pytest.fixture
def labels():
    flags = np.zeros(600, dtype=int)
    for first, last in ((0, 5), (100, 130), (140, 141), (590, 599)):
        flags[first : last + 1] = 1
    return flags


@pytest.mark.parametrize("kind", ["noise", "good", "ties"])
def test_vus_pr_equals_plain(labels, kind):
    noise = np.random.default_rng(0).normal(size=600)
    scores = {"noise": noise, "good": noise + 2.0 * labels, "ties": np.round(noise + labels)}[kind]
    assert vus_pr(labels, scores, 20) == pytest.approx(plain_vus_pr(labels, scores, 20), rel=1e-9)


def test_curves_depend_on_ranks_alone(labels):
    scores = np.random.default_rng(0).normal(size=600) + labels
    assert vus_pr(labels, np.exp(scores)) == pytest.approx(vus_pr(labels, scores))


def test_segments_and_episodes():
    assert segments([]).tolist() == []
    assert segments([1, 1]).tolist() == [[0, 1]]
    alerts = np.zeros(40)
    alerts[[3, 7, 12, 30]] = 1  # 4 apart, 5 apart
    assert episodes(alerts).tolist() == [[3, 7], [12, 12], [30, 30]]
    assert episodes(alerts, every_s=300.0).tolist() == [[3, 7], [12, 12], [30, 30]]


@pytest.mark.parametrize("every_s", [1.0, 60.0])
def test_what_is_one_episode_is_told_by_time(every_s):
    at_s = np.array([600.0, 840.0, 1140.0, 2400.0])  # four minutes apart, five, more
    alerts = np.zeros(round(3_000.0 / every_s))
    alerts[(at_s / every_s).astype(int)] = 1
    assert (episodes(alerts, every_s) * every_s).tolist() == [[600.0, 840.0], [1140.0, 1140.0], [2400.0, 2400.0]]


def events(pairs, size=1000):
    flags = np.zeros(size)
    for first, last in pairs:
        flags[first : last + 1] = 1
    return flags


def test_event_is_found_only_by_an_episode_that_starts_in_it():
    quality = event_quality(events([(100, 120)]), events([(90, 110)]), 1440.0)
    assert (quality.found, quality.false_episodes, quality.precision, quality.recall) == (0, 0, 1.0, 0.0)


def test_margin_and_false_alarms_per_day():
    quality = event_quality(events([(100, 109)]), events([(114, 115), (130, 131), (104, 104)]), 99.0)
    assert (quality.found, quality.episodes, quality.false_episodes) == (1, 3, 1)
    assert quality.delay_samples == 4.0
    assert quality.false_per_day == pytest.approx(1 / (990 / 99.0))


def test_always_off_and_always_on():
    labels = events([(100, 109), (500, 600)])
    off, on = event_quality(labels, np.zeros(1000), 1.0), event_quality(labels, np.ones(1000), 1.0)
    assert (off.recall, off.precision, off.f1, off.delay_samples) == (0.0, None, None, None)
    # No point adjustment: one endless alarm starts in no event.
    assert (on.recall, on.precision) == (0.0, 1.0)


def test_blamed_share_takes_the_first_three():
    blame = np.tile([5.0, 4.0, 3.0, 2.0], (50, 1))
    assert blamed_share([(0, 9, frozenset({2})), (10, 19, frozenset({3}))], blame) == 0.5
    assert blamed_share([], blame) == 0.0


def test_bootstrap_is_over_machines_and_seeded():
    one = bootstrap([0.1, 0.2, 0.9])
    assert one == bootstrap([0.1, 0.2, 0.9])
    assert 0.1 <= one.low < one.mean == pytest.approx(0.4)
    assert one.mean < one.high <= 0.9
    with pytest.raises(DataError):
        bootstrap([])


def test_refusals():
    for bad in (([0, 1], [0.0]), ([0, 0], [0.0, 1.0]), ([0, 1], [0.0, np.nan])):
        with pytest.raises(DataError):
            vus_pr(*bad)
    with pytest.raises(DataError):
        event_quality([0, 1], [1], 1.0)
