"""Calls of one rank put into its steps, and told when no more of a step will come."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from typing import Final, NamedTuple

from trainwarden import hook
from trainwarden.collectors.nccl_inspector.growing_file import GrowingFile
from trainwarden.collectors.nccl_inspector.lines import Call, call_of
from trainwarden.protocols import JsonObject

SETTLE_S: Final = 2.0  # a device may be so far behind its host, and a dump take so long
MAX_KEPT: Final = 100_000  # calls that wait for their step or for its end: ten of a job with thousands a step
_AHEAD_S: Final = 60.0  # a time of the wall clock further ahead than this is damage


class Kept(NamedTuple):
    """A call, and where its line begins."""

    at: int
    call: Call


class StepTimes:
    """When the newest steps of a rank began and ended, by the wall clock of its node."""

    def __init__(self) -> None:
        self._read = 0
        self._ends: list[float] = []
        self._begins: list[float] = []
        self._steps: list[int] = []

    def look(self, path: str, header: hook.Header) -> None:
        """Read on in the hook's file."""
        if header.recorded <= self._read:
            return
        for step in hook.read_steps(path, self._read, header) or []:
            self._read = step.serial
            if not self._ends or step.end_s > self._ends[-1]:  # a clock that was set back is passed over
                self._ends.append(step.end_s)
                self._begins.append(step.end_s - step.duration_s)
                self._steps.append(step.step)
        for lane in (self._ends, self._begins, self._steps):
            del lane[: -hook.RING]

    @property
    def last_end_s(self) -> float:
        """When the newest known step ended; minus infinity if none has."""
        return self._ends[-1] if self._ends else float("-inf")

    def at(self, time_s: float) -> tuple[int, float] | None:
        """The step in which `time_s` lies, and when it was over; None if it lies in none that is known."""
        place = bisect_left(self._ends, time_s)
        if place == len(self._ends) or time_s < self._begins[place]:
            return None
        return self._steps[place], self._ends[place] + 2 * (self._ends[place] - self._begins[place])


class RankCalls:
    """What the inspector has written of one rank.

    Parameters
    ----------
    file : GrowingFile
    every_steps : int
        Calls of steps whose number this divides are told.

    Attributes
    ----------
    junk, untimed : int
        Lines that were none of the inspector's, and calls without the time at which they were asked for.
    """

    def __init__(self, file: GrowingFile, every_steps: int) -> None:
        self.file = file
        self.junk = 0
        self.untimed = 0
        self._every = every_steps
        self._times = StepTimes()
        self._waiting: deque[Kept] = deque()  # their step is not over
        self._held: dict[int, list[Kept]] = {}  # by step: more of it may come
        self._due_s: dict[int, float] = {}
        self._told = -1  # newest step that was told
        self._dumped_s = float("-inf")
        self._lost = 0

    def position(self) -> JsonObject:
        """How far this one is told."""
        kept = [one.at for one in self._waiting] + [one.at for held in self._held.values() for one in held]
        return {**self.file.position(min(kept, default=None)), "told": self._told}

    def restore(self, position: JsonObject) -> None:
        """Go on from `position`."""
        self.file.restore(position)
        self._told = int(position.get("told", -1))

    def read(self, path: str, header: hook.Header, now_s: float, *, gone: bool) -> tuple[list[tuple[int, Call]], int]:
        """Calls of steps of which no more will come, with their steps, and how many calls were lost.

        Of one dump the communicators are written one after the other: a step is over when a line was written so long
        after it that a dump between must have held all of it, and that line was read a look ago.

        Raises
        ------
        OSError
            If the file cannot be read.
        """
        before_s = self._dumped_s
        self._times.look(path, header)
        lines = self.file.lines()
        for line in lines:
            self._read(line.at, line.text, now_s)
        self._sort()
        ended = gone and not lines
        told = []
        for step in sorted(self._held):
            if ended or before_s >= self._due_s[step] + SETTLE_S:
                told += [(step, one.call) for one in self._held.pop(step)]
                del self._due_s[step]
                self._told = max(self._told, step)
        lost, self._lost = self._lost, 0
        return told, lost

    def _read(self, at: int, text: bytes, now_s: float) -> None:
        said = call_of(text)
        if said is None:
            self.junk += 1
            return
        if said.dumped_s <= now_s + _AHEAD_S:
            self._dumped_s = max(self._dumped_s, said.dumped_s)
        if not isinstance(said, Call):
            self.untimed += not said.verbose
        elif said.began_s <= now_s + _AHEAD_S:
            self._waiting.append(Kept(at, said))

    def _sort(self) -> None:
        """Put each call into its step once that is over."""
        later: deque[Kept] = deque()
        kept = sum(map(len, self._held.values()))
        for one in self._waiting:
            if one.call.began_s > self._times.last_end_s:
                later.append(one)
                continue
            found = self._times.at(one.call.began_s)
            if found is None or found[0] % self._every:
                continue
            step, self._due_s[found[0]] = found
            if step <= self._told or kept >= MAX_KEPT:
                self._lost += 1
                continue
            self._held.setdefault(step, []).append(one)
            kept += 1
        while len(later) > MAX_KEPT:
            later.popleft()
            self._lost += 1
        self._due_s = {step: due_s for step, due_s in self._due_s.items() if step in self._held}
        self._waiting = later
