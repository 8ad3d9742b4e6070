"""What every rank of a job is doing now, by the heartbeats of its nodes. One column per rank, as in `rings`.

Heartbeats wait until somebody asks, or a rank of theirs is heard again, and are taken in together: a fleet's come one a
node and a few ranks each, too few for arrays to be worth their while.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from trainwarden.detectors.job.clocks import MAX_TIME_S
from trainwarden.records import HeartbeatRecord

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
PHASES: Final = ("start", "compute", "wait", "checkpoint", "data", "evaluation", "exit", "compile")
PHASE_CODE: Final = {phase: code for code, phase in enumerate(PHASES)}
WAIT: Final = PHASE_CODE["wait"]
EXIT: Final = PHASE_CODE["exit"]
MAX_COUNT: Final = 2**53  # larger numbers are damage
KNOWN_PAUSES: Final = tuple(PHASE_CODE[name] for name in ("checkpoint", "evaluation", "compile", "data"))
_LONG_PAUSES: Final = np.array(
    [*(phase in {"checkpoint", "evaluation", "compile"} for phase in PHASES), False]
)  # -1: unknown
_DATA: Final = PHASE_CODE["data"]
_LONG_LOAD_S: Final = 1.0  # of a data phase: after one that was as long as a pause the rank has gone on, too
_GONE: Final = frozenset("ZX")


def damaged(record: HeartbeatRecord) -> bool:
    """Whether a heartbeat contradicts itself, or holds what cannot be."""
    size = len(record.ranks)
    lanes = (record.incarnations, record.steps, record.phases, record.phase_since_s, record.calls)
    if record.time_s > MAX_TIME_S or any(len(lane) != size for lane in lanes):
        return True
    counts = (*record.steps, *record.calls)
    return size > 0 and not (min(counts) >= 0 and max(counts) < MAX_COUNT)


def node_clock_s(record: HeartbeatRecord) -> float:
    """The clock of the node that durations are taken on."""
    return record.time_s if record.monotonic_s is None else record.monotonic_s


class HeartbeatUpdate(NamedTuple):
    """What came of heartbeats that had waited.

    Attributes
    ----------
    moved : bool
        Whether a rank has moved on.
    newest_s : float
        When the newest of them was sent, by its node; minus infinity where there was none, or none was news.
    overtaken : int
        How many came after later ones of their node.
    """

    moved: bool = False
    newest_s: float = float("-inf")
    overtaken: int = 0


@dataclass(frozen=True, slots=True)
class _Beats:
    """Heartbeats of nodes that share no rank: arrays along their ranks, unknown is NaN or -1; `of_beat` tells whose."""

    columns: Ints
    of_beat: Ints
    time_s: Floats
    clock_s: Floats
    incarnation: Ints
    step: Ints
    step_end_s: Floats
    phase: Ints
    phase_since_s: Floats
    calls: Ints
    stopped: npt.NDArray[np.bool_]
    gone: npt.NDArray[np.bool_]
    cpu_s: Floats

    def only(self, wanted: npt.NDArray[np.bool_]) -> _Beats:
        """Those ranks that are `wanted` [ranks]."""
        return _Beats(*(getattr(self, name)[wanted] for name in self.__slots__))


class _Waiting:
    """Heartbeats side by side, as lists that grow."""

    def __init__(self) -> None:
        self.columns: list[int] = []
        self.sizes: list[int] = []
        self.times_s: list[float] = []
        self.clocks_s: list[float] = []
        self.incarnations: list[int] = []
        self.lanes: list[list[Any]] = [[] for _ in range(7)]

    def add(self, record: HeartbeatRecord, keep: Sequence[int] | None, columns: list[int], lives: list[int]) -> None:
        """Its entries `keep`, all where that is None."""
        size = len(record.ranks)
        lanes: Iterable[Sequence[Any]] = (
            record.steps, record.step_end_s, record.phases, record.phase_since_s, record.calls, record.states,
            record.cpu_s,
        )  # fmt: skip
        for lane, said in zip(self.lanes, lanes, strict=True):
            full = said if len(said) == size else (None,) * size
            lane.extend(full if keep is None else [full[i] for i in keep])
        self.columns += columns
        self.incarnations += lives
        self.sizes.append(len(columns))
        self.times_s.append(record.time_s)
        self.clocks_s.append(node_clock_s(record))

    def beats(self) -> _Beats:
        """All of them."""
        steps, ends_s, phases, since_s, calls, states, cpu_s = self.lanes
        of_beat = np.repeat(np.arange(len(self.sizes)), self.sizes)
        return _Beats(
            columns=np.array(self.columns, dtype=np.int64),
            of_beat=of_beat,
            time_s=np.array(self.times_s)[of_beat],
            clock_s=np.array(self.clocks_s)[of_beat],
            incarnation=np.array(self.incarnations, dtype=np.int64),
            step=np.array(steps, dtype=np.int64),
            step_end_s=np.array(ends_s, dtype=np.float64),
            phase=np.array([PHASE_CODE.get(phase, -1) for phase in phases], dtype=np.int64),
            phase_since_s=np.array(since_s, dtype=np.float64),
            calls=np.array(calls, dtype=np.int64),
            stopped=np.array([state == "T" for state in states]),
            gone=np.array([state in _GONE for state in states]),
            cpu_s=np.array(cpu_s, dtype=np.float64),
        )


class HeartbeatTable:
    """What every rank was doing when its node last said so; arrays [ranks], NaN or -1 where nothing is known.

    `clock_s` is the node's own clock at its last word, comparable within the node alone; it never steps where the node
    says `HeartbeatRecord.monotonic_s`. Durations are `still_s`, since step, calls or incarnation last changed or a long
    pause ended, and `stopped_for_s`, since the kernel has called the process stopped (NaN: it is not);
    `cpu_at_progress_s` is the CPU time at that change. `time_s` and `progress_s` are the same in wall time, as labels.
    All are as of the last `apply_pending`.
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
        self._waiting = _Waiting()
        self._held: set[int] = set()  # columns of those that wait
        self._boots: dict[int, str] = {}  # by column: two machines under one name have a clock each

    @property
    def has_data(self) -> bool:
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

    _EMPTY: Final = {"step": -1, "calls": -1, "phase": -1, "incarnation": -1, "gone": False}

    def resize(self, ranks: int) -> None:
        """Make room for `ranks` columns."""
        for name, array in list(vars(self).items()):
            if isinstance(array, np.ndarray) and array.size < ranks:
                fresh: Any = np.full(ranks, self._EMPTY.get(name, np.nan), dtype=array.dtype)
                fresh[: array.size] = array
                setattr(self, name, fresh)

    def holds(self, columns: Sequence[int]) -> bool:
        """Whether a heartbeat of one of `columns` waits: it has to be settled before the next one of theirs comes."""
        return not self._held.isdisjoint(columns)

    def apply(self, record: HeartbeatRecord, keep: Sequence[int] | None, columns: list[int], lives: list[int]) -> None:
        """Let the entries `keep` of a sound heartbeat wait, of ranks with these `columns` and present `lives`."""
        if rebooted := [column for column in columns if self._boots.get(column) != record.boot]:
            for clock in (self.clock_s, self._moved_at_s, self._stopped_at_s):
                clock[rebooted] = np.nan  # it has begun anew
            self._boots |= dict.fromkeys(rebooted, record.boot)
        self._waiting.add(record, keep, columns, lives)
        self._held.update(columns)

    def apply_pending(self) -> HeartbeatUpdate:
        """Apply all that waits."""
        if not self._held:
            return HeartbeatUpdate()
        beats, self._waiting = self._waiting.beats(), _Waiting()
        self._held.clear()
        old = beats.clock_s <= self.clock_s[beats.columns]
        overtaken = np.unique(beats.of_beat[old]).size if old.any() else 0
        if overtaken:
            beats = beats.only(~old)
        newest_s = float(beats.time_s.max(initial=-np.inf, where=beats.time_s < MAX_TIME_S))
        return HeartbeatUpdate(self._move(beats), newest_s, overtaken)

    def _move(self, beats: _Beats) -> bool:
        """Put `beats` in the place of what was known; True if a rank has moved on."""
        columns, clock_s, cpu_s, stopped = beats.columns, beats.clock_s, beats.cpu_s, beats.stopped
        moved = (
            (self.step[columns] != beats.step)
            | (self.calls[columns] != beats.calls)
            | (self.incarnation[columns] != beats.incarnation)
        )
        moved |= np.isnan(self._moved_at_s[columns])
        # Who comes back from a long pause has gone on, though its first call and step are still to come.
        moved |= _LONG_PAUSES[self.phase[columns]] & ~_LONG_PAUSES[beats.phase]
        loaded_s = self.time_s[columns] - self.phase_since_s[columns]
        moved |= (self.phase[columns] == _DATA) & (beats.phase != _DATA) & (loaded_s > _LONG_LOAD_S)
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
