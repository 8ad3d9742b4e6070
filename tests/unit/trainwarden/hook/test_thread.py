"""Which thread is the training thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.hook_doubles import HandClock, backward, steps_of, wait
from trainwarden.hook import Hook
from trainwarden.hook.layout import CHECKPOINT


def test_other_threads_do_not_count(make: Callable[..., Hook], clock: HandClock) -> None:
    target = make()
    backward(target, clock)
    seen: list[object] = []

    def elsewhere() -> None:
        seen.append(target.waits.enter())
        target.backward.end(target.backward.begin(None))
        seen.append(target.begin_pause(CHECKPOINT))
        target.ends.optimizer_stepped()

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert seen == [0, None]
    assert target.tally.backwards == 1
    assert target.thread.elsewhere == set()
    assert steps_of(target) == []


def test_the_first_thread_with_a_backward_pass_is_the_training_thread(
    make: Callable[..., Hook], clock: HandClock
) -> None:
    target = make()
    wait(target, clock, 1)  # a barrier on the main thread

    def train() -> None:
        backward(target, clock)
        target.ends.optimizer_stepped()

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    assert len(steps_of(target)) == 1


def on_another_thread(function: Callable[[], None]) -> None:
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


def test_threads_of_autograd_serve_the_backward_pass(make: Callable[..., Hook], clock: HandClock) -> None:
    """On accelerators hooks of parameters run on a thread of the device: collective calls and optimizer steps, too."""
    target = make()
    task = threading.local()
    target.thread.graph_task = lambda: getattr(task, "number", -1)

    def of_the_device() -> None:
        task.number = 7
        assert target.backward.begin(None) is None  # checkpointed layers: a pass within the pass
        wait(target, clock, 5)
        target.ends.optimizer_stepped()

    handle = target.backward.begin(None)
    clock.pass_ms(10)
    on_another_thread(of_the_device)
    target.backward.end(handle)
    on_another_thread(of_the_device)  # what runs on after the pass is not the training thread's
    (row,) = steps_of(target)
    assert (row.source, row.micro_batches) == ("optimizer", 1)
    assert (round(row.compute_s, 6), round(row.wait_s, 6)) == (0.010, 0.005)


def test_of_two_backward_passes_at_a_time_none_has_the_devices_threads(
    make: Callable[..., Hook], clock: HandClock
) -> None:
    target = make()
    began: list[object] = []
    handle = target.backward.begin(None)
    on_another_thread(lambda: began.append(target.backward.begin(None)))
    target.thread.graph_task = lambda: 7
    on_another_thread(lambda: wait(target, clock, 5))
    assert target.tally.wait_ns == 0
    target.backward.end(began[0])
    on_another_thread(lambda: wait(target, clock, 5))
    assert target.tally.wait_ns == 5_000_000
    target.backward.end(handle)


def test_a_hook_that_two_threads_wake_at_a_time_makes_one_file(
    make: Callable[..., Hook], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Else what is said of the process goes to one file and its steps to the other."""
    opened, woken = Hook.open, []

    def while_another_comes(self: Hook) -> None:
        if not woken:
            woken.append(None)
            other = threading.Thread(target=lambda: woken.append(self.activate()))
            other.start()
            other.join()
        opened(self)

    monkeypatch.setattr(Hook, "open", while_another_comes)
    target = make()
    assert woken == [None, False]
    assert target.thread.owner == threading.get_ident()
    assert len(list(tmp_path.glob("rank-*.hook"))) == 1
