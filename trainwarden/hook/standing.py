"""Standing still between two steps, as the launcher asks by ``pause.json``: loops that take part, and all others.

A loop with `TrainingShare` agrees with the other ranks. Any other is held by the hook once the step that the request
names is over. There no rank waits for another: what the others need for that step, each has sent. The launcher picks
a step that is ahead of all ranks, and has the file read by a byte in ``.ask``, on the thread that sleeps there: the
training thread touches no file, and goes on in time whatever the disk does.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from .layout import ACCELERATORS, AT_ACCELERATOR, AT_STANDING, EVALUATION
from .memory import Memory, let_through, read_beside
from .pauses import Pauses
from .steps import Steps
from .thread import clock

_LONGEST_PAUSE_S = 1500.0  # gloo, and detection, take half an hour of standing still for a hang
_LONGEST_HOLD_S = 300.0  # of a loop that has not been asked: no file can hold it longer
_NAP_S = 0.05
_MOST_PAUSE_BYTES = 65_536
_OFFERED_AFTER = 3  # steps, from which their pace can be told
_NOT_OFFERED_AFTER = 64  # what settles a rank is over by then (`Steps`)


class PauseRequest(NamedTuple):
    """What the file asks: `step` is the last one to be finished, None where loops agree themselves."""

    number: int
    until_s: float
    step: int | None


class PauseFile:
    """Requests to stand still, in ``pause.json`` of the run folder: ``{"number": 1, "until_s": 1.8e9, "step": 40}``.

    Numbers rise; `until_s` is the wall time at which the job goes on in any case, 25 minutes after it stopped at the
    latest. Before that it goes on once the file is gone or asks for something else.

    Parameters
    ----------
    path : str
        Empty: nobody asks.
    wall_s, monotonic_s, sleep : callable
    """

    def __init__(
        self,
        path: str,
        wall_s: Callable[[], float] = time.time,
        monotonic_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.path = path
        self.wall_s, self.monotonic_s, self.sleep = wall_s, monotonic_s, sleep
        self.over = 0  # the newest that has been obeyed

    def newest(self) -> int:
        """Number of the request that stands; 0 if there is none, or it is over."""
        found = self.read()
        return found.number if found is not None and found.until_s > self.wall_s() else 0

    def obey(self, number: int) -> None:
        """Stand still for request `number`; one that has been obeyed is over."""
        if number <= self.over:
            return
        self.over = number
        found = self.read()
        until_s = 0.0 if found is None else found.until_s
        end_s = self.monotonic_s() + min(until_s - self.wall_s(), _LONGEST_PAUSE_S)
        while found is not None and found.number == number and self.monotonic_s() < end_s:
            self.sleep(_NAP_S)
            found = self.read()

    def read(self) -> PauseRequest | None:
        """What is asked; None if nothing is that can be understood."""
        try:
            found = json.loads(read_beside(self.path, _MOST_PAUSE_BYTES))
            number, until_s, step = found["number"], found["until_s"], found.get("step")
            fits = type(number) is int and 0 < number < 2**62 and type(until_s) in (int, float)
            if fits and (step is None or (type(step) is int and 0 <= step < 2**62)):
                return PauseRequest(number, float(until_s), step)
        except Exception:
            let_through()  # there is mostly none
        return None


_Hold = tuple[int, int, int]  # number, step, and the moment (ns) at which it is over
_UNOFFERED: _Hold = (0, 0, 0)


class Standing:
    """Holds the training thread after an agreed step.

    Parameters
    ----------
    capturing : callable
        Whether a graph is captured, which no wait for the device may come into.
    listens : callable
        Whether requests are heard.
    """

    __slots__ = (
        "asked", "capturing", "file", "listens", "loops", "memory", "over", "pauses", "sleep", "steps",
    )  # fmt: skip

    def __init__(
        self, memory: Memory, steps: Steps, pauses: Pauses, capturing: Callable[[], bool], listens: Callable[[], bool]
    ) -> None:
        self.memory, self.steps, self.pauses = memory, steps, pauses
        self.capturing, self.listens = capturing, listens
        folder = os.environ.get("TRAINWARDEN_RUN_DIR") or os.path.dirname(memory.folder)
        self.file = PauseFile(os.path.join(folder, "pause.json"))
        self.sleep = time.sleep
        self.asked: _Hold | None = _UNOFFERED  # what the training thread is to do once a step is over; mostly nothing
        self.over = 0  # the newest request that is done with
        self.loops = False  # the loop stands still by itself

    def leave_to_loop(self) -> None:
        """The loop takes part in pauses by itself."""
        self.loops, self.asked = True, None

    def look(self) -> bool:
        """Read what is asked, on the thread of `Requests`; whether to look again soon."""
        found, asked = self.file.read(), self.asked
        if found is None or found.step is None or found.number <= self.over or self.loops:
            return self._let_go(asked)
        if asked is not None and asked[0] == found.number:
            return clock() < asked[2] or self._let_go(asked)
        left_s = min(found.until_s - self.file.wall_s(), _LONGEST_PAUSE_S)
        if not left_s > 0.0:  # too late, or no number
            self.over = found.number
            return self._let_go(asked)
        self.asked = (found.number, found.step, clock() + int(left_s * 1e9))
        return True

    def _let_go(self, asked: _Hold | None) -> bool:
        if asked is not None and asked is not _UNOFFERED:
            self.asked = None
        return False

    def step_over(self) -> None:
        """A step is over on the training thread, while `asked` is not None."""
        try:
            asked = self.asked
            if asked is _UNOFFERED:
                self._offer()
            elif asked is not None and (self.steps.last >= asked[1] or clock() >= asked[2]):
                try:
                    if self.steps.last == asked[1]:
                        self._hold(asked)
                finally:
                    self.over = max(self.over, asked[0])
                    self._let_go(self.asked)
        except Exception:
            self.memory.failed()

    def _offer(self) -> None:
        """Say that the launcher may ask, unless it would ask in vain."""
        count, words = self.steps.count, self.memory.words
        known = ACCELERATORS[words[AT_ACCELERATOR]] in ("", "cuda")
        if self.loops or not known or count >= _NOT_OFFERED_AFTER:
            self.asked = None
        elif count >= _OFFERED_AFTER and self.listens():
            words[AT_STANDING], self.asked = 1, None

    def _hold(self, asked: _Hold) -> None:
        if self.capturing():
            return
        token = self.pauses.begin(EVALUATION)
        if token is None:
            return
        words = self.memory.words
        try:
            _finish_device()
            words[AT_STANDING] = 1 + asked[0]
            end = min(asked[2], clock() + int(_LONGEST_HOLD_S * 1e9))
            while self.asked is asked and clock() < end:
                self.sleep(_NAP_S)
        finally:
            words[AT_STANDING] = 1
            self.pauses.end(token, EVALUATION)


def _finish_device() -> None:
    """Wait until the GPU has done what this rank has given it, or it would be measured beside that."""
    cuda: Any = sys.modules.get("torch.cuda")
    if cuda is not None and cuda.is_initialized():
        cuda.synchronize()
