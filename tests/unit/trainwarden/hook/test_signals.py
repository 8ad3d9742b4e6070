"""A signal handler of the program raises, at any place where the interpreter runs handlers."""

from __future__ import annotations

import gc
import signal
import sys
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from tests.hook_doubles import HandClock, header_of
from trainwarden.hook import Hook
from trainwarden.hook.layout import AT_PHASE, CHECKPOINT, COMPUTE
from trainwarden.hook.watches.calls import watched_call
from trainwarden.hook.watches.pausing import _pausing
from trainwarden.hook.watches.training import watch_backward


class TimeIsUp(Exception):
    """What a program's own handler raises."""


def handler(*_args: object) -> None:
    raise TimeIsUp


@pytest.fixture(autouse=True)
def handled() -> Iterator[None]:
    before = signal.signal(signal.SIGUSR1, handler)
    gc.disable()  # what is raised in a finalizer of other tests' objects reaches nobody
    yield
    gc.enable()
    signal.signal(signal.SIGUSR1, before)


def interrupted_at(moment: int, call: Callable[[], Any]) -> bool:
    """Run `call` with the handler run at the given call or return, of Python or C; False if it was over before.

    These are the moments at which the interpreter looks for signals.
    """
    left = [moment]

    def watch(_frame: Any, event: str, _what: Any) -> None:
        left[0] -= 1
        if left[0] == 0:
            sys.setprofile(None)
            handler()

    try:
        try:
            sys.setprofile(watch)
            call()
        finally:
            sys.setprofile(None)
    except TimeIsUp:
        return True
    assert left[0] > 0, f"the handler's error was swallowed at moment {moment}"
    return False


def watched(target: Hook, clock: HandClock, kind: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    """A function of torch's under our watch."""
    if kind == "call":
        return partial(watched_call(target.waits, target.calls, lambda group: clock.pass_ms(1), 8), None)
    if kind == "save":
        return partial(_pausing(target.pauses, lambda: clock.pass_ms(900), CHECKPOINT))

    class Engine:
        def run_backward(self, roots: object, accumulate_grad: bool) -> None:
            clock.pass_ms(1)

    autograd = SimpleNamespace(Variable=SimpleNamespace(_execution_engine=Engine()))
    monkeypatch.setitem(sys.modules, "torch.autograd", autograd)
    assert watch_backward(target.backward)
    return lambda: autograd.Variable._execution_engine.run_backward(None, accumulate_grad=True)


@pytest.mark.parametrize("kind", ["call", "save", "backward"])
def test_whenever_a_handler_raises_the_program_gets_it_and_the_hook_goes_on(
    kind: str, make: Callable[..., Hook], clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = make()
    target.thread.phase = COMPUTE
    target.words[AT_PHASE] = clock() << 3 | COMPUTE
    call = watched(target, clock, kind, monkeypatch)
    call()
    moment = 0
    while True:
        moment += 1
        hit = interrupted_at(moment, call)
        thread = target.thread
        assert (thread.inside, thread.paused, thread.in_backward) == (False, 0, False), moment
        assert header_of(target).phase == "compute", moment
        assert target.live
        if not hit:
            break
    assert moment > 3
    assert header_of(target).errors == 0


def test_a_handlers_error_within_what_a_call_tells_is_not_swallowed(
    make: Callable[..., Hook], clock: HandClock
) -> None:
    """Also where it would be counted as an error of our own."""
    target = make()
    target.tally.backwards = 1
    moment = 0
    while interrupted_at(moment := moment + 1, target.ends.optimizer_stepped):
        pass
    assert header_of(target).errors == 0
