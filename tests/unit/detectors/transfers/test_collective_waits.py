"""Simulated ranks, one of them late: it is named, and nobody who waits in a group that it makes late."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.simulated_ranks.judged import Fault, Layout, Ranks, joined, judged, window_of
from trainwarden.detectors.calls.joined import Calls
from trainwarden.detectors.transfers.collective_waits import CollectiveWaits
from trainwarden.detectors.transfers.lateness import Lateness

LAYOUTS = [
    Layout(4, 2, 4),
    Layout(8, 4, 1),
    *(
        pytest.param(layout, marks=pytest.mark.thorough)
        for layout in (
            Layout(1, 32, 1),
            Layout(1, 4, 8),
            Layout(8, 2, 2),
            Layout(1, 16, ep=16),
            Layout(1, 16, ep=4),
            Layout(2, 8, 2, ep=2),
        )
    ),
]


def some(calls: Calls, rows: np.ndarray) -> Calls:
    return Calls(*(getattr(calls, name)[rows] for name in Calls.__slots__))


@pytest.mark.thorough
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_who_computes_a_tenth_longer_is_named_and_nobody_else(layout):
    """At 3 % noise from step to step and again within a step: from the 25th sampled step on."""
    ranks = Ranks(layout, seed=5, faults=(Fault("late", 13, 0.1, 25),))
    told = judged(ranks, 60)
    step, vote = told.waits
    assert 25 <= step <= 45
    assert (vote.kind, vote.suspects[0].rank, vote.suspects[0].node) == ("slow_compute", 13, "node1")
    assert told.accused == {13}
    assert told.links is None


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_nobody_is_accused_while_all_is_well(layout):
    told = judged(Ranks(layout, seed=8, noise=0.06, drift=0.02), 60)
    assert (told.waits, told.links) == (None, None)


@pytest.mark.thorough
@pytest.mark.parametrize("one_channel", [True, False])
def test_who_is_late_in_a_group_of_experts_is_named_though_tokens_go_where_they_like(one_channel):
    ranks = Ranks(
        Layout(2, 8, 2, ep=4), seed=6, noise=0.02, routing=0.2, one_channel=one_channel,
        faults=(Fault("late", 13, 0.2, 20),),
    )  # fmt: skip
    told = judged(ranks, 45)
    assert told.waits[0] >= 20
    assert (told.accused, told.links) == ({13}, None)


@pytest.mark.thorough
@pytest.mark.parametrize("routing", [0.0, 0.3])
def test_nobody_is_accused_for_the_tokens_that_its_experts_get(routing):
    told = judged(Ranks(Layout(1, 16, ep=4), seed=8, routing=routing, hot=routing / 3), 45)
    assert (told.waits, told.links) == (None, None)


def test_two_late_ranks_are_both_named_the_later_one_first():
    faults = (Fault("late", 3, 0.15, 20), Fault("late", 20, 0.4, 20))
    told = judged(Ranks(Layout(4, 8, 1), seed=2, faults=faults), 40)
    assert [suspect.rank for suspect in told.newest["waits"].suspects] == [20, 3]


@pytest.mark.parametrize("kind", ["late", "pair"])
def test_one_or_two_odd_steps_accuse_nobody(kind):
    ranks = Ranks(Layout(4, 2, 2), seed=2, noise=0.02)

    def spoil(calls: Calls, step: int) -> Calls:
        ranks.faults = (Fault(kind, 5, 2.0, 0),) if step in {29, 30} else ()
        return calls

    told = judged(ranks, 45, spoil)
    assert (told.waits, told.links) == (None, None)


def test_a_late_rank_and_a_slow_link_are_told_apart():
    faults = (Fault("late", 9, 0.2, 20), Fault("dp", 2, 0.4, 20))
    told = judged(Ranks(Layout(4, 8, 1), seed=2, faults=faults), 50)
    assert [suspect.rank for suspect in told.newest["waits"].suspects] == [9]
    assert told.newest["links"].kind == "slow_link"
    assert "group dp2" in told.newest["links"].reason


def test_a_slow_link_makes_nobody_late():
    told = judged(Ranks(Layout(8, 4, 1), seed=3, faults=(Fault("nic", 10, 1.5, 20),)), 45)
    assert told.waits is None
    assert told.links is not None


def test_a_pipeline_that_is_mostly_empty_hides_nobody():
    """Two micro-batches in sixteen stages: ranks compute an eighth of the time, and wait in turns for the rest."""
    ranks = Ranks(Layout(2, 4, 16), seed=5, faults=(Fault("late", 45, 0.15, 12),), micro_batches=2)
    told = judged(ranks, 24)
    step, vote = told.waits
    assert step <= 17
    assert [suspect.rank for suspect in vote.suspects] == [45]
    assert "1.1" in vote.reason
    assert told.accused == {45}


@pytest.mark.thorough
def test_a_stage_with_more_layers_is_not_late():
    """All of its ranks compute longer than other stages', one of them longer still."""
    ranks = Ranks(Layout(2, 2, 8), seed=5, noise=0.02, faults=(Fault("late", 13, 0.15, 20),))
    ranks._own[ranks.layout.grid[3].ravel()] *= 1.2
    told = judged(ranks, 36)
    assert told.waits[0] >= 20
    assert told.accused == {13}


