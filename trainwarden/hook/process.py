"""The one hook of this process: its parts put together, and how it comes to life.

It lies in wait until the first collective call, backward pass or explicit mark; only then is there a file. An error
of its own is counted in the header and goes no further.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from .backward import Backward, NoHandle
from .device import Device, Events, StepEvents, accelerator_at_work, keep_for_ever
from .ends import ByHand, Ends
from .last_words import LastWords, Requests, user_frame
from .memory import Memory, checked, let_through, read_beside, who_am_i
from .pauses import Evaluation, Pauses
from .period import CallPeriod, numel, smallest_period
from .standing import PauseFile, Standing
from .steps import Steps
from .thread import Tally, TrainingThread, no_graph_task, thread_id
from .waits import Calls, Waits
from .watches import hide_all
from .watches.calls import watch_broadcast, watch_calls, watch_wait, watch_wait_tensor
from .watches.groups import watch_groups
from .watches.pausing import watch_compile, watch_data, watch_distributed_save, watch_mode, watch_save
from .watches.profiler import watch_profiler
from .watches.training import watch_backward, watch_capture, watch_optimizer, watch_replicas, watch_scaler

_PLACE = "_trainwarden_hook"  # in `sys`: one hook per process, whatever file it was loaded from


class Hook:
    """The parts of the hook; each knows only those it tells something.

    A process may load the hook twice, from this package and from a copied file, and not of the same age. Whoever comes
    second uses the first one's `Hook`: so its public methods and properties keep their names.
    """

    # Slots everywhere: without them, access takes twice as long in some processes.
    __slots__ = (
        "backward", "calls", "coming", "device", "ends", "evaluation", "last_words", "memory", "missing", "pauses",
        "requests", "standing", "steps", "tally", "thread", "waits",
    )  # fmt: skip

    def __init__(self, folder: str) -> None:
        memory = self.memory = Memory(folder)
        thread = self.thread = TrainingThread(memory, self.activate)
        tally = self.tally = Tally()
        self.pauses = Pauses(memory, thread, tally)
        self.evaluation = Evaluation(self.pauses)
        self.steps = Steps(memory, thread, tally, self.install)
        self.device = Device(memory, self.steps)
        self.standing = Standing(
            memory, self.steps, self.pauses, self.device.captures.under_way, lambda: self.requests.pipe >= 0
        )
        self.ends = Ends(thread, tally, self.steps, self.pauses, self.standing)
        self.waits = Waits(thread, tally, self.ends)
        self.calls = Calls(thread, tally, self.ends, self._settle_rank)
        self.backward = Backward(thread, tally, self.ends, self.evaluation)
        self.last_words = LastWords(thread, self.ends.by_hand)
        self.requests = Requests(memory, self.standing.look)
        self.missing = self._watches()
        self.coming = threading.Lock()  # to life

    def _watches(self) -> list[Callable[[], bool]]:
        """Which watch tells which part."""
        return [
            partial(watch_wait, self.waits),
            partial(watch_calls, self.waits, self.calls),
            partial(watch_broadcast, self.waits, self.calls),
            partial(watch_wait_tensor, self.waits),
            partial(watch_backward, self.backward),
            partial(watch_optimizer, self.ends),
            partial(watch_scaler, self.ends),
            partial(watch_replicas, self.backward),
            partial(watch_save, self.pauses),
            partial(watch_distributed_save, self.pauses),
            partial(watch_data, self.pauses),
            partial(watch_mode, self.evaluation),
            partial(watch_compile, self.pauses),
            partial(watch_capture, self.device),
            partial(watch_profiler, self.memory, self.steps),
            partial(watch_groups, self.memory, self.steps),
        ]

    def activate(self) -> bool:
        """Open the file of this rank; called by the first thing worth noting. False if that cannot be."""
        memory, thread = self.memory, self.thread
        if not self.coming.acquire(blocking=False):
            return False  # it comes to life on another thread, or in what a signal has interrupted
        try:
            if memory.live or memory.off:
                return False
            thread.owner = thread_id()
            self.open()
            self.waits.calibrate()
            self.install()
            self.last_words.arm()
            self.requests.listen()
        except Exception:
            memory.off, memory.live, thread.owner = True, False, -1
            if memory.path:  # before, it would be a name in the program's own folder
                with contextlib.suppress(OSError):
                    os.unlink(memory.path + ".hook")
            let_through()
        finally:
            self.coming.release()
        return memory.live

    def open(self) -> None:
        """Make the file alone. Whatever the system raises."""
        now = self.memory.open(self.steps.step, self.steps.micro, self.thread.phase)
        self.steps.mark = (now, 0, 0, 0)
        self.memory.live = True

    def _settle_rank(self) -> None:
        self.memory.settle_rank()
        self.requests.listen()  # the file tells only now that there are others to wait for

    def forked(self) -> None:
        """In a forked child: a child of a training process is none itself."""
        memory = self.memory
        if memory.live:
            self.last_words.disarm_faults()
            memory.live, memory.off, self.thread.owner = False, True, -1
            self.evaluation.token = None

    def install(self) -> None:
        """Put the watches in place whose modules have been imported by now, and see what device is at work."""
        for watch in list(self.missing):
            try:
                if watch():
                    self.missing.remove(watch)
            except Exception:
                let_through()
                self.missing.remove(watch)
        try:
            self.device.look()
        except Exception:
            self.memory.failed()

    @property
    def live(self) -> bool:
        """Whether there is a file."""
        return self.memory.live

    @property
    def words(self) -> Any:
        """The header of the file."""
        return self.memory.words

    @property
    def step(self) -> int:
        """Number of the step in progress."""
        return self.steps.step

    @property
    def micro(self) -> int:
        """Micro-batches of a step as declared."""
        return self.steps.micro

    @micro.setter
    def micro(self, count: int) -> None:
        self.steps.micro = count

    def marked(self, number: int | None) -> None:
        """An explicit end of an iteration."""
        if number is not None:
            self.steps.numbered = True
        self.ends.marked(number)

    def number(self, step: int) -> None:
        """The step in progress is the job's own `step`."""
        self.steps.number(step)

    def begin_pause(self, phase: int) -> tuple[int, int] | None:
        """A pause begins on the training thread, what `end_pause` needs; None elsewhere."""
        return self.pauses.begin(phase)

    def end_pause(self, token: tuple[int, int], phase: int) -> None:
        """The pause that gave `token` ended."""
        self.pauses.end(token, phase)

    def note(self, fact: dict[str, Any]) -> None:
        """Keep one rare fact and send it to the agent."""
        self.last_words.note(fact)


def current() -> Any:
    """The hook of this process, made if the environment asks for one; None if not."""
    found = vars(sys).get(_PLACE)
    if found is None:
        folder = os.environ.get("TRAINWARDEN_HOOK_DIR", "")
        if folder and os.path.isdir(folder):
            found = vars(sys).setdefault(_PLACE, Hook(os.path.abspath(folder)))
            os.register_at_fork(after_in_child=found.forked)
    return found


hide_all(
    Memory, TrainingThread, Tally, Pauses, Evaluation, Steps, ByHand, CallPeriod, Ends, Waits, Calls, Backward,
    NoHandle, LastWords, Requests, Device, Events, StepEvents, PauseFile, Standing, Hook, checked, read_beside,
    let_through, who_am_i, smallest_period, numel, user_frame, current, no_graph_task, accelerator_at_work,
    keep_for_ever,
)  # fmt: skip
