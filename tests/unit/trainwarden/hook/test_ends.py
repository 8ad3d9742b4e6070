"""What ends a step, source by source."""

from __future__ import annotations

from collections.abc import Callable

from tests.hook_doubles import HandClock, backward, steps_of, wait
from trainwarden.hook import Hook


def test_an_optimizer_that_steps_inside_backward_ends_the_step_after_it(
    make: Callable[..., Hook], clock: HandClock
) -> None:
    target = make()
    handle = target.backward.begin(None)
    target.ends.optimizer_stepped()
    target.ends.optimizer_stepped()
    assert steps_of(target) == []
    target.backward.end(handle)
    assert len(steps_of(target)) == 1


def test_a_hand_written_update_is_recognised_and_no_step_is_lost(make: Callable[..., Hook], clock: HandClock) -> None:
    target = make()
    for step in range(8):
        clock.pass_ms(20)
        backward(target, clock, 10)
        wait(target, clock, 4)
        wait(target, clock, 6)
        found = len(steps_of(target))
        # Once believed, a step is written at its last wait and not at the next backward pass.
        assert found == (0 if step < 3 else step + 1)
    rows = steps_of(target)
    assert {row.source for row in rows} == {"by_hand"}
    assert [round(row.duration_s, 6) for row in rows] == [0.040] * 8
    assert [round(row.wait_s, 6) for row in rows] == [0.010] * 8


def test_accumulation_before_a_late_optimizer_step_is_not_taken_for_steps_by_hand(
    make: Callable[..., Hook], clock: HandClock
) -> None:
    target = make()
    target.ends.optimizers = 1
    for _ in range(2):
        for _ in range(16):
            clock.pass_ms(1)
            wait(target, clock, 1)
            backward(target, clock, 1)
            wait(target, clock, 1)
        target.ends.optimizer_stepped()
    assert [(row.source, row.micro_batches) for row in steps_of(target)] == [("optimizer", 16)] * 2


def test_a_lone_process_without_optimizer_steps_at_every_backward(make: Callable[..., Hook], clock: HandClock) -> None:
    target = make(world=1)
    for _ in range(12):
        clock.pass_ms(5)
        backward(target, clock, 5)
    rows = steps_of(target)
    assert len(rows) == 12
    assert {round(row.duration_s, 6) for row in rows} == {0.010}
    assert rows[-1].source == "backward"
