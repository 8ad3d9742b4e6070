"""Backward passes under DDP, whose wait for gradients Python does not see."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.hook_doubles import HandClock, Replica, SimpleModule, backward, engine_backward, header_of, steps_of, wait
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


def test_asking_for_gradients_is_no_micro_batch_of_a_step_that_accumulates(
    make: Callable[..., Hook], clock: HandClock
) -> None:
    """Penalties and forces: torch.autograd.grad in the forward pass, before the loss's own backward pass."""
    target = make(world=1)
    target.ends.optimizers = 1
    for _ in range(3):
        asked = target.backward.begin(None, accumulates=False)
        if asked is not None:
            target.backward.end(asked)
        backward(target, clock, 10)
        target.ends.optimizer_stepped()
    assert [row.micro_batches for row in steps_of(target)] == [1, 1, 1]
    target.evaluation.mode_changed(SimpleModule(), training=False)
    assert target.backward.begin(None, accumulates=False) is None
    assert header_of(target).phase == "evaluation"


def test_a_process_that_only_asks_for_gradients_has_steps(make: Callable[..., Hook], clock: HandClock) -> None:
    target = make(world=1)
    target.ends.optimizers = 1
    for _ in range(3):
        target.backward.end(target.backward.begin(None, accumulates=False))
        clock.pass_ms(10)
        target.ends.optimizer_stepped()
    assert len(steps_of(target)) == 3
