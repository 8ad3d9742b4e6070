"""Which thread is the training thread."""

from __future__ import annotations

import threading
from collections.abc import Callable

from tests.hook_doubles import HandClock, backward, steps_of, wait
from trainwarden.hook import Hook
from trainwarden.hook.layout import CHECKPOINT


def test_other_threads_do_not_count(make: Callable[..., Hook], clock: HandClock) -> None:
    target = make()
    backward(target, clock)
    seen: list[object] = []

    def elsewhere() -> None:
        seen.append(target.waits.enter())
        seen.append(target.backward.begin(None))
        seen.append(target.begin_pause(CHECKPOINT))
        target.ends.optimizer_stepped()

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert seen == [0, None, None]
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
