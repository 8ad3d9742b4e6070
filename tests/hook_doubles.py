"""The hook without torch: a clock moved by hand, what torch does to the hook, and what stands in its file."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from trainwarden import hook
from trainwarden.hook import Hook
from trainwarden.hook.watches.calls import watched_call

MILLISECOND = 1_000_000


def set_everywhere(monkeypatch: pytest.MonkeyPatch, name: str, value: Any) -> None:
    """Give a module-level name of the hook another value in every module that has it, be it a package or one file."""
    places = [module for place, module in sys.modules.items() if f"{place}.".startswith("trainwarden.hook.")]
    found = [module for module in places if name in vars(module)]
    assert found
    for module in found:
        monkeypatch.setattr(module, name, value)


class HandClock:
    """Monotonic nanoseconds that move only when told."""

    def __init__(self) -> None:
        self.now = 1_000_000_000

    def __call__(self) -> int:
        return self.now

    def pass_ms(self, milliseconds: float) -> None:
        self.now += int(milliseconds * MILLISECOND)


def backward(target: Hook, clock: HandClock, milliseconds: float = 0.0) -> None:
    handle = target.backward.begin(None)
    clock.pass_ms(milliseconds)
    target.backward.end(handle)


def wait(target: Hook, clock: HandClock, milliseconds: float, call: int = 8) -> None:
    """A collective call, through the very watch that torch's methods get."""
    watched_call(target.waits, target.calls, lambda group: clock.pass_ms(milliseconds), call)(None)


class Engine:
    """Torch's engine as the hook sees it: a root that has hooks, and callbacks before the pass returns."""

    def __init__(self) -> None:
        self.callbacks: list[Callable[[], None]] = []
        self.prehooks: list[Callable[[object], None]] = []

    def queue_callback(self, callback: Callable[[], None]) -> None:
        self.callbacks.append(callback)

    def register_prehook(self, prehook: Callable[[object], None]) -> Engine:
        self.prehooks.append(prehook)
        return self

    def remove(self) -> None:
        self.prehooks.clear()


def engine_backward(target: Hook, clock: HandClock, ending: Callable[[], None]) -> None:
    """A pass of 10 ms whose last callback is `ending`."""
    engine = target.backward.engine = Engine()
    handle = target.backward.begin((SimpleNamespace(grad_fn=engine),))
    for prehook in engine.prehooks:
        prehook(None)
    engine.queue_callback(ending)  # DDP queues its own later than the root's hook ran
    clock.pass_ms(10)
    for callback in engine.callbacks:
        callback()
    target.backward.end(handle)
    assert engine.prehooks == []


class Replica:
    require_backward_grad_sync = True


class SimpleModule:
    training = True


def steps_of(target: Hook) -> list[hook.Step]:
    found = hook.read_steps(target.memory.path + ".hook")
    assert found is not None
    return found


def header_of(target: Hook) -> hook.Header:
    found = hook.read_header(target.memory.path + ".hook")
    assert found is not None
    return found
