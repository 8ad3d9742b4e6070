"""What must not matter to who is slow: order of ranks, size of windows, gaps, spikes, being cut and restored."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.examples import examples
from tests.unit.detectors.peers.rank_series import healthy, watched, windows
from trainwarden.detectors.job.common_mode import median_of_others
from trainwarden.detectors.peers.peer_deviation import PeerDeviation
from trainwarden.detectors.peers.roles import median_of_peers

seeds = st.integers(0, 2**31)
ratios = st.sampled_from([1.4, 1.7, 2.5])


def seen(work, **more):
    return [dataclasses.astuple(one) for one in watched(work, **more)]


def one_slow(seed, rows=110, ranks=8, first=60, ratio=1.7, rank=2):
    work = healthy(seed, rows, ranks)
    work[first : first + 30, rank] *= ratio
    return work


@pytest.mark.thorough
@given(
    seed=seeds, blocks=st.lists(st.sampled_from([1, 3, 8, 40, 200]), min_size=2, max_size=2, unique=True), ratio=ratios
)
@examples(25)
def test_the_size_of_windows_does_not_matter(seed, blocks, ratio):
    work = one_slow(seed, ratio=ratio)
    left, right = (seen(work, block=block) for block in blocks)
    assert left == right
    assert left


@pytest.mark.thorough
@given(seed=seeds, order=st.permutations(range(8)), ratio=ratios)
@examples(25)
def test_permuting_ranks_permutes_the_suspects(seed, order, ratio):
    work = one_slow(seed, ratio=ratio)
    plain, moved = watched(work), watched(work[:, order])
    assert [(order[one.rank], one.from_step, one.to_step, one.reported_step) for one in moved] == [
        (one.rank, one.from_step, one.to_step, one.reported_step) for one in plain
    ]
    assert [one.ratio for one in moved] == pytest.approx([one.ratio for one in plain])


@given(seed=seeds, ids=st.lists(st.integers(0, 60_000), min_size=8, max_size=8, unique=True))
@examples(15)
def test_ranks_keep_their_numbers(seed, ids):
    assert [one.rank for one in watched(one_slow(seed), ids=ids)] == [ids[2]]


@pytest.mark.thorough
@given(seed=seeds, copies=st.integers(1, 6), ratio=ratios)
@examples(20)
def test_constant_and_repeated_ranks_change_nobodys_guilt(seed, copies, ratio):
    work = one_slow(seed, ratio=ratio)
    constant = np.full((len(work), 1), 0.5)
    wider = np.hstack([work, constant, np.repeat(work[:, :1], copies, axis=1)])
    assert {one.rank for one in watched(wider)} == {2}


@pytest.mark.thorough
@given(seed=seeds, share=st.floats(0.0, 0.15), ratio=ratios)
@examples(20)
def test_gaps_hide_nothing(seed, share, ratio):
    work = one_slow(seed, ratio=ratio)
    work[np.random.default_rng(seed).random(work.shape) < share] = np.nan
    assert {one.rank for one in watched(work, block=1)} == {2}


@pytest.mark.thorough
@given(seed=seeds, rank=st.integers(0, 7), at=st.integers(0, 109), size=st.floats(1.5, 50.0), width=st.integers(1, 2))
@examples(40)
def test_a_spike_is_nobodys_fault(seed, rank, at, size, width):
    work = healthy(seed, 110, 8)
    work[at : at + width, rank] *= size
    assert watched(work) == []


@pytest.mark.thorough
@given(seed=seeds, ranks=st.integers(2, 40), noise=st.floats(0.001, 0.15))
@examples(40)
def test_healthy_ranks_are_left_alone(seed, ranks, noise):
    assert watched(healthy(seed, 150, ranks, noise), block=30) == []


@pytest.mark.thorough
@given(seed=seeds, cut=st.integers(0, 13), ratio=ratios, lanes=st.sampled_from(["duration", "compute", "wait"]))
@examples(20)
def test_may_be_cut_and_restored_anywhere(seed, cut, ratio, lanes):
    whole, part = PeerDeviation(PeerDeviation.Config()), PeerDeviation(PeerDeviation.Config())
    shown = windows(one_slow(seed, ratio=ratio), 8, lanes=lanes)
    for place, window in enumerate(shown):
        if place == cut:
            part, saved = PeerDeviation(PeerDeviation.Config()), part.state()
            part.restore(saved)
        whole.update(window)
        part.update(window)
        assert whole.score(window) == part.score(window)
    assert sorted(map(str, whole.episodes)) == sorted(map(str, part.episodes))
    assert whole.episodes


@given(
    values=st.lists(st.one_of(st.none(), st.floats(-10, 10)), min_size=1, max_size=30),
    data=st.data(),
)
@examples(100)
def test_median_of_peers_is_the_median_of_others_role_by_role(values, data):
    array = np.array([np.nan if value is None else value for value in values])
    codes = np.array(data.draw(st.lists(st.integers(0, 3), min_size=len(values), max_size=len(values))))
    assume(codes.max() >= 0)
    others, levels = median_of_peers(array, codes)
    for code in np.unique(codes):
        members = codes == code
        np.testing.assert_allclose(others[members], median_of_others(array[members][None])[0])
        known = array[members][np.isfinite(array[members])]
        np.testing.assert_allclose(levels[code], np.median(known) if known.size else np.nan)
