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


class Optimizer:
    """Something that steps."""


def test_identical_layers_are_no_steps_where_an_optimizer_was_made(make: Callable[..., Hook], clock: HandClock) -> None:
    """More calls a step than the finder needs, and no backward pass to be seen."""
    target, optimizer = make(), Optimizer()
    target.ends.optimizers = 1
    for _ in range(6):
        for _ in range(600):
            wait(target, clock, 1)
        target.ends.optimizer_stepped(optimizer)
    rows = steps_of(target)
    assert {row.source for row in rows} == {"optimizer"}
    assert [round(row.duration_s, 6) for row in rows] == [0.6] * 6


def test_of_several_optimizers_one_ends_steps_without_backward(make: Callable[..., Hook], clock: HandClock) -> None:
    target = make()
    one, other = Optimizer(), Optimizer()
    target.ends.optimizers = 2
    for _ in range(5):
        clock.pass_ms(10)
        target.ends.optimizer_stepped(one)
        clock.pass_ms(10)
        target.ends.optimizer_stepped(other)
    assert [round(row.duration_s, 6) for row in steps_of(target)] == [0.010, 0.020, 0.020, 0.020, 0.020]


def test_optimizers_that_step_before_training_end_nothing(make: Callable[..., Hook], clock: HandClock) -> None:
    """As checkpoints are loaded: one step with empty gradients, to make the state."""
    target, optimizer = make(), Optimizer()
    target.ends.optimizers = 1
    target.ends.optimizer_stepped(optimizer)
    for _ in range(3):
        backward(target, clock, 10)
        target.ends.optimizer_stepped(optimizer)
        target.ends.optimizer_stepped(Optimizer())
    assert len(steps_of(target)) == 3


def test_a_graph_that_is_replayed_leaves_the_optimizers_steps(make: Callable[..., Hook], clock: HandClock) -> None:
    """The warm-up runs backward passes; the replays of what was captured do not show theirs."""
    target, optimizer = make(world=1), Optimizer()
    target.ends.optimizers = 1
    for _ in range(3):
        backward(target, clock, 10)
        target.ends.optimizer_stepped(optimizer)
    for _ in range(5):
        clock.pass_ms(10)
        target.ends.optimizer_stepped(optimizer)
    assert [round(row.duration_s, 6) for row in steps_of(target)] == [0.010] * 8


def test_a_layer_is_no_step_where_backward_passes_are_seen(make: Callable[..., Hook], clock: HandClock) -> None:
    target = make()
    for _ in range(4):
        for _ in range(50):
            wait(target, clock, 1, call=1)  # to a neighbour: such a wait ends no step by hand
        backward(target, clock, 10)
    after = [row for row in steps_of(target) if row.micro_batches]
    assert 0 < len(after) <= 4
    assert steps_of(target)[-1].duration_s > 0.050
