"""The training thread: which one it is, what it is in the middle of, and what has been counted on it so far."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from .layout import START
from .memory import Memory

clock = time.monotonic_ns
thread_id = threading.get_ident

Mark = tuple[int, int, int, int]  # time, waits, pauses so far (ns), backward passes so far


def no_graph_task() -> int:
    return -1


class TrainingThread:
    """Everything is measured on one thread, the first to run a backward pass; what others do is not watched.

    Only autograd's own threads, one a device, count as that thread while they run its backward pass (`serves`).

    Hot paths ask ``thread_id() != thread.owner`` themselves, as a call would double what they cost.

    Parameters
    ----------
    memory : Memory
        Whether the hook is at work at all.
    activate : callable
        Brings the hook to life, for this very thread; False if that cannot be.
    """

    __slots__ = (
        "activate", "elsewhere", "graph_task", "in_backward", "inside", "memory", "owner", "paused", "phase", "proven",
    )  # fmt: skip

    def __init__(self, memory: Memory, activate: Callable[[], bool]) -> None:
        self.memory = memory
        self.activate = activate
        self.owner = -1  # nobody yet
        self.proven = False  # the owner has run a backward pass or set a mark
        self.inside = False  # in a watched wait
        self.in_backward = False
        self.elsewhere: set[int] = set()  # other threads in a backward pass of their own
        self.graph_task: Callable[[], int] = no_graph_task  # torch's: which backward pass the calling thread works on
        self.paused = 0  # pauses within each other
        self.phase = START  # what to go back to after a wait

    def take_over(self) -> bool:
        """True if this thread is, or just became, the training thread: the first to run a backward pass."""
        if self.memory.off:
            return False
        if not self.memory.live:
            return self.activate()
        if self.proven or self.inside or self.paused:
            return False
        self.owner = thread_id()
        return True

    def serves(self) -> bool:
        """True if this thread, not the training thread, runs a part of the training thread's backward pass."""
        # Threads of devices serve every pass of the process: of two at a time nobody can tell whose this is.
        return self.in_backward and not self.elsewhere and self.graph_task() >= 0


class Tally:
    """What has been counted on the training thread so far; two of a kind make the figures of a step."""

    __slots__ = (
        "backwards", "calls", "events", "own_ns", "pause_ns", "paused_wait_ns", "stage", "unit_ns", "wait_ns",
    )  # fmt: skip

    def __init__(self) -> None:
        self.wait_ns = self.pause_ns = 0
        self.paused_wait_ns = 0  # waits within the pause under way, which are no waits of a step
        self.backwards = self.calls = 0
        self.stage = 0  # of the step in progress: SEND, RECEIVE or both, as the first calls of it were
        self.events = 0  # waits watched since the last step
        self.unit_ns = 0  # measured cost of watching one
        self.own_ns = 0  # what the hook has cost up to the last step, backward passes up to now

    def mark(self, now: int) -> Mark:
        """All of it that a step needs, at the moment `now`."""
        return now, self.wait_ns, self.pause_ns, self.backwards
