"""The ladder: remedies fall due when the trouble has cost as much as they do."""

from __future__ import annotations

from trainwarden.actions.planners.ladder import Ladder, Strategy

REBALANCE, RESTART = Strategy("rebalance", 1.0), Strategy("restart_job", 60.0)


def test_remedies_come_cheapest_first_whatever_the_order_given() -> None:
    ladder = Ladder([RESTART, REBALANCE])
    assert ladder.strategies == (REBALANCE, RESTART)
    ladder.accumulate(1000, 1.3, 0.3)
    assert ladder.due(()) == REBALANCE
    assert ladder.due({"rebalance"}) == RESTART
    assert ladder.due({"rebalance", "restart_job"}) is None


def test_nothing_is_due_before_its_overhead_is_reached() -> None:
    ladder = Ladder([REBALANCE])
    ladder.accumulate(3, 0.5, 0.25)
    assert ladder.due(()) is None
    ladder.accumulate(4, 0.5, 0.25)
    assert ladder.due(()) == REBALANCE


def test_each_iteration_counts_once_with_the_loss_of_its_own_time() -> None:
    ladder = Ladder([RESTART])
    ladder.accumulate(10, 2.0, 1.0)
    ladder.accumulate(10, 2.0, 1.0)  # the same evidence again
    ladder.accumulate(8, 2.0, 1.0)  # an older one
    ladder.accumulate(20, 1.5, 1.0)  # half relieved
    assert ladder.impact_s == 15.0


def test_iterations_faster_than_healthy_do_not_pay_back() -> None:
    ladder = Ladder([RESTART])
    ladder.accumulate(10, 2.0, 1.0)
    ladder.accumulate(100, 0.5, 1.0)
    assert ladder.impact_s == 10.0
