"""What the process computes on, where that works behind the host's back, and how long steps take there.

Calls on such a device return before the work is done, and so do waits for other ranks: what the host sees of a step is
when it was launched, and its split into compute and wait is not true. Modules that have been imported are asked whether
they are at work; nothing is imported or initialised for it.

There the device is asked itself, by events of torch's: one at the end of every step, and two around the wait for
gradients at the end of DDP's backward pass. They come from a fixed pool and are asked two steps later on the training
thread, when they are over and asking cannot wait for anything. No event is recorded or asked while a graph is captured,
as that would break the capture, nor where `CUDA_DEVICE_MAX_CONNECTIONS` is 1, as events between kernels would end their
overlap. A capture is over when its graph says so, is made anew or is gone; one that goes on all the same is told
(``open_capture``). ``TRAINWARDEN_DEVICE_EVENTS=off`` turns events off. One is never destroyed: that may hang with the
device.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from .layout import (
    ACCELERATORS,
    AT_ACCELERATOR,
    AT_TIMED,
    AT_TIMING,
    DEVICE_BEGINS,
    DEVICE_RING,
    DEVICE_WORDS,
    FAILED,
    LATE_STEPS,
    NO_WAIT,
    OFF,
    OPEN_CAPTURE,
    POOL_STEPS,
    SINGLE_QUEUE,
    TIMED,
    UNSUPPORTED,
)
from .memory import Memory
from .steps import Steps

_STRIKES = 8  # failures after which events are given up
_READ_AT_ONCE = 2  # steps at the end of one, so that a device that was late is caught up with
_OPEN_STEPS = 64  # steps that end within a capture; a program captures a few at a time
NO_TAIL, TAIL_BEGUN, TAIL_WHOLE, TAIL_SPOILED = range(4)


class Captures:
    """Graphs of which a capture is under way in this process, on whatever thread."""

    __slots__ = ("_open",)

    def __init__(self) -> None:
        self._open: dict[int, Any] = {}  # by identity of the graph

    def __len__(self) -> int:
        return len(self._open)

    def under_way(self) -> bool:
        """Whether there is any."""
        return len(self._open) > 0

    def begins(self, graph: Any) -> bool:
        """Whether this is news."""
        key, opened = id(graph), self._open
        if key in opened:
            return False
        try:
            opened[key] = weakref.ref(graph, lambda gone: opened.pop(key, None))
        except TypeError:
            opened[key] = None  # a kind of graph whose end nobody can learn of
        return True

    def ends(self, graph: Any) -> None:
        """Also of a graph that was not known to be captured."""
        self._open.pop(id(graph), None)


class Device:
    """Whether this process computes on an asynchronous device, looked for until one is found.

    Parameters
    ----------
    memory : Memory
        Whose header says so.
    steps : Steps
        Gets the events of the device.
    """

    __slots__ = ("captures", "memory", "name", "steps")

    def __init__(self, memory: Memory, steps: Steps) -> None:
        self.memory = memory
        self.steps = steps
        self.name = ""
        self.captures = Captures()

    def look(self) -> None:
        """Say in the header what the process computes on, once that is known, and time its steps there."""
        if self.name or not self.memory.live:
            return
        self.name = name = accelerator_at_work()
        if name:
            known = name if name in ACCELERATORS else ACCELERATORS[-1]
            self.memory.words[AT_ACCELERATOR] = ACCELERATORS.index(known)
            self.memory.words[AT_TIMING] = UNSUPPORTED
            self.memory.words[AT_TIMING] = self._time(sys.modules.get("torch"), sys.modules.get("torch." + name))

    def _time(self, torch: Any, module: Any) -> int:
        """Make the events, if they do no harm; a place in TIMINGS."""
        if os.environ.get("TRAINWARDEN_DEVICE_EVENTS") == "off":
            return OFF
        if os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS") == "1":
            return SINGLE_QUEUE
        # The device's own kind lets go of the interpreter while it records: a full queue holds up no other thread.
        kind: Any = getattr(module, "Event", None)
        of = {}
        if kind is None:
            kind, of = getattr(torch, "Event", None), {"device": self.name}
        if not hasattr(kind, "elapsed_time"):
            return UNSUPPORTED
        asked = getattr(module, "is_current_stream_capturing", None)

        def capturing() -> bool:
            return len(self.captures) > 0 or (asked is not None and asked())

        pool = [StepEvents(*(kind(**of, enable_timing=True) for _ in range(3))) for _ in range(POOL_STEPS)]
        keep_for_ever(pool)
        self.steps.events = Events(self.memory, self.steps, pool, capturing)
        return TIMED


class StepEvents:
    """The events of one step."""

    __slots__ = ("end", "serial", "tail", "wait_begin", "wait_end")

    def __init__(self, end: Any, wait_begin: Any, wait_end: Any) -> None:
        self.end = end
        self.wait_begin = wait_begin
        self.wait_end = wait_end
        self.serial = 0
        self.tail = NO_TAIL


class Events:
    """Records events on the device as steps end, and writes down what they say.

    Parameters
    ----------
    memory : Memory
        Where that is written.
    steps : Steps
        Whose `events` this is, until they are given up.
    pool : list of StepEvents
    capturing : callable
        True while a graph is captured.
    """

    __slots__ = ("before", "capturing", "current", "failures", "free", "memory", "pending", "steps", "within")

    def __init__(self, memory: Memory, steps: Steps, pool: list[StepEvents], capturing: Callable[[], bool]) -> None:
        self.memory = memory
        self.steps = steps
        self.capturing = capturing
        self.free = pool[1:]
        self.current: StepEvents | None = pool[0]  # of the step in progress; None: the pool has run out
        self.pending: deque[StepEvents] = deque()  # recorded and not yet asked
        self.before: StepEvents | None = None  # of the newest step that was asked: the next one begins there
        self.failures = 0
        self.within = 0  # steps in a row that ended while a graph was captured

    def wait_begins(self) -> None:
        """From here on the device waits for gradients. Whatever thread works on the backward pass."""
        step = self.current
        if step is None:
            return
        try:
            begins, step.tail = step.tail == NO_TAIL, TAIL_SPOILED  # of two waits in a step one would be left out
            if begins and not self.capturing():
                step.wait_begin.record()
                step.tail = TAIL_BEGUN
        except Exception:
            self._failed()

    def wait_ends(self) -> None:
        """Up to here the device waited."""
        step = self.current
        if step is None or step.tail != TAIL_BEGUN:
            return
        try:
            if not self.capturing():
                step.wait_end.record()
                step.tail = TAIL_WHOLE
        except Exception:
            self._failed()

    def step_ends(self, serial: int) -> None:
        """The step `serial` ends on the training thread."""
        try:
            if not self._within_capture():
                self._record(serial)
                self._read(serial)
        except Exception:
            self._failed()
        if self.current is None and self.free:
            self.current = self.free.pop()
        if self.current is not None:
            self.current.tail = NO_TAIL

    def _within_capture(self) -> bool:
        """Whether a graph is captured; when that does not end, and when it does after all, the header says so."""
        if self.capturing():
            self.within += 1
            if self.within == _OPEN_STEPS:
                self.memory.words[AT_TIMING] = OPEN_CAPTURE
            return True
        if self.within >= _OPEN_STEPS:
            self.memory.words[AT_TIMING] = TIMED
        self.within = 0
        return False

    def _record(self, serial: int) -> None:
        step = self.current
        if step is not None:
            step.end.record()
            step.serial = serial
            self.current = None
            self.pending.append(step)

    def _read(self, serial: int) -> None:
        """Ask what should be over by now; the oldest that is not yet stops it."""
        for _ in range(_READ_AT_ONCE):
            if not self.pending or self.pending[0].serial > serial - LATE_STEPS or not self.pending[0].end.query():
                return
            step = self.pending.popleft()
            before, self.before = self.before, step
            try:
                if before is not None and before.serial == step.serial - 1:
                    self._write(before, step)
            finally:
                self.memory.words[AT_TIMED] = step.serial
                if before is not None:
                    self.free.append(before)

    def _write(self, before: StepEvents, step: StepEvents) -> None:
        """How long `step` took on the device, and how much of that it waited."""
        took_ms = before.end.elapsed_time(step.end)
        wait_ns = NO_WAIT
        if step.tail == TAIL_WHOLE and step.wait_begin.query() and step.wait_end.query():
            wait_ms = step.wait_begin.elapsed_time(step.wait_end)
            if 0.0 <= wait_ms <= took_ms:
                wait_ns = int(wait_ms * 1e6)
        at = DEVICE_BEGINS + (step.serial - 1) % DEVICE_RING * DEVICE_WORDS.size
        DEVICE_WORDS.pack_into(self.memory.buffer, at, step.serial, int(took_ms * 1e6), wait_ns, step.serial)

    def _failed(self) -> None:
        """An event raised; of one that raises again and again no more is asked."""
        self.failures += 1
        if self.failures >= _STRIKES:
            self.steps.events = None
            self.memory.words[AT_TIMING] = FAILED
        self.memory.failed()


def accelerator_at_work() -> str:
    """Torch's name of the device type that this process has initialised; empty if there is none."""
    names = list(ACCELERATORS[1:-1])
    renamed = getattr(sys.modules.get("torch._C"), "_get_privateuse1_backend_name", None)
    if renamed is not None:
        names.append(renamed())  # a backend from outside torch, by the name that it has given itself
    for name in names:
        asked = getattr(sys.modules.get("torch." + name), "is_initialized", None)
        if asked is not None and asked():
            return str(name)
    return ""


def keep_for_ever(things: list[Any]) -> None:
    """Never let go of `things`, not even when the interpreter ends."""
    ctypes = sys.modules.get("ctypes")  # torch has imported it
    if ctypes is not None:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(things))
