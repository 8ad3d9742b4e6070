"""The replays count what they say: WAF over time, standing still, waiting for a repair."""

from __future__ import annotations

import pytest

from tests.benchmarks.cluster_profiles import CASES, throughput
from tests.benchmarks.cluster_replay import (
    DAY_S,
    NODES,
    POLICIES,
    Failure,
    Minutes,
    Setting,
    Trace,
    policy,
    proportional,
    trace,
    upper_bound,
    waf,
)

HALF_DAY_S = DAY_S / 2
ALL_SIX = Setting(most_gpus=24)


def failing(*failures: Failure) -> Trace:
    """A day with these, and one SEV1 as its last moment, as traces have at least one."""
    return Trace(DAY_S, (*failures, Failure(DAY_S - 1e-3, 0, DAY_S)))


@pytest.mark.parametrize("name", POLICIES)
def test_without_failures_nothing_is_lost(name: str) -> None:
    total, unfailing = waf(name, failing(), Minutes(), ALL_SIX)
    assert total == pytest.approx(unfailing, rel=1e-6)


@pytest.mark.parametrize(("name", "minutes"), [("ours", 17.0), ("equal", 17.0), ("restart-only", 68.0)])
def test_a_task_that_is_stopped_stands_still_for_its_minutes(name: str, minutes: float) -> None:
    one = policy(name, ALL_SIX, Minutes(), HALF_DAY_S)
    task = one.state.owner[5]
    assert task is not None
    total, unfailing = waf(name, failing(Failure(HALF_DAY_S, 5, None)), Minutes(), ALL_SIX)
    assert unfailing - total == pytest.approx(one.state.waf(task) * minutes * 60.0, rel=1e-3)


def test_who_only_restarts_waits_for_the_repair_and_then_starts() -> None:
    one = policy("restart-only", ALL_SIX, Minutes(), HALF_DAY_S)
    task = one.state.owner[5]
    assert task is not None
    total, unfailing = waf("restart-only", failing(Failure(0.0, 5, HALF_DAY_S)), Minutes(), ALL_SIX)
    assert unfailing - total == pytest.approx(one.state.waf(task) * (HALF_DAY_S + 38.0 * 60.0), rel=1e-3)


def test_ours_goes_on_with_one_node_less() -> None:
    total, unfailing = waf("ours", failing(Failure(0.0, 5, 2 * DAY_S)), Minutes(), ALL_SIX)
    assert 0.9 < total / unfailing < 0.99  # the node goes from a task of little weight, so less than 1 of 16 is lost


@pytest.mark.parametrize(("name", "lost", "others", "days"), [("a", 10, 33, 56), ("b", 26, 80, 7)])
def test_traces_have_the_papers_counts_and_are_seeded(name: str, lost: int, others: int, days: int) -> None:
    one = trace(name, 3)
    assert one == trace(name, 3) != trace(name, 4)
    repairs = [failure.repair_s for failure in one.failures if failure.repair_s is not None]
    assert (len(repairs), len(one.failures) - len(repairs), one.span_s) == (lost, others, days * DAY_S)
    longest_s = 7 * DAY_S / (1 if name == "a" else 20)
    assert all(longest_s / 7 <= repair_s <= longest_s for repair_s in repairs)


def test_all_nodes_down_ends_nothing() -> None:
    failures = [Failure(float(at), at % NODES, DAY_S * 2) for at in range(NODES + 3)]
    for name in POLICIES:
        total, unfailing = waf(name, failing(*failures), Minutes(), ALL_SIX)
        assert 0.0 <= total < unfailing / 100


def test_splits_are_in_proportion_and_whole() -> None:
    assert proportional([1.0, 2.0, 1.0], 16) == [4, 8, 4]
    assert sum(proportional([2.0, 1.7, 1.4, 1.1, 0.8, 0.5], 16)) == 16


def test_modelled_curves_dip_and_hold_no_more_than_memory() -> None:
    assert throughput(13.0, 1) == 0.0  # 208 GB of state on one GPU
    per_gpu = [throughput(1.3, gpus) / gpus for gpus in (48, 56, 64)]
    assert per_gpu[1] < min(per_gpu[0], per_gpu[2])
    assert {size for sizes, _ in CASES.values() for size in sizes} == {1.3, 7.0, 13.0}


def test_no_policy_exceeds_the_upper_bound_and_one_that_never_stops_reaches_it() -> None:
    for seed in range(3):
        failures = trace("b", seed)
        bound = upper_bound(failures, ALL_SIX)
        assert all(waf(name, failures, Minutes(), ALL_SIX)[0] < bound for name in POLICIES)
        at_once = waf("ours", failures, Minutes(ours=0.0), ALL_SIX)[0]
        assert at_once == pytest.approx(bound, rel=1e-9)
    assert upper_bound(failing(), ALL_SIX) == pytest.approx(waf("ours", failing(), Minutes(), ALL_SIX)[1], rel=1e-6)
