"""Pauses of the training thread: checkpoints, waiting for data, evaluation. Long ones are kept in their ring."""

from __future__ import annotations

import weakref
from typing import Any

from .layout import AT_PAUSES, AT_PHASE, AT_RECORDED, AT_STEP, EVALUATION, PAUSE_RING, PAUSE_WORDS, PAUSES_BEGIN
from .memory import Memory
from .thread import Tally, TrainingThread, clock, thread_id

_LONG_NS = 500_000_000  # pauses that long are worth an event


class Pauses:
    """Time that is neither computing nor waiting; of pauses within each other the outermost counts."""

    __slots__ = ("began", "count", "memory", "tally", "thread")

    def __init__(self, memory: Memory, thread: TrainingThread, tally: Tally) -> None:
        self.memory = memory
        self.thread = thread
        self.tally = tally
        self.began = 0
        self.count = 0  # kept in the ring

    def begin(self, phase: int) -> tuple[int, int] | None:
        """A pause begins on the training thread, what `end` needs; None elsewhere."""
        thread = self.thread
        if thread_id() != thread.owner or thread.inside:
            return None
        now = clock()
        before = thread.phase
        if not thread.paused:
            self.began = now
            self.tally.paused_wait_ns = 0
        thread.paused += 1
        thread.phase = phase
        self.memory.words[AT_PHASE] = now << 3 | phase
        return before, now

    def end(self, token: tuple[int, int], phase: int) -> None:
        """The pause that gave `token` ended."""
        now = clock()
        before, began = token
        thread = self.thread
        thread.paused -= 1
        if not thread.paused:
            self.tally.pause_ns += now - self.began
        thread.phase = before
        self.memory.words[AT_PHASE] = now << 3 | before
        if now - began >= _LONG_NS:
            try:
                self._keep(phase, began, now - began)
            except Exception:
                self.memory.failed()

    def abandon(self, depth: int, phase: int) -> None:
        """A signal handler raised in the midst of `begin` or `end`: back to `depth` pauses and `phase`."""
        thread = self.thread
        if thread_id() == thread.owner:
            thread.paused, thread.phase = depth, phase
            self.memory.words[AT_PHASE] = clock() << 3 | phase

    def _keep(self, phase: int, began: int, took: int) -> None:
        memory = self.memory
        serial = self.count + 1
        at = PAUSES_BEGIN + (self.count % PAUSE_RING) * PAUSE_WORDS.size
        step = memory.words[AT_STEP]
        PAUSE_WORDS.pack_into(memory.buffer, at, serial, phase, began + memory.offset_ns, took, step, serial)
        memory.words[AT_PAUSES] = self.count = serial

    def cut(self, now: int) -> None:
        """A step ends in the middle of a pause: what is over of it belongs to that step."""
        self.tally.pause_ns += now - self.began
        self.began, self.tally.paused_wait_ns = now, 0

    def undo(self, token: tuple[int, int]) -> bool:
        """The pause that gave `token` was none: its waits were waits. True if it has been a short one up to now."""
        before, began = token
        thread = self.thread
        thread.paused -= 1
        thread.phase = before
        if not thread.paused:
            self.tally.wait_ns += self.tally.paused_wait_ns
            self.memory.words[AT_PHASE] = clock() << 3 | before
        return clock() - began < _LONG_NS


class Evaluation:
    """The pause from ``model.eval()`` to ``model.train()``."""

    __slots__ = ("exempt", "module", "pauses", "token")

    def __init__(self, pauses: Pauses) -> None:
        self.pauses = pauses
        self.token: tuple[int, int] | None = None
        self.module: Any = None  # weak reference to the module that is evaluated
        self.exempt: Any = weakref.WeakSet()  # frozen parts of a model, which are never trained

    def mode_changed(self, module: Any, training: bool) -> None:
        """``module.train(training)`` is about to run, outermost, on the training thread."""
        if training:
            if self.token is not None:
                token, self.token = self.token, None
                self.pauses.end(token, EVALUATION)
        elif self.token is None and module.training and self._may_be(module):
            self.token = self.pauses.begin(EVALUATION)
            if self.token is not None:
                self.module = weakref.ref(module)

    def _may_be(self, module: Any) -> bool:
        """Before the first step models are put together, and some are frozen for good."""
        return self.pauses.memory.words[AT_RECORDED] > 0 and module not in self.exempt

    def disprove(self) -> None:
        """A backward pass came after ``eval()``: that module is a frozen part of the model, or train() is missing."""
        token, self.token = self.token, None
        if token is not None:
            short = self.pauses.undo(token)
            module = self.module()
            if module is not None and short:
                self.exempt.add(module)
