"""Throughput by number of nodes: measured from steps while the job runs, registered, or said to be an assumption."""

from __future__ import annotations

import pytest

from trainwarden.actions.coordinator.throughput import LAG_S, WARM_UP_STEPS, ThroughputMeter
from trainwarden.records import IterationRecord, TaskRecord

TASK = TaskRecord(id="a", job="a", at_s=0.0, maximum=3, work_per_step=8.0)


def steps(duration_s: float, count: int, incarnation: str = "p1", first: int = 0) -> IterationRecord:
    numbers = tuple(range(first, first + count))
    return IterationRecord(
        job="a", node="n1", rank=0, incarnation=incarnation, steps=numbers, end_s=tuple(map(float, numbers)),
        duration_s=(duration_s,) * count,
    )  # fmt: skip


def measured(*rounds: tuple[int, float]) -> ThroughputMeter:
    """A job that ran on so many nodes at so many seconds a step, one round after the other."""
    meter, now_s = ThroughputMeter(), 0.0
    for number, (nodes, duration_s) in enumerate(rounds):
        meter.observe("a", None, now_s)
        meter.apply(steps(9.9, WARM_UP_STEPS, f"p{number}"), now_s)  # they compile
        meter.apply(steps(duration_s, 30, f"p{number}"), now_s)
        now_s += LAG_S
        meter.observe("a", nodes, now_s)
    return meter


def test_a_curve_is_measured_where_the_job_ran_and_assumed_beside() -> None:
    curve = measured((2, 0.5), (1, 0.8)).curve(TASK, per_node=1.0)
    assert curve.throughput == pytest.approx((0.0, 10.0, 16.0, 24.0))  # three nodes as the nearest that is known
    assert curve.assumed == (3,)


def test_each_node_brings_its_own_work_where_the_task_says_so() -> None:
    growing = TaskRecord(id="a", job="a", at_s=0.0, maximum=2, work_per_step=8.0, work_grows=True)
    assert measured((2, 0.5)).curve(growing, 1.0).throughput[2] == pytest.approx(32.0)


def test_what_was_registered_counts_until_it_is_measured() -> None:
    registered = TaskRecord(id="a", job="a", at_s=0.0, maximum=2, work_per_step=8.0, throughput=(0.0, 9.0, None))
    curve = ThroughputMeter().curve(registered, 1.0)
    assert curve.throughput == (0.0, 9.0, 18.0)
    assert curve.assumed == (2,)
    assert measured((1, 0.8)).curve(registered, 1.0).throughput[1] == pytest.approx(10.0)


def test_steps_of_a_round_that_has_not_been_seen_to_run_are_of_no_size() -> None:
    meter = ThroughputMeter()
    meter.apply(steps(0.5, 40), 0.0)
    meter.observe("a", 2, LAG_S / 2)  # the state may be that of the round before
    assert meter.curve(TASK, 1.0).assumed == (1, 2, 3)
    meter.observe("a", None, LAG_S)  # it was: the job starts anew
    meter.observe("a", 3, LAG_S * 1.5)
    assert meter.curve(TASK, 1.0).assumed == (1, 2, 3)
    meter.observe("a", 3, LAG_S * 2.5)
    assert meter.curve(TASK, 1.0).assumed == (1, 2)


def test_few_steps_measure_nothing() -> None:
    meter = ThroughputMeter()
    meter.apply(steps(0.5, 20), 0.0)  # three of them warm up
    meter.observe("a", 2, LAG_S)
    assert meter.curve(TASK, 1.0).assumed == (1, 2, 3)


def test_a_node_of_an_unknown_job_is_worth_the_mean_of_the_others() -> None:
    other = TaskRecord(id="b", job="b", at_s=0.0, maximum=2, weight=2.0)
    curves = measured((2, 0.5)).curves([TASK, other])  # 16 on two nodes
    assert curves["b"].throughput == pytest.approx((0.0, 8.0, 16.0))
    assert curves["b"].assumed == (1, 2)
    assert ThroughputMeter().curves([other])["b"].throughput == (0.0, 1.0, 2.0)
