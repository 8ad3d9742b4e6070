"""A device that works behind the host's back, without one: streams, events and captures by a clock moved by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tests.hook_doubles import HandClock

MILLISECOND = 1_000_000


class Capturing(RuntimeError):
    """What a program gets whose capture was broken."""


class Device:
    """What stands for ``torch.cuda``: work is queued and done later, in the order of its stream.

    `broken` makes events raise, `dead` is a device that never gets on, `index` the current device.
    """

    def __init__(self, clock: HandClock) -> None:
        self.clock = clock
        self.ready_ns = {0: 0}  # when a stream has done what is queued
        self.stream = 0
        self.index = 0
        self.capturing = self.broken = self.dead = False
        self.recorded = self.asked = self.made = 0
        self.harm: list[str] = []  # calls that no program would forgive
        self.Event = lambda **said: Event(self, **said)
        vars(self.Event)["elapsed_time"] = None

    def is_initialized(self) -> bool:
        return True

    def is_current_stream_capturing(self) -> bool:
        return self.capturing

    def work(self, milliseconds: float) -> None:
        """Queue work on the current stream; the host goes on at once."""
        began = max(self.ready_ns.get(self.stream, 0), self.clock())
        self.ready_ns[self.stream] = began + int(milliseconds * MILLISECOND)

    def catch_up(self) -> None:
        """The host waits for the current stream."""
        self.clock.now = max(self.clock.now, self.ready_ns.get(self.stream, 0))


class Event:
    """What stands for ``torch.cuda.Event``."""

    def __init__(self, device: Device, *, enable_timing: bool) -> None:
        assert enable_timing
        device.made += 1
        self.device = device
        self.index: int | None = None
        self.over_ns: float = 0.0

    def record(self) -> None:
        device = self.device
        if device.capturing:
            device.harm.append("record")
            raise Capturing
        if device.broken or self.index not in (None, device.index):
            raise RuntimeError("Event device index does not match recording stream's device index")
        self.index = device.index
        device.recorded += 1
        self.over_ns = max(device.ready_ns.get(device.stream, 0), device.clock())
        if device.dead:
            self.over_ns = float("inf")

    def query(self) -> bool:
        device = self.device
        if device.capturing:
            device.harm.append("query")
            raise Capturing
        if device.broken:
            raise RuntimeError("CUDA error: unspecified launch failure")
        device.asked += 1
        return device.clock() >= self.over_ns

    def elapsed_time(self, later: Event) -> float:
        if self.index != later.index or not (self.query() and later.query()):
            raise RuntimeError("not ready")
        return (later.over_ns - self.over_ns) / MILLISECOND

    def __del__(self) -> None:
        self.device.harm.append("destroyed")


def group(size: int) -> Any:
    """A process group of so many ranks."""
    return SimpleNamespace(size=lambda: size)
