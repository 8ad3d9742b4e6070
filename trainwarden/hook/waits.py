"""Waits of the training thread for other ranks, and the collective calls that most of them are.

A watched call enters here and leaves, and that is the path that must cost next to nothing: two looks at the clock, two
stores, no call in between.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from .ends import ByHand, Ends
from .layout import AT_P2P, AT_PHASE, LONE, OPTIMIZER, RECEIVE, SEND, WAIT
from .memory import Memory
from .steps import Steps
from .thread import Tally, TrainingThread, clock, thread_id


class Waits:
    """Time of the training thread in calls that wait for other ranks; of calls within each other the outermost."""

    __slots__ = ("by_hand", "memory", "steps", "tally", "thread")

    def __init__(self, thread: TrainingThread, tally: Tally, ends: Ends) -> None:
        self.memory: Memory = thread.memory
        self.thread = thread
        self.tally = tally
        self.steps: Steps = ends.steps
        self.by_hand: ByHand = ends.by_hand

    def enter(self) -> int:
        """A wait begins on this thread; its start in ns, or 0 if it is not one to watch."""
        thread = self.thread
        if thread_id() != thread.owner and not (thread.serves() or (thread.owner == -1 and thread.activate())):
            return 0
        if thread.inside:
            return 0
        thread.inside = True
        now = clock()
        self.memory.words[AT_PHASE] = now << 3 | WAIT
        return now

    def leave(self, began: int) -> None:
        """The wait that began at `began` ended."""
        now = clock()
        thread = self.thread
        tally = self.tally
        thread.inside = False
        self.memory.words[AT_PHASE] = now << 3 | thread.phase
        tally.events += 1
        if thread.paused:
            tally.paused_wait_ns += now - began
            return
        tally.wait_ns += now - began
        if self.steps.source < OPTIMIZER and not tally.stage:
            self.by_hand.waited(now)

    def abandon(self) -> None:
        """A signal handler raised in the midst of `enter` or `leave`, unless it is another thread that waits."""
        thread = self.thread
        if thread_id() == thread.owner:
            thread.inside = False
            self.memory.words[AT_PHASE] = clock() << 3 | thread.phase

    def calibrate(self) -> None:
        """What one watched call costs on this machine, so that the hook can state its own overhead."""
        began = time.perf_counter_ns()
        for _ in range(32):
            self.leave(self.enter())
        self.tally.unit_ns = (time.perf_counter_ns() - began) // 32
        self.tally.wait_ns = self.tally.events = 0
        self.by_hand.candidate = None


class Calls:
    """What a collective or point-to-point call tells, once it has returned."""

    __slots__ = ("ends", "memory", "p2p", "settle_rank", "steps", "tally", "thread")

    def __init__(self, thread: TrainingThread, tally: Tally, ends: Ends, settle_rank: Callable[[], None]) -> None:
        self.memory: Memory = thread.memory
        self.thread = thread
        self.tally = tally
        self.ends = ends
        self.steps: Steps = ends.steps
        self.settle_rank = settle_rank
        self.p2p = 0

    def called(self, op: int, args: tuple[Any, ...], began: int) -> None:
        """The call `op`, which began at `began`, was made and has returned."""
        try:
            if op <= RECEIVE:
                self._sent_or_received(op, began)
            if not self.memory.rank_known:
                self.settle_rank()
            if self.steps.source <= LONE and not self.thread.paused:
                self.ends.listen(op, args, began)
        except Exception:
            self.memory.failed()

    def _sent_or_received(self, op: int, began: int) -> None:
        """Note what tells the stage of a pipeline: the first call of a step, and a send before any backward pass."""
        tally = self.tally
        self.p2p += 1
        self.memory.words[AT_P2P] = self.p2p
        if not tally.stage:
            tally.stage = op
        elif tally.stage == RECEIVE and op == SEND and tally.backwards == self.steps.mark[3]:
            tally.stage = SEND | RECEIVE
        by_hand = self.ends.by_hand
        if by_hand.candidate is not None and by_hand.candidate[0] >= began:
            by_hand.candidate = None  # a step does not end with a wait for the neighbour
