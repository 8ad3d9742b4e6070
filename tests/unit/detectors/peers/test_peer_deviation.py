"""Which rank is slow, since when, until when, by how much, and by what evidence."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tests.unit.detectors.peers.rank_series import healthy, watched, windows
from trainwarden.detectors.job.packed import unpack
from trainwarden.detectors.peers.episodes import calm_rows, onset_rows, spell_ratio, trimmed_mean
from trainwarden.detectors.peers.memory import ROWS, SLACK, PeerMemory, PeerStep
from trainwarden.detectors.peers.peer_deviation import PeerDeviation
from trainwarden.detectors.peers.roles import median_of_peers, roles
from trainwarden.errors import DetectorError


def slowed(seed: int = 0, rows: int = 200, ranks: int = 10, noise: float = 0.03, **spells: tuple[int, int, float]):
    work = healthy(seed, rows, ranks, noise)
    for name, (first, last, ratio) in spells.items():
        work[first : last + 1, int(name.removeprefix("r").split("_")[0])] *= ratio
    return work


QUICK = {(1.3, 2), (2.0, 4), (3.0, 10), (1.5, 64)}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("ratio", "ranks"),
    [
        pytest.param(ratio, ranks, marks=[] if (ratio, ranks) in QUICK else pytest.mark.thorough)
        for ratio in (1.3, 1.5, 2.0, 3.0)
        for ranks in (2, 4, 10, 64)
    ],
)
def test_a_slow_rank_is_named_where_it_begins_and_ends(ratio: float, ranks: int) -> None:
    (spell,) = watched(slowed(ranks=ranks, r1=(100, 149, ratio)))
    assert (spell.rank, spell.basis, spell.evidence) == (1, "self", "duration")
    assert abs(spell.from_step - 100) <= 2
    assert spell.reported_step - 100 <= 10
    assert spell.to_step is not None
    assert abs(spell.to_step - 149) <= 3
    assert spell.ratio == pytest.approx(ratio, rel=0.05)


def test_it_lasts_until_it_is_over() -> None:
    (spell,) = watched(slowed(r3=(120, 199, 1.6)))
    assert spell.to_step is None


def test_slow_twice_is_two_spells() -> None:
    first, second = watched(slowed(r3=(60, 99, 1.6), r3_again=(125, 160, 1.4)))
    assert [first.rank, second.rank] == [3, 3]
    assert first.to_step is not None
    assert first.to_step < second.from_step
    assert abs(second.from_step - 125) <= 2
    assert second.ratio == pytest.approx(1.4, rel=0.05)


def test_a_short_relief_ends_the_first_spell_and_not_the_second() -> None:
    found = watched(slowed(r3=(60, 99, 2.0), r3_again=(112, 199, 2.0)))
    assert [(one.from_step, one.to_step) for one in found] == [(60, 99), (112, None)]


def test_the_slow_rank_moves() -> None:
    first, second = watched(slowed(r3=(60, 110, 1.6), r7=(111, 180, 1.6)))
    assert (first.rank, second.rank) == (3, 7)
    assert abs(first.to_step - 110) <= 3
    assert abs(second.from_step - 111) <= 2


def test_two_at_once() -> None:
    found = watched(slowed(r3=(60, 199, 1.6), r7=(60, 199, 1.3)))
    assert {one.rank: round(one.ratio, 1) for one in found} == {3: 1.6, 7: 1.3}


def test_small_steps_up_add_up() -> None:
    (spell,) = watched(slowed(rows=300, r3=(80, 299, 1.08), r3_b=(130, 299, 1.08), r3_c=(180, 299, 1.08)))
    assert spell.rank == 3
    assert spell.ratio == pytest.approx(1.08**3, rel=0.05)


def test_a_spell_that_grows_worse_has_the_ratio_of_its_worst_part() -> None:
    (spell,) = watched(slowed(r3=(80, 199, 1.3), r3_b=(120, 139, 1.5)))
    assert spell.ratio == pytest.approx(1.95, rel=0.05)


@pytest.mark.thorough
@pytest.mark.parametrize("lanes", ["compute", "wait"])
def test_in_step_the_one_who_waits_least_is_named(lanes: str) -> None:
    work = slowed(r3=(100, 199, 1.6))
    (spell,) = watched(work, lanes=lanes)
    assert (spell.rank, spell.evidence) == (3, lanes)
    durations_alone = np.repeat(work.max(axis=1, keepdims=True), 10, axis=1)
    assert watched(durations_alone) == []


def test_what_all_ranks_share_is_nobodys_fault() -> None:
    work = healthy(1, 200, 8)
    work[100:] *= 1.7
    assert watched(work) == []


def test_who_is_left_behind_has_not_become_slower_and_is_slow_against_its_peers() -> None:
    work = healthy(1, 200, 8)
    work[100:, 1:] *= 0.6
    (spell,) = watched(work)
    assert (spell.rank, spell.basis) == (0, "peers")
    assert abs(spell.from_step - 100) <= 2
    assert "start" not in spell.reason(spell.ratio)


def test_ranks_that_differ_from_the_start_within_reason_are_no_stragglers() -> None:
    levels = np.array([0.83, 0.8, 0.88, 1.0, 1.0, 1.08, 0.98, 1.0, 0.99, 0.94])  # as in a real job on shared GPUs
    assert watched(healthy(2, 250, 10, 0.02) * levels) == []


def test_a_rank_far_off_from_the_start_is_slow_against_its_peers_since_the_first_step() -> None:
    (spell,) = watched(slowed(rows=60, r3=(0, 59, 1.6)))
    assert (spell.rank, spell.basis, spell.from_step, spell.to_step) == (3, "peers", 0, None)
    assert spell.reported_step <= 16
    assert spell.ratio == pytest.approx(1.6, rel=0.05)


@pytest.mark.parametrize("ratio", [1.5, 3.0])
@pytest.mark.parametrize("others", [(1.0, 1.0), (1.0, 1.03)])
def test_of_three_the_odd_one_is_named(others: tuple[float, float], ratio: float) -> None:
    (spell,) = watched(healthy(0, 60, 3) * np.array([others[0], ratio, others[1]]))
    assert (spell.rank, spell.basis, spell.from_step, spell.to_step) == (1, "peers", 0, None)
    assert spell.ratio == pytest.approx(ratio, rel=0.05)


@pytest.mark.parametrize("levels", [(1.0, 1.15, 1.4), (1.0, 1.5, 1.5), (1.0, 1.3, 1.7)])
def test_of_three_that_all_differ_or_one_that_is_fast_nobody_is_named(levels: tuple[float, float, float]) -> None:
    assert watched(healthy(0, 200, 3) * np.array(levels)) == []


@pytest.mark.parametrize("ratio", [1.0, 1.1, 1.5, 3.0])
def test_of_two_ranks_that_always_differed_nobody_is_named_and_the_vote_says_why(ratio: float) -> None:
    detector = PeerDeviation(PeerDeviation.Config())
    for window in windows(slowed(ranks=2, r1=(0, 199, ratio))):
        detector.update(window)
        vote = detector.score(window)
    assert not detector.episodes
    assert vote.opinion == ("normal" if ratio < 1.25 else "abstain")
    assert vote.reason.endswith("nobody can say which is the odd one") or ratio < 1.25


def test_of_two_ranks_that_always_differed_the_one_that_becomes_slower_is_named() -> None:
    (spell,) = watched(slowed(ranks=2, r1=(0, 199, 1.5), r0=(120, 199, 2.0)))
    assert (spell.rank, spell.basis) == (0, "self")


def test_planned_slow_first_steps_count_when_the_begin_is_told() -> None:
    work = slowed(rows=60, r3=(0, 59, 1.6))
    detector = PeerDeviation(PeerDeviation.Config())
    for window in windows(work, 60):
        quiet = np.zeros(60, dtype=np.bool_)
        quiet[:10] = True
        detector.update(dataclasses.replace(window, quiet_rows=quiet))
    (spell,) = detector.episodes
    assert spell.from_step == 0
    assert spell.reported_step >= 20


def test_a_long_last_stage_is_seen_with_and_without_roles() -> None:
    work = slowed(rows=40, ranks=8, noise=0.01, r6=(0, 39, 1.6), r7=(0, 39, 1.6))
    for names in ((), roles(range(8), {"dp": 2, "pp": 4})):
        found = watched(work, roles=names)
        assert [(one.rank, one.basis, one.from_step) for one in found] == [(6, "peers", 0), (7, "peers", 0)]


def test_a_long_stage_of_many_ranks_is_named_as_a_stage() -> None:
    names = roles(range(32), {"dp": 8, "pp": 4})
    work = healthy(0, 60, 32)
    work[:, 24:] *= 1.5
    detector = PeerDeviation(PeerDeviation.Config())
    last = [detector.update(window) or window for window in windows(work, roles=names)][-1]
    assert sorted(one.rank for one in detector.episodes) == list(range(24, 32))
    assert {one.basis for one in detector.episodes} == {"peers"}
    vote = detector.score(last)
    assert (vote.opinion, vote.suspects) == ("anomalous", ())
    assert "all of stage3 compute 1.5" in vote.reason


@pytest.mark.parametrize(("levels", "slow"), [((1.0, 1.4, 1.0), 1), ((1.0, 1.4, 1.8), None), ((1.0, 1.4, 1.4), None)])
def test_the_odd_one_of_three_stages_is_named(levels: tuple[float, float, float], slow: int | None) -> None:
    work = healthy(0, 60, 12) * np.repeat(levels, 4)
    found = sorted(one.rank for one in watched(work, roles=roles(range(12), {"dp": 4, "pp": 3})))
    assert found == ([] if slow is None else list(range(4 * slow, 4 * slow + 4)))


def test_stages_that_differ_a_little_or_by_halves_blame_nobody() -> None:
    names = roles(range(32), {"dp": 16, "pp": 2})
    work = healthy(0, 100, 32, 0.1)
    work[:, 16:] *= 1.5
    assert watched(work, roles=names) == []
    assert watched(work) == []


def test_a_slow_rank_of_a_fast_stage_is_seen_beside_its_own_stage() -> None:
    names = roles(range(32), {"dp": 16, "pp": 2})
    work = healthy(0, 60, 32)
    work[:, 16:] *= 1.5
    work[:, 4] *= 1.5
    (spell,) = watched(work, roles=names)
    assert (spell.rank, spell.basis) == (4, "peers")


def test_slowness_that_wanders_over_all_ranks_blames_nobody() -> None:
    random = np.random.default_rng(3)
    work = 4.0 * np.exp(random.normal(0.0, 0.15, (60, 64)))
    work[np.arange(60), random.integers(0, 64, 60)] *= 1.8
    assert watched(work) == []


def test_a_change_of_how_steps_are_measured_starts_anew() -> None:
    work = healthy(0, 120, 6)
    detector = PeerDeviation(PeerDeviation.Config())
    for window in windows(work, 8, lanes="compute"):
        compute = window.compute_s.copy()
        compute[60:] = np.nan
        wait = window.wait_s.copy()
        wait[60:] = np.nan
        detector.update(dataclasses.replace(window, compute_s=compute, wait_s=wait))
    assert detector.episodes == []


def test_a_new_node_starts_without_history() -> None:
    work = slowed(r3=(60, 199, 1.6))
    detector = PeerDeviation(PeerDeviation.Config())
    for place, window in enumerate(windows(work, 10)):
        nodes = tuple("fresh" if place >= 10 and rank == 3 else node for rank, node in enumerate(window.nodes))
        detector.update(dataclasses.replace(window, nodes=nodes))
    assert detector.episodes[0].to_step is not None


def test_damaged_state_is_refused() -> None:
    detector = PeerDeviation(PeerDeviation.Config())
    with pytest.raises(DetectorError):
        detector.restore(b"nothing of ours")
    assert unpack("PeerDeviation", detector.state())[0]["_next_seq"] == 0


def test_memory_goes_on_over_the_end_of_its_rings() -> None:
    memory = PeerMemory()
    memory.resize(3)
    memory.assign(("", "", ""))
    for step in range(ROWS + 3 * SLACK):
        memory.push(
            PeerStep(step, float(step), 1.0, np.log(np.array([1.0, 1.0, 2.0])), np.full(3, np.nan)), np.zeros(3)
        )
    assert memory.step(0) == ROWS + 3 * SLACK - 1
    assert memory.step(ROWS - 1) == 3 * SLACK
    assert memory.tail("apart", 2, np.array([2])).ravel() == pytest.approx(np.log([2.0, 2.0]), rel=1e-5)


@pytest.mark.parametrize(
    ("ranks", "parallel", "expected"),
    [
        (range(8), {"tp": 2, "dp": 2, "pp": 2}, ["stage0"] * 4 + ["stage1"] * 4),
        ((0, 2, 4, 6), {"tp": 1, "dp": 2, "pp": 2}, ["stage0", "stage0", "stage1", "stage1"]),
        ((3,), {"pp": 4}, ["stage3"]),
        (range(4), {}, [""] * 4),
        ((), {"pp": 2}, []),
    ],
)
def test_roles(ranks, parallel, expected) -> None:
    assert list(roles(ranks, parallel)) == expected


def test_median_of_peers_leaves_each_out() -> None:
    values, codes = np.array([1.0, np.nan, 3.0, 8.0, 4.0, 7.0]), np.array([0, 0, 0, 0, 1, 1])
    others, levels = median_of_peers(values, codes)
    assert others.tolist() == [5.5, 3.0, 4.5, 2.0, 7.0, 4.0]
    assert levels.tolist() == [3.0, 5.5]


def test_onset_is_where_the_level_rises() -> None:
    random = np.random.default_rng(0)
    risen = random.normal(0.0, 0.05, (60, 50))
    risen[30:] += 0.3
    assert (np.abs(onset_rows(risen, np.full(50, 0.3)) - 30) <= 2).all()


def test_calm_rows_forgives_one_calm_step_within_a_spell() -> None:
    assert calm_rows(np.array([0.6, 0.5, 0.0, 0.5, 0.0, 0.0]), 0.1) == 2


def test_one_wild_step_does_not_change_a_ratio() -> None:
    values = np.full(24, 0.3)
    values[5] = 3.0
    assert trimmed_mean(values) == pytest.approx(0.3)
    assert spell_ratio(values, 0.0, 0.03, 8) == pytest.approx(np.exp(0.3))
