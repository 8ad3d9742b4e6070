"""Nodes that are not sampled together are compared by what they did at one time, or not at all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any, Final

import numpy as np
import pytest

from trainwarden.detectors.job.board import MetricBuffer
from trainwarden.detectors.job.samples import Entity
from trainwarden.detectors.job.state import JobState
from trainwarden.detectors.metrics.bundle.bundle import ModelBundle
from trainwarden.detectors.metrics.bundle.lined_up import interval_s, lined_up
from trainwarden.detectors.metrics.bundle.members import VoteConfig
from trainwarden.detectors.metrics.models.dtw import Dtw, DtwConfig
from trainwarden.detectors.metrics.scores import MetricScorer
from trainwarden.detectors.metrics.votes import DtwVote
from trainwarden.records import MetricsRecord, Vote
from trainwarden.settings import parse

NODES: Final = 8
EVERY_S: Final = 10.0
PERIOD_S: Final = 310.0  # of compute and checkpoint, at which all metrics of all nodes jump
NAMES: Final = ("power", "clock", "load", "flow")
JUMP: Final = np.array([3.0, 2.0, -3.0, 1.0])[:, None]
SAMPLES: Final = 160
SICK_FROM_S: Final = 900.0
Sent = tuple[float, MetricsRecord]


def values(times_s: Any, random: np.random.Generator) -> Any:
    """All nodes do the same at the same time ``[4, t]``."""
    return JUMP * (times_s % PERIOD_S < 200.0) + random.normal(0.0, 0.3, (4, times_s.size))


@cache
def models() -> ModelBundle:
    times_s, random = np.arange(600.0) * EVERY_S, np.random.default_rng(9)
    normal: list[Any] = [(Entity(f"n{one}", "GPU-0"), times_s, values(times_s, random).T) for one in range(NODES)]
    config = parse(VoteConfig, {"members": {"dtw": 1.0, "zlength": 0.0}}, "models")
    return ModelBundle.fit({"GPU": normal}, {"GPU": NAMES}, config, seed=0)


def sent(
    seed: int, parts: int = 1, ahead_s: Mapping[int, float] | None = None, late_s: float = 0.0,
    every_s: float = EVERY_S, lost: range = range(0), sick: float = 0.0,
) -> list[Sent]:  # fmt: skip
    """What nodes say, a part of them at a time: node 2 by another clock, late, more seldom, or not; node 5 is sick."""
    random, out = np.random.default_rng(seed), []
    for node in range(NODES):
        step_s = every_s if node == 2 else EVERY_S
        times_s = EVERY_S * (node % parts) / parts + np.arange(0.0, SAMPLES * EVERY_S, step_s)
        rows = values(times_s, random)
        rows[0] += sick * ((times_s >= SICK_FROM_S) & (node == 5))
        for place, time_s in enumerate(times_s.tolist()):
            if node == 2 and place in lost:
                continue
            record = MetricsRecord(
                job="j", node=f"n{node}", time_s=time_s + (ahead_s or {}).get(node, 0.0), devices=("GPU-0",),
                names=NAMES, values=tuple((float(value),) for value in rows[:, place]), ranks=(node,),
            )  # fmt: skip
            out.append((time_s + late_s * (node == 2), record))
    return sorted(out, key=lambda one: one[0])


def votes(records: list[Sent], parts: int = 1) -> tuple[list[Vote], set[str]]:
    """What dtw says of each window, and what the models abstained from."""
    board, scorer, vote = MetricBuffer(), MetricScorer(models()), DtwVote(DtwVote.Config())
    empty, said, why = JobState("j").window(now_s=0.0), list[Vote](), set[str]()
    now_s = 0.0
    while records:
        now_s += EVERY_S / parts
        while records and records[0][0] < now_s:
            board.feed(records.pop(0)[1])
        window = replace(empty, end_s=now_s, scored=scorer.score(board.pop_new(), now_s), unscored=scorer.abstained)
        vote.update(window)
        said.append(vote.score(window))
        why |= set(scorer.abstained.values())
    return said, why


def accused(said: list[Vote]) -> set[int | None]:
    return {one.rank for vote in said for one in vote.suspects}


APART: Final[dict[str, dict[str, Any]]] = {
    "two parts": {"parts": 2},
    "four parts": {"parts": 4},
    "a clock ahead": {"parts": 4, "ahead_s": {2: 45.0}},
    "a clock behind": {"ahead_s": {2: -45.0}},
    "two clocks ahead": {"parts": 4, "ahead_s": {2: 45.0, 6: 45.0}},
    "late": {"parts": 2, "late_s": 45.0},
    "more seldom": {"parts": 4, "every_s": 12.0},
    "some lost": {"parts": 4, "lost": range(60, 80)},
}


@pytest.mark.thorough
@pytest.mark.parametrize("how", APART)
def test_nobody_is_strange_for_when_it_is_sampled(how: str) -> None:
    said, _ = votes(sent(1, **APART[how]), APART[how].get("parts", 1))
    assert accused(said) == set()
    assert any(one.opinion == "normal" for one in said)


@pytest.mark.thorough
@pytest.mark.parametrize("parts", [1, 2, 4])
def test_a_sick_node_is_found_however_nodes_are_sampled(parts: int) -> None:
    said, _ = votes(sent(1, parts=parts, sick=1.5), parts)
    assert accused(said) == {5}
    first_s = next(place for place, one in enumerate(said, 1) if one.suspects) * EVERY_S / parts
    assert 0.0 < first_s - SICK_FROM_S <= 200.0


@pytest.mark.thorough
@pytest.mark.parametrize(("ahead_s", "late_s", "way"), [(45.0, 0.0, "ahead of"), (0.0, 45.0, "behind")])
def test_whose_times_are_apart_is_named(ahead_s: float, late_s: float, way: str) -> None:
    said, why = votes(sent(1, ahead_s={2: ahead_s}, late_s=late_s, sick=1.5))
    assert accused(said) == {5}
    (reason,) = why
    assert reason.startswith("the times of GPU-0 of n2 are 4")
    assert f" s {way} those of its peers" in reason


@pytest.mark.thorough
def test_times_within_an_interval_are_no_reason() -> None:
    _, why = votes(sent(1, parts=4, ahead_s={2: 4.0})[:400], 4)
    assert why == set()


@pytest.mark.thorough
def test_what_was_taken_when_survives_a_restart() -> None:
    records = sent(1, parts=2)
    half = next(place for place, (at_s, _) in enumerate(records) if at_s > 700.0)
    first, second = MetricScorer(models()), MetricScorer(models())
    board = MetricBuffer()
    for at_s, record in records[:half]:
        board.feed(record)
        first.score(board.pop_new(), at_s)
    second.restore(first.state())
    for at_s, record in records[half : half + 60]:
        board.feed(record)
        new = board.pop_new()
        (one,), (other,) = first.score(new, at_s), second.score(new, at_s)
        np.testing.assert_array_equal(one.scores["dtw"], other.scores["dtw"])


def test_lined_up_are_samples_by_their_times() -> None:
    times_s = np.array([[0.0, 10.0, 20.0, 30.0], [3.0, 13.0, 23.0, 33.0], [0.0, 10.0, 30.0, np.nan]])
    rows = np.array([[[1.0, 2.0, 3.0, 4.0]]] * 3)
    found, off = lined_up(rows, times_s, 30.0, 10.0, 4)
    np.testing.assert_array_equal(found[:, 0], [[1, 2, 3, 4], [1, 2, 3, 4], [1, 2, np.nan, 3]])
    np.testing.assert_allclose(off, [0.0, 0.3, 0.0])
    assert interval_s((times_s,)) == 10.0
    assert np.isnan(interval_s((times_s[:, :1],)))


def test_with_slack_a_jump_may_come_one_sample_later_and_a_level_may_not() -> None:
    windows = np.zeros((8, 1, 40))
    windows[:, 0, 20:] = 5.0
    windows[2, 0, 20] = 0.0  # one sample late
    windows[3, 0, 39] = 0.0  # what comes next is not known yet
    windows[5] += 1.0
    model = Dtw(DtwConfig(), np.ones(1))
    np.testing.assert_allclose(model.score(windows, slack=1), [0, 0, 0, 0, 0, 1, 0, 0], atol=0.02)
    assert model.score(windows)[3] > 0.0


@pytest.fixture(scope="module")
def alike() -> Callable[[int], Any]:
    return lambda seed: np.random.default_rng(seed).normal(size=(6, 2, 30))


def test_without_gaps_or_slack_distances_are_plain(alike: Callable[[int], Any]) -> None:
    windows = alike(0)
    plain = np.sqrt(((windows - np.median(windows, axis=0)) ** 2).mean(axis=2).mean(axis=1))
    model = Dtw(DtwConfig(limit=1e9), np.ones(2))
    np.testing.assert_allclose(model.score(windows), plain)
    assert (model.score(windows, slack=1) < plain).all()
