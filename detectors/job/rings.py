"""Ring arrays of one job: steps by ranks, and what every rank is doing now. One column per rank, no rank objects.

Columns are given out in the order in which ranks are first seen and never move. Absent is NaN here, inside
arrays only; records never carry it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from detectors.job.clocks import MAX_TIME_S
from detectors.job.packed import pack, unpack
from trainwarden.records import HeartbeatRecord

Ints = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float32] | npt.NDArray[np.float64]
COLUMNS: Final = ("duration_s", "compute_s", "wait_s", "pause_s", "micro_batches")
PHASES: Final = ("start", "compute", "wait", "checkpoint", "data", "evaluation", "exit")
PHASE_CODE: Final = {phase: code for code, phase in enumerate(PHASES)}
WAIT: Final = PHASE_CODE["wait"]
EXIT: Final = PHASE_CODE["exit"]
MAX_COUNT: Final = 2**53  # larger numbers are damage
_KIND: Final = "step_ring"
_BY_ROW: Final = ("_steps", "_epochs", "_ends_s", "_quiet", "_repaced")
LONG_PAUSES: Final = (PHASE_CODE["checkpoint"], PHASE_CODE["evaluation"])
KNOWN_PAUSES: Final = tuple(PHASE_CODE[name] for name in ("checkpoint", "evaluation", "data"))


class StepRing:
    """The newest closed steps of a job, oldest first, as arrays [rows, ranks] without wrapping.

    Rows are appended at the end of arrays twice as long as needed and moved to the front when the end is
    reached, so that a window is a contiguous view and an append costs O(ranks) on average.

    Parameters
    ----------
    rows : int
        How many rows are kept at least.

    Examples
    --------
    >>> ring = StepRing(rows=2)
    >>> ring.widen(1)
    >>> for step in range(5):
    ...     _ = ring.append(step, 0, float(step), False, np.full((5, 1), float(step), dtype=np.float32))
    >>> ring.steps.tolist(), ring.first_seq, ring.values[0, :, 0].tolist()
    ([3, 4], 3, [3.0, 4.0])
    """

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._start = self._end = self.first_seq = 0
        self._values = np.full((len(COLUMNS), 2 * rows, 0), np.nan, dtype=np.float32)
        self._steps = np.zeros(2 * rows, dtype=np.int64)
        self._epochs = np.zeros(2 * rows, dtype=np.int64)
        self._ends_s = np.zeros(2 * rows, dtype=np.float64)
        self._quiet = np.zeros(2 * rows, dtype=np.bool_)
        self._repaced = np.zeros(2 * rows, dtype=np.bool_)

    def widen(self, ranks: int) -> None:
        """Make room for `ranks` columns; new ones are unknown in old rows."""
        have = self._values.shape[2]
        if ranks > have:
            wide = np.full((len(COLUMNS), 2 * self._rows, max(ranks, have + have // 2)), np.nan, dtype=np.float32)
            wide[:, :, :have] = self._values
            self._values = wide

    def append(
        self, step: int, epoch: int, end_s: float, quiet: bool, values: npt.NDArray[np.float32], *,
        repaced: bool = False,
    ) -> int:  # fmt: skip
        """Add one row, `values` [5, ranks]; its sequence number."""
        if self._end == 2 * self._rows:
            keep = slice(self._end - self._rows, self._end)
            for array in (getattr(self, name) for name in _BY_ROW):
                array[: self._rows] = array[keep].copy()
            self._values[:, : self._rows] = self._values[:, keep].copy()
            self._start, self._end = 0, self._rows
        row = self._end
        self._values[:, row] = np.nan
        self._values[:, row, : values.shape[1]] = values
        self._steps[row], self._epochs[row], self._ends_s[row], self._quiet[row] = step, epoch, end_s, quiet
        self._repaced[row] = repaced
        self._end += 1
        if self._end - self._start > self._rows:
            self._start += 1
            self.first_seq += 1
        return self.first_seq + self._end - self._start - 1

    def fill(self, epoch: int, step: int, column: int, cell: Sequence[float]) -> bool:
        """Fill a late `cell` into a row that is already closed; False if it is gone or not empty there."""
        rows = np.flatnonzero((self.steps == step) & (self.epochs == epoch))
        if rows.size == 0:
            return False
        row = self._start + int(rows[-1])
        if not np.isnan(self._values[0, row, column]):
            return False
        self._values[:, row, column] = cell
        return True

    def state(self) -> bytes:
        """For `restore`: the rows that are kept."""
        return pack(
            _KIND, {"first_seq": self.first_seq},
            {"values": self.values} | {name: getattr(self, name)[self._view] for name in _BY_ROW},
        )  # fmt: skip

    def restore(self, state: bytes) -> None:
        """Go on from what `state` gave."""
        plain, arrays = unpack(_KIND, state)
        fresh = StepRing(self._rows)
        fresh.widen(arrays["values"].shape[2])
        fresh.first_seq, fresh._end = int(plain["first_seq"]), arrays["values"].shape[1]
        fresh._values[:, : fresh._end] = arrays["values"]
        for name in _BY_ROW:
            getattr(fresh, name)[: fresh._end] = arrays[name]
        vars(self).update(vars(fresh))

    @property
    def _view(self) -> slice:
        return slice(self._start, self._end)

    @property
    def steps(self) -> npt.NDArray[np.int64]:
        """Step numbers [rows]."""
        return self._steps[self._view]

    @property
    def epochs(self) -> npt.NDArray[np.int64]:
        """How often the job had gone back to an earlier step when the row was made [rows]."""
        return self._epochs[self._view]

    @property
    def ends_s(self) -> npt.NDArray[np.float64]:
        """When the last rank ended the step [rows]."""
        return self._ends_s[self._view]

    @property
    def quiet(self) -> npt.NDArray[np.bool_]:
        """Rows in which slowness is planned: warm-up, after a restart, a new micro-batch plan [rows]."""
        return self._quiet[self._view]

    @property
    def repaced(self) -> npt.NDArray[np.bool_]:
        """Rows after which another pace is planned: a new micro-batch plan, a program started anew [rows]."""
        return self._repaced[self._view]

    @property
    def values(self) -> npt.NDArray[np.float32]:
        """`COLUMNS` by rows by ranks."""
        return self._values[:, self._view]


@dataclass(frozen=True, slots=True)
class NodeBeats:
    """What the ranks of one node were doing at `time_s`; all arrays run along their `columns`, unknown is NaN or -1."""

    columns: Ints
    time_s: float
    clock_s: float
    incarnation: Ints
    step: Ints
    step_end_s: npt.NDArray[np.float64]
    phase: Ints
    phase_since_s: npt.NDArray[np.float64]
    calls: Ints
    stopped: npt.NDArray[np.bool_]
    gone: npt.NDArray[np.bool_]
    cpu_s: npt.NDArray[np.float64]

    @classmethod
    def of(cls, record: HeartbeatRecord, keep: Sequence[int], columns: Ints, incarnation: Ints) -> Self:
        """What `record` says of its entries `keep`, whose ranks have these `columns` and present `incarnation`."""
        size = len(record.ranks)
        states = record.states if len(record.states) == size else ("",) * size
        unknown = (None,) * size
        ends, cpu = (lane if len(lane) == size else unknown for lane in (record.step_end_s, record.cpu_s))
        return cls(
            columns=columns,
            time_s=record.time_s,
            clock_s=node_clock_s(record),
            incarnation=incarnation,
            step=np.array([record.steps[i] for i in keep], dtype=np.int64),
            step_end_s=np.array([ends[i] for i in keep], dtype=np.float64),
            phase=np.array([PHASE_CODE.get(record.phases[i], -1) for i in keep], dtype=np.int64),
            phase_since_s=np.array([record.phase_since_s[i] for i in keep], dtype=np.float64),
            calls=np.array([record.calls[i] for i in keep], dtype=np.int64),
            stopped=np.array([states[i] == "T" for i in keep]),
            gone=np.array([states[i] in {"Z", "X"} for i in keep]),
            cpu_s=np.array([cpu[i] for i in keep], dtype=np.float64),
        )


def damaged(record: HeartbeatRecord) -> bool:
    """Whether a heartbeat contradicts itself, or holds what cannot be."""
    size = len(record.ranks)
    lanes = (record.incarnations, record.steps, record.phases, record.phase_since_s, record.calls)
    impossible = any(not 0 <= count < MAX_COUNT for count in (*record.steps, *record.calls))
    return impossible or record.time_s > MAX_TIME_S or any(len(lane) != size for lane in lanes)


def node_clock_s(record: HeartbeatRecord) -> float:
    """The clock of the node that durations are taken on."""
    return record.time_s if record.monotonic_s is None else record.monotonic_s


class HeartbeatBoard:
    """What every rank was doing when its node last said so; arrays [ranks], NaN or -1 where nothing is known.

    `clock_s` is the node's own clock at its last word, comparable within the node alone; it never steps where the node
    says `HeartbeatRecord.monotonic_s`. Durations are `still_s`, since step, calls or incarnation last changed or a long
    pause ended, and `stopped_for_s`, since the kernel has called the process stopped (NaN: it is not);
    `cpu_at_progress_s` is the CPU time at that change. `time_s` and `progress_s` are the same in wall time, as labels.
    """

    def __init__(self) -> None:
        self.time_s = np.zeros(0)
        self.clock_s = np.zeros(0)
        self.step = np.zeros(0, dtype=np.int64)
        self.step_end_s = np.zeros(0)
        self.phase = np.zeros(0, dtype=np.int64)
        self.phase_since_s = np.zeros(0)
        self.calls = np.zeros(0, dtype=np.int64)
        self.cpu_s = np.zeros(0)
        self._moved_at_s = np.zeros(0)
        self.cpu_at_progress_s = np.zeros(0)
        self._stopped_at_s = np.zeros(0)
        self.cpu_at_stop_s = np.zeros(0)
        self.incarnation = np.zeros(0, dtype=np.int64)
        self.gone = np.zeros(0, dtype=np.bool_)

    @property
    def heard(self) -> bool:
        """True once any rank has been heard of."""
        return bool(np.isfinite(self.clock_s).any())

    @property
    def still_s(self) -> npt.NDArray[np.float64]:
        """How long each rank had not moved at its node's last word [ranks]."""
        return self.clock_s - self._moved_at_s

    @property
    def stopped_for_s(self) -> npt.NDArray[np.float64]:
        """How long each rank had been stopped at its node's last word [ranks]."""
        return self.clock_s - self._stopped_at_s

    @property
    def progress_s(self) -> npt.NDArray[np.float64]:
        """When each rank last moved, in its node's present wall time [ranks]."""
        return self.time_s - self.still_s

    def reboot(self, columns: Ints) -> None:
        """The clock of the node of `columns` has begun anew."""
        for clock in (self.clock_s, self._moved_at_s, self._stopped_at_s):
            clock[columns] = np.nan

    _EMPTY: Final = {"step": -1, "calls": -1, "phase": -1, "incarnation": -1, "gone": False}

    def widen(self, ranks: int) -> None:
        """Make room for `ranks` columns."""
        for name, array in list(vars(self).items()):
            if array.size < ranks:
                fresh: Any = np.full(ranks, self._EMPTY.get(name, np.nan), dtype=array.dtype)
                fresh[: array.size] = array
                setattr(self, name, fresh)

    def feed(self, beats: NodeBeats) -> bool:
        """Take in one node's heartbeat; True if a rank of it has moved on."""
        columns, clock_s, cpu_s, stopped = beats.columns, beats.clock_s, beats.cpu_s, beats.stopped
        moved = (
            (self.step[columns] != beats.step)
            | (self.calls[columns] != beats.calls)
            | (self.incarnation[columns] != beats.incarnation)
        )
        moved |= np.isnan(self._moved_at_s[columns])
        # Who comes back from a long pause has gone on, though its first call and step are still to come.
        moved |= np.isin(self.phase[columns], LONG_PAUSES) & ~np.isin(beats.phase, LONG_PAUSES)
        self._moved_at_s[columns] = np.where(moved, clock_s, self._moved_at_s[columns])
        self.cpu_at_progress_s[columns] = np.where(moved, cpu_s, self.cpu_at_progress_s[columns])
        begun = stopped & np.isnan(self._stopped_at_s[columns])
        self.cpu_at_stop_s[columns] = np.where(begun, cpu_s, self.cpu_at_stop_s[columns])
        since = np.where(begun, clock_s, self._stopped_at_s[columns])
        self._stopped_at_s[columns] = np.where(stopped, since, np.nan)
        self.time_s[columns], self.clock_s[columns] = beats.time_s, clock_s
        self.incarnation[columns] = beats.incarnation
        self.step[columns], self.step_end_s[columns] = beats.step, beats.step_end_s
        self.phase[columns], self.phase_since_s[columns] = beats.phase, beats.phase_since_s
        self.calls[columns], self.cpu_s[columns], self.gone[columns] = beats.calls, cpu_s, beats.gone
        return bool(moved.any())
