"""Phases and pauses: what the header says of the moment, and what is no evaluation."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.hook_doubles import HandClock, SimpleModule, backward, header_of, steps_of
from trainwarden import hook
from trainwarden.hook import Hook


def test_the_header_says_what_the_rank_is_doing(make: Callable[..., Hook], clock: HandClock) -> None:
    target = make()
    assert header_of(target).phase == "start"
    backward(target, clock)
    assert header_of(target).phase == "compute"
    began = target.waits.enter()
    clock.pass_ms(5)
    header = header_of(target)
    assert header.phase == "wait"
    target.waits.leave(began)
    with hook.phase("checkpoint"):
        assert header_of(target).phase == "checkpoint"
        inner = target.waits.enter()
        assert header_of(target).phase == "wait"
        target.waits.leave(inner)
        assert header_of(target).phase == "checkpoint"
    assert header_of(target).phase == "compute"
    assert header_of(target).phase_since_s - header.phase_since_s == pytest.approx(0.005, abs=1e-4)
    target.last_words.at_exit()
    assert (header_of(target).phase, header_of(target).exit_code) == ("exit", 0)


def test_evaluation_lasts_from_eval_to_train(make: Callable[..., Hook], clock: HandClock) -> None:
    target = make()
    module = SimpleModule()
    backward(target, clock)
    target.ends.optimizer_stepped()
    target.evaluation.mode_changed(module, False)
    assert header_of(target).phase == "evaluation"
    clock.pass_ms(800)
    target.evaluation.mode_changed(module, True)
    clock.pass_ms(10)
    backward(target, clock)
    target.ends.optimizer_stepped()
    assert steps_of(target)[-1].pause_s == pytest.approx(0.8)
    assert steps_of(target)[-1].compute_s == pytest.approx(0.01)
    (pause,) = hook.read_pauses(target.memory.path + ".hook") or []
    assert (pause.phase, pause.step, pause.duration_s) == ("evaluation", 1, pytest.approx(0.8))


def test_a_frozen_part_in_eval_mode_is_no_evaluation(make: Callable[..., Hook], clock: HandClock) -> None:
    target = make()
    module = SimpleModule()
    for _ in range(3):
        target.evaluation.mode_changed(module, False)
        clock.pass_ms(10)
        backward(target, clock)
        target.ends.optimizer_stepped()
        module.training = True  # train() of the whole model, which the hook also sees
        target.evaluation.mode_changed(module, True)
    assert [row.pause_s for row in steps_of(target)] == [0.0] * 3
    assert header_of(target).phase == "compute"


def test_phase_lets_the_persons_own_exception_through(make: Callable[..., Hook], clock: HandClock) -> None:
    target = make()
    with pytest.raises(KeyError), hook.phase("data"):
        raise KeyError("mine")
    assert target.thread.paused == 0
