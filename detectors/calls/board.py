"""Collective calls of one job as they come in: sampled steps that are still told of, and the counts of all ranks."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from trainwarden.detectors.calls.counts import MAX_COUNT, MAX_TIME_S, Counts, CountTable
from trainwarden.detectors.calls.exchanges import with_all_to_alls
from trainwarden.detectors.calls.functions import FUNCTIONS, RECV, SEND, code_of
from trainwarden.detectors.calls.joined import Calls, JoinedStep, join
from trainwarden.detectors.calls.links import StepTraffic
from trainwarden.records import CollectivesRecord

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
LATE_S: Final = 5.0  # a step is not waited for longer than this after a rank has told it, by that rank's clock
MAX_OPEN: Final = 64  # steps that are told at the same time, where every one is sampled for a while; more is damage
MAX_ROWS: Final = 6_000_000  # of open steps: 16,384 ranks with 360 calls each
MAX_DEVICE_S: Final = 1e6  # longer kernels are damage
KEPT_STEPS: Final = 5  # of whose loads a median is taken: two odd ones do not matter
_MIX: Final = np.int64(0x9E3779B97F4A7C15 - (1 << 64))  # 2^64 / golden ratio, odd (Knuth, TAOCP 3, 6.4)
_COMM, _FUNCTION, _SEQ, _BYTES, _PEER = range(5)
Chunk = tuple[Ints, Floats]
"""Calls of one rank: `_COMM` to `_PEER` [5, n], and how long their kernels ran [n]."""


class CallAssembler:
    """Takes in `CollectivesRecord`s; closed steps come out joined, each once.

    A step is closed when every rank that tells calls has told it and said something newer, or waited for no longer.

    Attributes
    ----------
    counts : Counter
        ``late`` and ``duplicates`` (calls), ``odd`` (records that contradict themselves), ``lost`` (calls that were
        overwritten on their node before they were read).
    carried : list of Carried
        The newest joined steps of the processes that run.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.carried: list[StepTraffic] = []
        self._table = CountTable()
        self._open: dict[int, dict[int, list[Chunk]]] = {}
        self._told_at: dict[int, Floats] = {}  # by open step: when each rank last told of it [columns]
        self._rows = 0
        self._closed = -1
        self._newest_s = np.zeros(0)
        self._silent_s = np.zeros(0)
        self._tells = np.zeros(0, dtype=np.bool_)
        self._begun = np.full((3, 0), np.nan)  # of the step closed last: its number, when each rank began it, of now

    @property
    def has_data(self) -> bool:
        """True once any rank has told of its calls."""
        return bool(np.isfinite(self._newest_s).any())

    def resize(self, room: int) -> None:
        """Make room for `room` columns."""
        more = room - self._newest_s.size
        if more <= 0:
            return
        self._newest_s = np.append(self._newest_s, np.full(more, np.nan))
        self._silent_s = np.append(self._silent_s, np.full(more, np.nan))
        self._tells = np.append(self._tells, np.zeros(more, dtype=np.bool_))
        self._begun = np.hstack([self._begun, np.full((3, more), np.nan)])
        for step, told_s in self._told_at.items():
            self._told_at[step] = np.append(told_s, np.full(more, np.nan))

    def on_process_restart(self, column: int) -> None:
        """The rank of `column` runs in a new process: steps may come again."""
        generation = self._table.generation
        self._table.on_process_restart(column)
        self._newest_s[column], self._tells[column] = np.nan, False
        self._begun[:, column] = np.nan
        self._closed, self.carried = -1, []
        for step in list(self._open):
            if self._table.generation != generation:
                self._drop(step)
            elif self._open[step].pop(column, None) is not None:
                self._told_at[step][column] = np.nan

    def passed(self, elapsed_s: float) -> None:
        """`elapsed_s` of watched time have passed."""
        self._silent_s += elapsed_s

    def feed(self, record: CollectivesRecord, column: int) -> bool:
        """Apply one rank's word; False if it is damaged or was taken in before."""
        if not 0.0 <= record.time_s < MAX_TIME_S:
            self.counts["odd"] += 1
            return False
        if record.time_s < self._newest_s[column]:
            self.counts["late"] += max(1, len(record.seqs))
            return False
        if not self._table.has_room(len(record.comms)):  # those that have come and gone are forgotten
            self._table.reset()
            self.carried = []
            for step in list(self._open):
                self._drop(step)
        codes = self._table.feed(record, column)
        self.counts["odd"], self._table.odd = self.counts["odd"] + self._table.odd, 0
        self._newest_s[column], self._silent_s[column] = record.time_s, 0.0
        if codes is None:
            return False
        self.counts["lost"] += max(0, min(record.lost, MAX_COUNT))
        if record.seqs:
            self._feed_calls(record, column, codes)
        return True

    def close(self, live: npt.NDArray[np.bool_], everything: bool) -> tuple[JoinedStep, ...]:
        """Join what every rank of `live` [ranks] has told, what is too old to wait for, and if asked all the rest."""
        size, out = live.size, []
        for step in sorted(self._open):
            told_s, newest_s = self._told_at[step][:size], self._newest_s[:size]
            waited_for = live & self._tells[:size]
            whole = bool((newest_s > told_s)[waited_for].all())
            late = not whole and float(np.nanmax(newest_s - told_s, initial=0.0)) > LATE_S
            full = len(self._open) > MAX_OPEN or self._rows > MAX_ROWS
            if not (whole or late or full or everything):
                break
            if late:
                self._tells[:size] &= np.isfinite(told_s) | ~live
            out.append(self._join(step, size))
            if 2 * np.isfinite(told_s).sum() > np.isfinite(newest_s[live]).sum():  # else one damaged number may be all
                self._closed = max(self._closed, step)
        return tuple(out)

    def columns_of_window(self) -> dict[str, Any]:
        """What a window has of it: the counts of all ranks now, and the newest steps that were joined."""
        counts = self.view() if self.has_data else None
        return {"counts": counts, "carried": tuple(self.carried)}

    def view(self) -> Counts:
        """The counts of all ranks now."""
        return self._table.view(self._silent_s)

    # -- internals -------------------------------------------------------------------------------------------

    def _feed_calls(self, record: CollectivesRecord, column: int, codes: Ints) -> None:
        lanes = (record.of, record.functions, record.steps, record.call_bytes)
        size = len(record.seqs)
        if any(len(lane) != size for lane in lanes) or any(
            len(lane) not in {0, size} for lane in (record.device_s, record.peers, record.enqueued_s)
        ):
            self.counts["odd"] += 1
            return
        table = np.array((record.of, record.seqs, record.call_bytes, record.steps), dtype=np.float64)
        sane = ((table >= 0) & (table < MAX_COUNT)).all(axis=0) & (table[0] < codes.size)
        self.counts["odd"] += int(size - sane.sum())
        if not sane.any():
            return
        of, seqs, call_bytes, steps = (row[sane].astype(np.int64) for row in table)
        function = np.array([code_of(name) for name in record.functions], dtype=np.int64)[sane]
        peers = np.array([-1 if peer is None else peer for peer in record.peers or (None,) * size], dtype=np.float64)
        device_s = np.array(record.device_s or (None,) * size, dtype=np.float64)[sane]
        device_s[~((device_s >= 0.0) & (device_s < MAX_DEVICE_S))] = np.nan
        rows = np.stack((codes[of], function, seqs, call_bytes, np.clip(peers[sane], -1, 65_535).astype(np.int64)))
        paired = (rows[_FUNCTION] == SEND) | (rows[_FUNCTION] == RECV)
        if paired.any():
            self._table.carries_pairs(rows[_COMM, paired])
        for step in sorted(set(steps.tolist())):
            own = steps == step
            self._add(step, column, (rows[:, own], device_s[own]), record.time_s)
        self._tells[column] = True
        if record.enqueued_s:
            first = sane & (np.array(record.steps) == steps[0])
            begun_s = np.array(record.enqueued_s, dtype=np.float64)[first]
            self._begins(column, int(steps[0]), float(np.nanmin(begun_s, initial=np.inf)))

    def _begins(self, column: int, step: int, at_s: float) -> None:
        """The rank enqueued the first call of `step` at a time of its own clock: tells how long steps take."""
        before, began_s, _ = self._begun[:, column]
        if not np.isfinite(at_s) or step == before:
            return
        apart = (at_s - began_s) / (step - before) if step > before else np.nan
        self._begun[:, column] = step, at_s, apart if apart > 0.0 else np.nan

    def _add(self, step: int, column: int, chunk: Chunk, time_s: float) -> None:
        rows, device_s = chunk
        if step <= self._closed:
            self.counts["late"] += device_s.size
            return
        if step not in self._open:
            self._open[step], self._told_at[step] = {}, np.full(self._newest_s.size, np.nan)
        chunks = self._open[step].setdefault(column, [])
        keys = _keys(rows)
        _, first = np.unique(keys, return_index=True)
        new = np.zeros(keys.size, dtype=np.bool_)
        new[first] = True
        if chunks:
            new &= ~np.isin(keys, np.concatenate([_keys(one) for one, _ in chunks]))
        self.counts["duplicates"] += int(keys.size - new.sum())
        if self._rows > MAX_ROWS:
            self.counts["odd"] += int(new.sum())
        elif new.any():
            chunks.append((rows[:, new], device_s[new]))
            self._rows += int(new.sum())
        self._told_at[step][column] = time_s

    def _drop(self, step: int) -> dict[int, list[Chunk]]:
        told = self._open.pop(step)
        self._told_at.pop(step)
        self._rows -= sum(device_s.size for chunks in told.values() for _, device_s in chunks)
        return told

    def _join(self, step: int, ranks: int) -> JoinedStep:
        time_s = float(np.nanmax(self._told_at[step], initial=0.0))
        told = self._drop(step)
        chunks = [chunk for own in told.values() for chunk in own]
        column = np.repeat(
            np.array(list(told), dtype=np.int64),
            [sum(device_s.size for _, device_s in own) for own in told.values()],
        )
        empty: list[Any] = [np.zeros((5, 0), dtype=np.int64)]
        rows = np.concatenate([*empty, *(one for one, _ in chunks)], axis=1)
        device_s = np.concatenate([np.zeros(0), *(own for _, own in chunks)])
        paired = rows[_PEER] >= 0
        if paired.any():
            rows[_PEER, paired] = self._table.column_of(rows[_COMM, paired], rows[_PEER, paired])
        calls = Calls(column, rows[_COMM], rows[_FUNCTION], rows[_SEQ], rows[_BYTES], device_s, rows[_PEER])
        calls, among_all = with_all_to_alls(calls, self._table.sizes.size)
        found = join(calls, self._table.sizes, self._table.trusted, ranks, at=(step, time_s))
        apart = self._begun[2, :ranks]
        known = apart[np.isfinite(apart)]
        period_s = float(np.median(known)) if known.size else float("nan")
        self.carried = [*self.carried[1 - KEPT_STEPS :], StepTraffic(step, period_s, found.kernel_s, found.loads)]
        return replace(found, period_s=period_s, among_all=among_all)


def _keys(rows: Ints) -> Ints:
    """What tells calls of one rank apart: sends and receives are counted for each peer."""
    keys = (rows[_COMM] * FUNCTIONS + rows[_FUNCTION]) * MAX_COUNT + rows[_SEQ]
    # The numbers fill all bits but one: a peer is mixed in, so that equal keys of unequal calls are next to impossible.
    return np.asarray(keys ^ (rows[_PEER] + 1) * _MIX)
