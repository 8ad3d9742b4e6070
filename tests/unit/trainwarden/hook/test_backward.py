"""Backward passes under DDP, whose wait for gradients Python does not see."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.hook_doubles import HandClock, Replica, engine_backward, header_of, steps_of, wait
from trainwarden.hook import Hook


def test_the_last_part_of_ddps_backward_is_a_wait(make: Callable[..., Hook], clock: HandClock) -> None:
    target, replica = make(), Replica()
    target.backward.replicas.add(replica)
    phases: list[str] = []

    def finalise() -> None:
        clock.pass_ms(7)
        phases.append(header_of(target).phase)

    engine_backward(target, clock, finalise)
    target.ends.optimizer_stepped()
    (row,) = steps_of(target)
    assert (row.compute_s, row.wait_s) == (pytest.approx(0.010), pytest.approx(0.007))
    assert phases == ["wait"]
    assert header_of(target).phase == "compute"


def test_waits_that_were_seen_in_the_last_part_are_not_counted_twice(
    make: Callable[..., Hook], clock: HandClock
) -> None:
    target, replica = make(), Replica()
    target.backward.replicas.add(replica)

    def finalise() -> None:
        wait(target, clock, 4)
        clock.pass_ms(3)

    engine_backward(target, clock, finalise)
    target.ends.optimizer_stepped()
    (row,) = steps_of(target)
    assert (row.compute_s, row.wait_s) == (pytest.approx(0.013), pytest.approx(0.004))


def test_ddp_without_an_optimizer_steps_where_gradients_were_exchanged(
    make: Callable[..., Hook], clock: HandClock
) -> None:
    target, replica = make(), Replica()
    target.backward.replicas.add(replica)
    target.calls.called(8, (), 0)  # there are collectives, so this is no lone process
    target.tally.calls = 1
    for _ in range(6):
        replica.require_backward_grad_sync = False
        engine_backward(target, clock, lambda: clock.pass_ms(0.1))
        replica.require_backward_grad_sync = True
        engine_backward(target, clock, lambda: clock.pass_ms(5))
    rows = steps_of(target)
    assert len(rows) >= 5
    assert {(row.micro_batches, row.source) for row in rows} == {(2, "by_hand")}
