"""What is written down of a step: its number, its parts, its micro-batches, and marks that overrule everything."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.hook_doubles import HandClock, SimpleModule, backward, header_of, steps_of, wait
from trainwarden import hook
from trainwarden.hook import Hook
from trainwarden.hook.layout import AT_ERRORS


def test_an_optimizer_step_after_a_backward_pass_ends_a_step(make: Callable[..., Hook], clock: HandClock) -> None:
    target = make(rank=3, world=8)
    for _ in range(2):
        clock.pass_ms(30)
        backward(target, clock, 10)
        wait(target, clock, 5)
        target.ends.optimizer_stepped()
        target.ends.optimizer_stepped()  # a second optimizer of the same step
    first, second = steps_of(target)
    assert (first.step, second.step) == (0, 1)
    assert second.duration_s == pytest.approx(0.045)
    assert second.compute_s == pytest.approx(0.040)
    assert second.wait_s == pytest.approx(0.005)
    assert second.source == "optimizer"
    assert second.micro_batches == 1
    header = header_of(target)
    assert (header.rank, header.world_size, header.step, header.calls) == (3, 8, 2, 2)
    assert header.role == "collective"


def test_micro_batches_are_counted_or_declared(make: Callable[..., Hook], clock: HandClock) -> None:
    target = make()
    for _ in range(3):
        backward(target, clock)
    target.ends.optimizer_stepped()
    hook.micro_batches(7)
    backward(target, clock)
    target.ends.optimizer_stepped()
    assert [step.micro_batches for step in steps_of(target)] == [3, 7]


def test_marks_overrule_everything_else(make: Callable[..., Hook], clock: HandClock) -> None:
    target = make()
    hook.set_step(100)
    for _ in range(3):
        clock.pass_ms(10)
        backward(target, clock)
        hook.iteration()
        target.ends.optimizer_stepped()
    clock.pass_ms(10)
    hook.iteration(500)
    assert [row.step for row in steps_of(target)] == [100, 101, 102, 500]
    assert {row.source for row in steps_of(target)} == {"marks"}
    assert header_of(target).step == 501


@pytest.mark.thorough
@given(data=st.data())
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_compute_wait_and_pause_add_up_whatever_happens(
    data: st.DataObject, make: Callable[..., Hook], clock: HandClock
) -> None:
    target = make()
    deeds = st.sampled_from(
        ["compute", "wait", "nested", "pause", "wait in pause", "step in pause", "backward", "step", "mark", "eval"]
    )
    module = SimpleModule()
    for deed in data.draw(st.lists(deeds, max_size=40)):
        clock.pass_ms(1)
        if deed == "wait":
            wait(target, clock, 2)
        elif deed == "nested":
            began = target.waits.enter()
            assert target.waits.enter() == 0
            target.waits.leave(began)
        elif deed == "pause":
            with hook.phase("data"):
                clock.pass_ms(3)
        elif deed == "wait in pause":
            with hook.phase("checkpoint"):
                wait(target, clock, 3)
        elif deed == "step in pause":
            with hook.phase("data"):
                backward(target, clock, 2)
                target.ends.optimizer_stepped()
                clock.pass_ms(1)
        elif deed == "backward":
            backward(target, clock, 2)
        elif deed == "step":
            target.ends.optimizer_stepped()
        elif deed == "mark":
            hook.iteration()
        elif deed == "eval":
            target.evaluation.mode_changed(module, not module.training)
            module.training = not module.training
    assert target.words[AT_ERRORS] == 0
    rows = steps_of(target)
    for row in rows:
        assert row.compute_s + row.wait_s + row.pause_s == pytest.approx(row.duration_s, abs=1e-9)
    ends = [row.end_s for row in rows]
    assert ends == sorted(ends)
    target.memory.live = False


def test_the_first_step_is_told_only_where_the_script_numbers_its_steps(
    make: Callable[..., Hook], clock: HandClock
) -> None:
    target = make()
    for number in (None, 40, 41):
        if number is not None:
            hook.set_step(number)
        assert header_of(target).first_step is None or number == 41
        backward(target, clock)
        target.ends.optimizer_stepped()
    assert header_of(target).first_step == 40


def test_a_mark_with_a_number_tells_the_first_step_too(make: Callable[..., Hook], clock: HandClock) -> None:
    target = make()
    hook.iteration()
    assert header_of(target).first_step is None
    hook.iteration(0)
    assert header_of(target).first_step == 0


@pytest.mark.parametrize(
    ("labels", "numbers"),
    [
        ([7, 8, 9, 20, 21], [7, 8, 9, 20, 21]),
        ([0, 1, 2, 0, 1, 2, 0, 1, 2], [0, 1, 2, 3, 4, 5, 6, 7, 8]),
        ([0, 1, 2, 0, 1, 4], [0, 1, 2, 3, 4, 7]),
        ([0, 1, 10**12, 3, 4], [0, 1, 2, 3, 4]),
        ([10**12, 1, 2], [10**12, 10**12 + 1, 10**12 + 2]),
        ([0, 50_000, 50_001, 50_002], [0, 1, 50_001, 50_002]),
        ([3, 3, 3], [3, 4, 5]),
        ([0, -5, 2**62, 3], [0, 1, 2, 3]),
    ],
)
@pytest.mark.parametrize("by_mark", [True, False])
def test_the_scripts_numbers_are_labels_and_no_two_steps_have_one_number(
    make: Callable[..., Hook], clock: HandClock, labels: list[int], numbers: list[int], by_mark: bool
) -> None:
    target = make()
    for label in labels:
        clock.pass_ms(10)
        if by_mark:
            hook.iteration(label)
        else:
            hook.set_step(label)
            hook.set_step(label)  # of one step, said twice
            hook.iteration()
    assert [row.step for row in steps_of(target)] == numbers
    assert header_of(target).step == numbers[-1] + 1


def test_numbers_that_begin_late_go_on_from_what_was_counted(make: Callable[..., Hook], clock: HandClock) -> None:
    target = make()
    for label in (None, None, None, 0, 1, None, 3):
        clock.pass_ms(10)
        hook.iteration(label)
    assert [row.step for row in steps_of(target)] == [0, 1, 2, 3, 4, 5, 6]
    assert header_of(target).first_step == 0
