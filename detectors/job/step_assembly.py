"""Steps of many ranks put together: a step is closed when every rank has reported it, or waited for no longer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from trainwarden.detectors.job.beats import EXIT, PHASE_CODE, Ints
from trainwarden.detectors.job.common_mode import quiet_median
from trainwarden.detectors.job.rings import COLUMNS, StepRing
from trainwarden.detectors.job.step_numbers import MAX_SKIP, StepNumbers, widened

WARM_UP_STEPS: Final = 10  # first steps of an incarnation: allocator, autotuning, lazy initialisation
LATE_S: Final = 2.0  # a step is not waited for longer than this after a rank has ended it, by that rank's own clock
MAX_PENDING: Final = 64  # steps that are open at the same time; more means ranks that do not step together
MAX_STEP: Final = 2**53  # larger numbers are damage, not steps
MAX_EPOCHS: Final = 64  # newest epochs whose begin is remembered: more restarts than an agent's spool outlasts


@dataclass(slots=True)
class Pending:
    values: npt.NDArray[np.float32]
    ends_s: npt.NDArray[np.float64]
    seen: npt.NDArray[np.bool_]


class StepAssembly:
    """Open steps, and the ring that closed ones go into.

    Ranks need not share a clock: how late a step is, is told by the clock of each rank that has reported it.

    Parameters
    ----------
    rows : int
        Closed steps that are kept.

    Attributes
    ----------
    counts : Counter
        ``late``, ``duplicates``, ``incomplete_steps``, ``odd``.
    quiet_left : int
        So many steps more, slowness is planned.
    repaced_left : int
        So many steps more, a lasting change of pace is planned.
    """

    def __init__(self, rows: int) -> None:
        self.ring = StepRing(rows)
        self.counts: Counter[str] = Counter()
        self.quiet_left = WARM_UP_STEPS
        self.repaced_left = 0
        self.restarting = False
        self._sampled: Sequence[int] = []  # the first step of which only calls were told
        self._pending: dict[tuple[int, int], Pending] = {}
        self._closed: tuple[int, int] = (-1, -1)
        self._epoch_begin_s: dict[int, float] = {}  # the end of the first step in each epoch
        self._numbers = StepNumbers()
        self._last_end_s = np.zeros(0)
        self._begun = np.zeros(0, dtype=np.bool_)
        self._absent = np.zeros(0, dtype=np.bool_)

    @property
    def own_end_s(self) -> npt.NDArray[np.float64]:
        """Newest end of a step of each rank, by its own clock; NaN if there is none [ranks]."""
        return self._last_end_s

    def resize(self, room: int) -> None:
        """Make room for `room` columns."""
        self._numbers.resize(room)
        self._last_end_s = widened(self._last_end_s, room, np.nan)
        self._begun = widened(self._begun, room, False)
        self._absent = widened(self._absent, room, False)
        self.ring.resize(room)
        for pending in self._pending.values():
            values = np.full((len(COLUMNS), room), np.nan, dtype=np.float32)
            values[:, : pending.values.shape[1]] = pending.values
            pending.values, pending.seen = values, widened(pending.seen, room, False)
            pending.ends_s = widened(pending.ends_s, room, np.nan)

    def on_process_restart(self, column: int) -> None:
        """The rank of `column` runs in a new process: it may go back to earlier steps."""
        self._begun[column] = False
        self.quiet_left, self._sampled = WARM_UP_STEPS, []

    def feed(self, column: int, step: int, end_s: float, cell: list[float]) -> None:
        """Add one step of one rank, which its script calls `step`; `cell` as in `COLUMNS`."""
        if not 0 <= step < MAX_STEP:
            self.counts["odd"] += 1
            return
        if not self._begun[column]:
            self._begin(column, step, end_s)
        self._absent[column] = False
        before = int(self._numbers.high[column])
        number = self._numbers.of(column, step, end_s)
        if number is None:
            self.counts["duplicates"] += 1
            return
        if int(self._numbers.high[column]) < before:
            self._forget(column, number)
        key = (int(self._numbers.epoch[column]), number)
        pending = self._pending.get(key)
        if pending is None and key <= self._closed:
            late = self.ring.fill(key[0], number, column, cell)
            self.counts["late" if late else "duplicates"] += 1
            return
        if pending is None:
            room = self._numbers.epoch.size
            values = np.full((len(COLUMNS), room), np.nan, dtype=np.float32)
            pending = Pending(values, np.full(room, np.nan), np.zeros(room, dtype=np.bool_))
            self._pending[key] = pending
        if pending.seen[column]:
            self.counts["duplicates"] += 1
            return
        pending.values[:, column], pending.ends_s[column], pending.seen[column] = cell, end_s, True
        self._last_end_s[column] = np.fmax(self._last_end_s[column], end_s)

    def close(self, alive: npt.NDArray[np.bool_], everyone_known: bool, sampled: Sequence[int] = ()) -> None:
        """Move into the ring what every rank of `alive` [ranks] has reported, and what is too old to wait for.

        Of the steps `sampled` the collective calls are told; where nothing else is, they tell that steps pass.
        """
        self._count_sampled(sampled)
        size = len(alive)
        wanted = alive & ~self._absent[:size]
        keys = sorted(self._pending)
        ready = 0
        for position, key in enumerate(keys):
            pending = self._pending[key]
            whole = everyone_known and bool(pending.seen[:size][wanted].all())
            waited_s = float(np.nanmax(self._last_end_s - pending.ends_s, initial=0.0))
            late = not whole and waited_s > LATE_S + 2.0 * float(np.nanmax(pending.values[0], initial=0.0))
            if late:
                self._absent[:size] |= ~pending.seen[:size]
            if whole or late or len(keys) - position > MAX_PENDING:
                ready = position + 1
        for key in keys[:ready]:
            self._append(key, self._pending.pop(key), alive)

    # -- internals -------------------------------------------------------------------------------------------

    def _count_sampled(self, steps: Sequence[int]) -> None:
        if steps and not self.ring.steps.size and not self._pending:
            self._sampled = (self._sampled or steps)[:1]
            self.quiet_left = min(self.quiet_left, max(0, WARM_UP_STEPS - 1 - (steps[-1] - self._sampled[0])))

    def _begin(self, column: int, step: int, end_s: float) -> None:
        self._begun[column] = True
        epoch = self._epoch_of(column, step, end_s)
        self._epoch_begin_s.setdefault(epoch, end_s)
        if len(self._epoch_begin_s) > MAX_EPOCHS:
            del self._epoch_begin_s[min(self._epoch_begin_s)]
        self._numbers.begin(column, step, epoch)
        self._last_end_s[column] = np.nan

    def _epoch_of(self, column: int, step: int, end_s: float) -> int:
        """The epoch of a process of the rank of `column` whose first step is `step`.

        An agent that was cut off sends the steps of several processes when the others are epochs further. So the
        process belongs to the epoch that others began nearest to its first step, and not to the newest one.
        """
        own, high = int(self._numbers.epoch[column]), int(self._numbers.high[column])
        gone_back, is_first = step <= high, high < 0
        distance_s = {e: abs(end_s - at_s) for e, at_s in self._epoch_begin_s.items() if e > own or is_first}
        last_end_s = float(self._last_end_s[column])
        if distance_s and not gone_back and not np.isnan(last_end_s):
            distance_s[own] = abs(end_s - last_end_s)  # it may go on in its epoch as well
        if distance_s:
            return min(distance_s, key=distance_s.__getitem__)
        return own + 1 if gone_back else own

    def _forget(self, column: int, number: int) -> None:
        """Steps that are far ahead of `number`, of the rank of `column` alone, bore a number that was a mistake."""
        for key, pending in list(self._pending.items()):
            if key[1] > number + MAX_SKIP and pending.seen[column] and pending.seen.sum() == 1:
                del self._pending[key]
                self.counts["odd"] += 1

    def _append(self, key: tuple[int, int], pending: Pending, alive: npt.NDArray[np.bool_]) -> None:
        if not pending.seen[: len(alive)][alive].all():
            self.counts["incomplete_steps"] += 1
        quiet = self.quiet_left > 0 or self.restarting
        if self.restarting and self.quiet_left <= 1:
            self.restarting = False  # the job runs again, whether or not the launcher has said so
        self.quiet_left = max(0, self.quiet_left - 1)
        end_s, repaced = float(quiet_median(pending.ends_s)), self.repaced_left > 0
        self.repaced_left = max(0, self.repaced_left - 1)
        self.ring.append(key[1], key[0], end_s, quiet, pending.values, repaced=repaced)
        self._closed = max(self._closed, key)


def phase(steps: StepAssembly, alive: Ints, finished: bool, manned: bool) -> str:
    """The phase of a job, see `trainwarden.detectors.job.window.Window`.

    Parameters
    ----------
    alive : int [ranks]
        Phases of the ranks that have not ended.
    finished, manned : bool
        Whether the launcher has said that it is over; whether there are ranks: without any no start can be seen.
    """
    if steps.restarting:
        return "restart"
    if finished:
        return "ended"
    if bool((alive == EXIT).any()):
        return "exit"
    if steps.quiet_left > 0 and manned:
        return "start"
    for name in ("checkpoint", "evaluation", "compile", "data"):
        if (alive == PHASE_CODE[name]).any():
            return name
    return ""
