"""GPUs of a whole job that stand idle together again and again: what feeds or saves for all of them is too slow.

A single GPU that idles has a cause of its own, and a few short rests are checkpoints or evaluations: neither is told.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from trainwarden.formats.verdicts import Verdict, verdict_tables
from trainwarden.recorded.job import Floats, Ints, LogTable, MetricTable

_USE: Final = ("gpu_utilization_ratio", "gpu_engine_active_ratio", "gpu_sm_active_ratio")  # the first that is there
_BUSY: Final = 0.5
_IDLE: Final = 0.1
_ALL: Final = 0.9  # of the GPUs that work at all: samples of nodes are not of one moment
LEAST_GPUS: Final = 2
_LEAST_WORK: Final = 0.1  # share of moments: GPUs that others of the node leave alone are left out
LEAST_SPELLS: Final = 5
LEAST_SPELL_S: Final = 10.0  # shorter rests lie between steps
MOST_SPELL_S: Final = 600.0  # after longer ones another run, or the same one anew, has begun
LEAST_SHARE: Final = 0.1  # of the time at work; checkpoints and evaluations take a few percent
_MOST_MOMENTS: Final = 2_000_000


class _Spell(NamedTuple):
    first: int
    last: int


def idle_together(table: MetricTable | None) -> list[LogTable]:
    """A line about the job whose GPUs are idle together again and again; none where they are not."""
    if table is None:
        return []
    grid = _grid(table)
    if grid is None:
        return []
    times_s, use, every_s = grid
    works = (use >= _BUSY).mean(axis=1) >= _LEAST_WORK
    if works.sum() < LEAST_GPUS:
        return []
    use = use[works]
    known = np.isfinite(use).sum(axis=0)
    told = known >= max(LEAST_GPUS, use.shape[0] // 2)
    idle = told & ((use <= _IDLE).sum(axis=0) >= _ALL * known)
    busy = told & ((use >= _BUSY).sum(axis=0) >= _ALL * known)
    spells = [one for one in _between(idle, busy) if LEAST_SPELL_S <= _lasts_s(one, every_s) <= MOST_SPELL_S]
    at_work = busy.sum() * every_s
    lost_s = sum(_lasts_s(one, every_s) for one in spells)
    if len(spells) < LEAST_SPELLS or lost_s < LEAST_SHARE * (at_work + lost_s):
        return []
    usual_s = float(np.median([_lasts_s(one, every_s) for one in spells]))
    words = (
        f"all {use.shape[0]} GPUs were idle together {len(spells)} times, for {usual_s:.0f} s each and "
        f"{lost_s / (at_work + lost_s):.0%} of the time: they wait for data, a checkpoint or an evaluation"
    )
    return verdict_tables("idle together", [Verdict("job", "data", words)], float(times_s[spells[0].first]))


def _grid(table: MetricTable) -> tuple[Floats, Floats, float] | None:
    """Moments ``[k]``, the use of each GPU in them ``[n, k]`` (NaN = unknown), and their distance in seconds."""
    name = next((one for one in _USE if one in table.names), None)
    gpus = [place for place, device in enumerate(table.devices) if (device or "").startswith("gpu")]
    if name is None or len(gpus) < LEAST_GPUS:
        return None
    column: Floats = table.values[:, table.names.index(name)]
    lanes = [(own := rows[np.isfinite(column[rows])], table.times_s[own])
             for _, rows in table.rows_of(np.array(gpus, np.int64))]  # fmt: skip
    lanes = [lane for lane in lanes if lane[0].size > 1]
    if len(lanes) < LEAST_GPUS:
        return None
    every_s = max(1.0, float(np.median([np.median(np.diff(times_s)) for _, times_s in lanes])))
    start_s = min(float(times_s[0]) for _, times_s in lanes)
    count = int((max(float(times_s[-1]) for _, times_s in lanes) - start_s) / every_s) + 1
    if count > _MOST_MOMENTS // len(lanes):
        return None
    use: Floats = np.full((len(lanes), count), np.nan)
    for place, (rows, times_s) in enumerate(lanes):
        moments: Ints = ((times_s - start_s) / every_s).astype(np.int64)
        use[place, moments] = column[rows]
    moments_s: Floats = start_s + every_s * np.arange(count, dtype=np.float64)
    return moments_s, use, every_s


def _between(idle: npt.NDArray[np.bool_], busy: npt.NDArray[np.bool_]) -> list[_Spell]:
    """Spells of idleness after which all were busy as before; the time before and after the work is none."""
    found = []
    begun, last = -1, -1
    was_busy = False
    for place in np.flatnonzero(idle | busy).tolist():
        if busy[place]:
            if was_busy and begun >= 0:
                found.append(_Spell(begun, last))
            begun, was_busy = -1, True
        else:
            begun, last = place if begun < 0 else begun, place
    return found


def _lasts_s(one: _Spell, every_s: float) -> float:
    return (one.last - one.first + 1) * every_s
