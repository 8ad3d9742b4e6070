"""Steps: closing one, which is a record in the ring, and what settles over the first of them.

What ends a step is decided in ``ends.py``; here it is written down.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from .layout import (
    AT_FIRST,
    AT_OFFSET_NS,
    AT_OWN_NS,
    AT_PHASE,
    AT_RECORDED,
    AT_ROLE,
    AT_SOURCE,
    AT_STEP,
    AT_STEP_END,
    AT_WORLD,
    COMPUTE,
    HEADER_BYTES,
    NCCL_AT_STEP,
    NO_SOURCE,
    RING,
    START,
    STEP_BYTES,
    STEP_WORDS,
)
from .memory import Memory
from .thread import Mark, Tally, TrainingThread, clock

_SETTLING_STEPS = 64
_MOST_SKIPPED = 1000  # a number further ahead is a mistake, unless the next one goes on from there
_RARELY = 1023  # after those, one step in so many is looked at for what came late
_pack = STEP_WORDS.pack_into


class Steps:
    """The steps of this process, one record each.

    Parameters
    ----------
    memory : Memory
        Where the records go.
    thread, tally
        The training thread, and what has been counted on it: the figures of a step are what was added since `mark`.
    install : callable
        Puts the watches in place whose modules have been imported by now; asked over the first steps.
    """

    __slots__ = (
        "control", "count", "events", "install", "label", "labelled", "last", "mark", "memory", "micro", "numbered",
        "odd", "shift", "source", "step", "tally", "thread",
    )  # fmt: skip

    def __init__(self, memory: Memory, thread: TrainingThread, tally: Tally, install: Callable[[], None]) -> None:
        self.memory = memory
        self.thread = thread
        self.tally = tally
        self.install = install
        self.mark: Mark = (0, 0, 0, 0)  # end of the step before
        self.source = NO_SOURCE  # what ends steps now
        self.count = 0  # steps recorded
        self.step = 0  # number of the step in progress
        self.numbered = False  # by the script itself
        self.label: int | None = None  # what the script calls the step in progress
        self.last = -1  # number of the step before
        self.labelled = False  # a step has had a number of the script
        self.shift = 0  # a step's number less the script's
        self.odd: int | None = None  # the script's number before, where it did not fit
        self.events: Any = None  # the device's (`Events`), once there are any
        self.micro = 0  # micro-batches of a step as declared; 0: count backward passes
        self.control: Any = [0] * (NCCL_AT_STEP + 1)  # of NCCL's plug-in; until there is one, nobody's

    def close(self, end: Mark, number: int | None = None) -> None:
        """Write the step that ended at `end`; what came after belongs to the next one."""
        now, wait_ns, pause_ns, backwards = end
        began, wait_before, pause_before, backwards_before = self.mark
        self.mark = end
        wait_ns -= wait_before
        pause_ns -= pause_before
        compute_ns = now - began - wait_ns - pause_ns
        memory = self.memory
        tally = self.tally
        label = self.label if number is None else number
        step = self.step if label is None else self._count(label)
        before = self.count
        serial = before + 1
        if serial <= _SETTLING_STEPS or not serial & 15:
            self._settle(step if label is None else label)
        _pack(
            memory.buffer, HEADER_BYTES + (before % RING) * STEP_BYTES, serial, step, now + memory.offset_ns,
            now - began, compute_ns if compute_ns > 0 else 0, wait_ns, pause_ns,
            self.micro or backwards - backwards_before, self.source, serial,
        )  # fmt: skip
        words = memory.words
        words[AT_RECORDED] = self.count = serial
        self.label, self.last = None, step
        words[AT_STEP] = self.step = step + 1
        self.control[NCCL_AT_STEP] = step + 2
        words[AT_STEP_END] = now
        words[AT_OWN_NS] = tally.own_ns = tally.own_ns + tally.events * tally.unit_ns
        tally.events = tally.stage = 0

    def _settle(self, step: int) -> None:
        """What becomes clear over the first steps (late imports, role, source), and the wall clock, which may step."""
        memory, thread, stage = self.memory, self.thread, self.tally.stage
        words = memory.words
        words[AT_OFFSET_NS] = memory.offset_ns = time.time_ns() - clock()
        if self.count < _SETTLING_STEPS or not self.count + 1 & _RARELY:
            self.install()
        words[AT_SOURCE] = self.source
        if self.numbered and not words[AT_FIRST]:
            words[AT_FIRST] = step + 1
        if stage:
            words[AT_ROLE] = 1 + stage  # first, last, middle: see ROLES
        elif not words[AT_ROLE] and words[AT_WORLD] > 1:
            words[AT_ROLE] = 1
        if thread.phase == START:
            thread.phase = COMPUTE
            words[AT_PHASE] = clock() << 3 | COMPUTE

    def _count(self, label: int) -> int:
        """The number of the step that ends and that the script calls `label`."""
        if not 0 <= label < 2**62:
            return self.step
        number, self.shift, self.odd = self._numbered(label)
        self.labelled = True
        return number

    def _numbered(self, label: int) -> tuple[int, int, int | None]:
        """Number, shift and odd label of a step that the script calls `label`.

        The script's numbers are kept as long as they rise. Where they begin again, as in each epoch, or jump ahead for
        once, steps are counted on: no two of this process have one number.
        """
        following, number, odd = self.last + 1, label + self.shift, self.odd
        if following <= number and (number < following + _MOST_SKIPPED or not self.labelled):
            return number, self.shift, None
        if self.labelled and not (odd is not None and 0 < label - odd <= _MOST_SKIPPED):
            return following, self.shift, label
        if number >= following:
            return number, self.shift, None  # the script has gone on from there
        return following, following - label, None

    def believe(self, source: int) -> None:
        """From now on `source` ends steps."""
        self.source = self.memory.words[AT_SOURCE] = source

    def number(self, step: int) -> None:
        """The step in progress is the job's own `step`."""
        if not 0 <= step < 2**62:
            return
        self.label, self.numbered = step, True
        step = self.step = self._numbered(step)[0]
        if self.memory.live:
            self.memory.words[AT_STEP] = step
            self.control[NCCL_AT_STEP] = step + 1
