"""Proposal of steps: by the posterior of a fresh segment, and by an unbroken row of values off the level."""

from __future__ import annotations

import numpy as np

from tests.benchmarks.detection.change_series import Floats
from tests.unit.detectors.pace.shifts.constructed import noisy, stepped
from trainwarden.detectors.pace.shifts.levels import Levels
from trainwarden.detectors.pace.shifts.proposal import ProposalConfig, StepProposal
from trainwarden.detectors.pace.shifts.shift import Mechanism, Thresholds


def after(
    values: Floats, leave_out: tuple[Mechanism, ...] = (), shortest: int = 4
) -> tuple[StepProposal, list[tuple[int, int]]]:
    """The proposal after one series [rows] or several [rows, series], of which none was accepted, and what it says."""
    rows = values.reshape(len(values), -1)
    thresholds = Thresholds(leave_out=leave_out)
    levels, proposal = Levels(thresholds), StepProposal(thresholds, ProposalConfig())
    levels.resize(rows.shape[1])
    proposal.resize(rows.shape[1])
    known = np.zeros(rows.shape[1], dtype=np.bool_)
    for seq, row in enumerate(rows):
        known = levels.observe(seq, row)
        proposal.replay(levels.calibrate(seq, known), levels)
        proposal.observe(row, levels)
        levels.follow(row)
    return proposal, proposal.candidates(known, levels, np.full(rows.shape[1], shortest))


def test_a_step_is_proposed_with_its_fourth_value() -> None:
    values = stepped(0.3)
    assert after(values[:203])[1] == []
    for leave_out in ((), ("bayes",), ("watch",)):
        assert after(values[:204], leave_out)[1] == [(0, 4)]  # type: ignore[arg-type]


def test_a_step_of_a_coarse_series_is_proposed_with_its_third_value() -> None:
    values = stepped(1.4)
    assert after(values[:202], shortest=3)[1] == []
    for leave_out in ((), ("bayes",), ("watch",)):
        assert after(values[:203], leave_out, shortest=3)[1] == [(0, 3)]  # type: ignore[arg-type]


def test_a_step_within_the_reach_of_the_noise_is_the_posteriors_alone() -> None:
    values = stepped(0.085, width=0.02)[:230]
    ((series, run),) = after(values)[1]
    assert series == 0
    assert abs(run - 30) <= 3
    assert after(values, ("bayes",))[1] == []


def test_series_that_are_unknown_now_are_not_proposed() -> None:
    rows = np.stack([stepped(0.3)[:204], noisy(204, seed=1), stepped(0.3, seed=2)[:204]], axis=1)
    rows[-1, 2] = np.nan
    assert after(rows)[1] == [(0, 4)]


def test_what_came_back_by_itself_is_remembered_as_long_as_it_is_no_segment() -> None:
    values = noisy(300)
    values[100:107] += 0.4
    values[150:155] -= 0.4
    values[200:230] += 0.4  # longer than twenty: a segment of its own
    proposal, _ = after(values)
    assert (proposal.longest(0, slower=True), proposal.longest(0, slower=False)) == (7, 5)
    proposal.forget(np.array([True]))
    assert proposal.longest(0, slower=True) == 0


def test_a_faster_segment_that_was_short_is_remembered_too() -> None:
    proposal, _ = after(noisy(60))
    for rows in (6, 4, 21):
        proposal.came_back(0, rows)
        assert proposal.longest(0, slower=False) == 6


def test_one_wild_value_on_the_other_side_ends_no_row_of_values_off_the_level() -> None:
    values = stepped(0.3)[:210]
    values[205] = -0.3
    assert after(values)[0]._away[1].tolist() == [9]
    values[206] = -0.3
    assert after(values)[0]._away[1].tolist() == [3]
