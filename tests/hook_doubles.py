"""The hook without torch: a clock moved by hand, what torch does to the hook, and what stands in its file."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trainwarden import hook
from trainwarden.hook import Hook
from trainwarden.hook.layout import FILE_BYTES, HEADER, HEADER_BYTES, MAGIC, NO_CODE, VERSION, Words
from trainwarden.hook.memory import _pid_namespace, _start_ns
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


def write_header(path: Path, pid: int, **said: int) -> None:
    """A hook file of process `pid`, with what the kernel says of it if there is one, and no steps."""
    wall_ns, ticks = time.time_ns(), 1
    with contextlib.suppress(OSError):
        ticks = int((Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[19])
    rank = int(path.name.split("-")[1])
    words = Words._make([0] * len(Words._fields))._replace(
        magic=MAGIC, version=VERSION, pid=pid, rank=rank, world=1, start_ns=_start_ns(ticks, wall_ns),
        offset_ns=wall_ns - time.monotonic_ns(), start_ticks=ticks, pid_namespace=_pid_namespace(), code=NO_CODE,
    )  # fmt: skip
    words = words._replace(**said)
    path.write_bytes(HEADER.pack(*words, *[0] * (HEADER_BYTES // 8 - len(words))) + bytes(FILE_BYTES - HEADER_BYTES))


def steps_of(target: Hook) -> list[hook.Step]:
    found = hook.read_steps(target.memory.path + ".hook")
    assert found is not None
    return found


def header_of(target: Hook) -> hook.Header:
    found = hook.read_header(target.memory.path + ".hook")
    assert found is not None
    return found