@pytest.mark.thorough
def test_neighbours_of_ranks_without_records_are_not_late():
    """What they wait for these is in kernels too, though it cannot be joined."""
    ranks = Ranks(Layout(2, 2, 8), seed=3, noise=0.02, faults=(Fault("late", 9, 0.15, 20),))
    told = judged(ranks, 36, lambda calls, step: some(calls, np.flatnonzero(~np.isin(calls.column, (14, 27)))))
    assert told.waits[0] >= 20
    assert told.accused == {9}


def test_a_single_much_longer_step_among_long_ones_is_not_enough():
    """Four standard errors in the mean, but for one step of five."""
    lateness, noise = Lateness(), np.random.default_rng(0).normal(0.0, 0.06, (12, 64))
    noise[-4:, 7] = 0.16, 0.42, 0.16, 0.16
    lateness.resize(64)
    lateness.ratios[-12:], lateness.count = np.log1p(noise), 12
    assert not lateness.found(0.06, 6.0).any()
    lateness.ratios[-4:, 7] = np.log1p(0.24)
    assert np.flatnonzero(lateness.found(0.06, 6.0)).tolist() == [7]


def test_relief_ends_the_spell():
    detector = CollectiveWaits(CollectiveWaits.Config())
    ranks = Ranks(Layout(4, 4, 1), seed=1, noise=0.02, faults=(Fault("late", 6, 0.3, 10),))
    base = window_of(ranks.layout)
    for step in range(60):
        if step == 30:
            ranks.faults = ()
        calls, took_s = ranks.step()
        detector.update(replace(base, calls=(joined(ranks.layout, calls, step, took_s),)))
    (spell,) = detector.spells
    assert (spell.rank, spell.from_step) == (6, 10)
    assert 30 <= spell.to_step <= 36
    assert spell.share == pytest.approx(0.3, abs=0.06)
    assert detector.score(base).opinion == "normal"


@pytest.mark.thorough
def test_lost_and_missing_calls_cost_steps_and_accuse_nobody():
    """Of one rank nothing is known, of another the older half of its calls is lost now and then."""
    random = np.random.default_rng(0)

    def spoiled(calls: Calls, step: int) -> Calls:
        keep = calls.column != 21
        if random.random() < 0.3:
            keep &= (calls.column != 6) | (calls.seq % 4096 > 1)
        return some(calls, np.flatnonzero(keep))

    healthy = judged(Ranks(Layout(8, 4, 2), seed=4), 50, spoiled)
    assert (healthy.waits, healthy.links) == (None, None)
    told = judged(Ranks(Layout(8, 4, 2), seed=4, faults=(Fault("late", 13, 0.15, 20),)), 60, spoiled)
    assert told.accused == {13}


def test_ranks_that_disagree_about_a_number_accuse_nobody():
    def spoiled(calls: Calls, step: int) -> Calls:
        calls.seq[calls.column == 5] += 1
        return calls

    told = judged(Ranks(Layout(4, 4, 2), seed=4), 50, spoiled)
    assert (told.waits, told.links) == (None, None)


def test_captured_groups_leave_a_choice_and_it_says_so():
    """Without the tensor parallel groups' durations the late rank looks like those that wait for it there."""
    ranks = Ranks(Layout(4, 8, 1), seed=2, noise=0.02, unstamped=("tp",), faults=(Fault("late", 9, 0.25, 20),))
    told = judged(ranks, 45)
    vote = told.newest["waits"]
    assert {suspect.rank for suspect in vote.suspects} == {8, 9, 10, 11}
    assert all("unmeasured" in suspect.reason for suspect in vote.suspects)


def test_it_says_why_it_cannot_know():
    detector, base = CollectiveWaits(CollectiveWaits.Config()), window_of(Layout(2, 2, 1))
    assert "no rank tells" in detector.score(base).reason
    ranks = Ranks(Layout(2, 2, 1), unstamped=("tp", "dp", "world"))
    for step in range(5):
        detector.update(replace(base, calls=(joined(ranks.layout, *_first(ranks), step, 1.0),)))
    assert detector.score(base).opinion == "abstain"


def _first(ranks: Ranks) -> tuple[Calls]:
    return (ranks.step()[0],)
