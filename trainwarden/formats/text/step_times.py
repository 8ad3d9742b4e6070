"""Step times that trainers print: a table of iterations of the whole job, made of its logs."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from trainwarden.formats.text.trainers import COUNTED, StepLine, step_line
from trainwarden.recorded.job import Floats, Ints, IterationTable, LogTable
from trainwarden.recorded.logs import is_epoch

FEWEST: Final = 20  # steps: of fewer no level is known
ROUNDED_S: Final = 10.0  # stamps of whole seconds are so far apart at least that rounding is a tenth of it
MOST_S: Final = 86_400.0
_MOST_MORE: Final = 2  # lines than steps, or fewer, where each step has one
_MOST_APART: Final = 10_000  # steps between two lines
BASIS: Final = "log"


class _Rows:
    """Steps, what their lines say and the lines' stamps, NaN for what is not said: one number a cell, logs are long."""

    def __init__(self) -> None:
        self.step, self.place = array("q"), array("q")
        self.duration_s, self.rate, self.stamp_s = array("d"), array("d"), array("d")

    def __len__(self) -> int:
        return len(self.step)

    def add(self, step: int, said: StepLine, stamp_s: float, place: int) -> None:
        """A further step, told in the line at `place`."""
        self.step.append(step)
        self.place.append(place)
        self.duration_s.append(_or_nan(said.duration_s))
        self.rate.append(_or_nan(said.rate))
        self.stamp_s.append(stamp_s)

    def go_on(self, said: StepLine) -> None:
        """What a further line says of the last step, if how long it took was not said."""
        if math.isnan(self.duration_s[-1]):
            self.duration_s[-1], self.rate[-1] = _or_nan(said.duration_s), _or_nan(said.rate)


def steps_of(logs: Sequence[LogTable]) -> IterationTable | None:
    """The steps of the log that tells most of them; None where fewer than `FEWEST` have a time.

    A line's own time counts, else the rate of a run whose steps are all of one size, else the distance of the stamps.
    What every rank prints counts once. A step below the last one begins another life of the job.
    """
    best = _Rows()
    for log in logs:
        for rows in _by_trainer(log).values():
            if len(rows) > len(best):
                best = rows
    found = [_timed(best, np.array(life)) for life in _lives(best.step)]
    lives = [(number, life) for number, life in enumerate(found) if life is not None]
    if sum(life[0].size for _, life in lives) < FEWEST:
        return None
    step = np.concatenate([life[0] for _, life in lives])
    duration_s = np.concatenate([life[1] for _, life in lives])
    steps = np.concatenate([life[2] for _, life in lives])
    stamps_s = np.concatenate([life[3] for _, life in lives])
    timed = bool(np.isfinite(stamps_s).all())
    end_s = np.maximum.accumulate(stamps_s) if timed else np.cumsum(duration_s * steps)
    unknown = np.full(step.size, np.nan)
    return IterationTable(
        rank=np.zeros(step.size, np.int64), ranks=(None,), nodes=(None,), step=step, end_s=end_s, duration_s=duration_s,
        compute_s=unknown, wait_s=unknown, pause_s=unknown, micro_batches=unknown, steps=steps, timed=timed,
        incarnation=tuple(str(number) for number, life in lives for _ in range(life[0].size)),
        basis=(BASIS,) * step.size,
    )  # fmt: skip


def with_step_times(log: LogTable) -> LogTable:
    """`log` with times of its steps, where they have no stamps but tell how long they took, and a date is before them.

    Scripts print a date at the start of an epoch, or a logger of a library does at the start of the run.

    Examples
    --------
    >>> lines = ["2026-11-04 08:00:00 start", *(f"step {number} dt: 2000ms" for number in range(1, 21)), "KeyError: 1"]
    >>> log = LogTable("a.log", np.array([1.7e9, *[np.nan] * 21]), (None,) * 22, (None,) * 22, lines)
    >>> (with_step_times(log).times_s[[0, 1, 20, 21]] - 1.7e9).tolist()
    [0.0, 2.0, 40.0, nan]
    """
    known = np.isfinite(log.times_s)
    if not known.any() or known.mean() > 0.5 or not is_epoch(float(log.times_s[known][0])):
        return log
    rows = max(_by_trainer(log).values(), key=len, default=_Rows())
    durations_s = np.array(rows.duration_s)
    if len(rows) < FEWEST or np.isfinite(np.array(rows.stamp_s)).any() or not np.isfinite(durations_s).all():
        return log
    places, steps = np.array(rows.place), np.diff(np.array(rows.step), prepend=rows.step[0])
    # A step that is reported again, or of another life, is one.
    lasted_s = np.zeros(log.times_s.size)
    lasted_s[places] = durations_s * np.where((steps > 0) & (steps < _MOST_APART), steps, 1)
    begun = np.maximum.accumulate(np.where(known, np.arange(known.size), 0))
    since_s = np.cumsum(lasted_s)
    times_s = log.times_s[begun] + since_s - since_s[begun]
    # A date behind them is after them.
    behind_s = np.minimum.accumulate(np.where(known, log.times_s, np.inf)[::-1])[::-1]
    filled = log.times_s.copy()
    filled[places] = np.minimum(times_s, behind_s)[places]
    return replace(log, times_s=filled)


def line_time_s(log: LogTable, places: Sequence[int], number: int, told: IterationTable | None) -> float:
    """When the line at ``places[number]`` of `log` was written; NaN if nothing says it.

    By its stamp, else by the times of the steps where such a line comes with each of them, else by the stamp before it.

    Parameters
    ----------
    told : IterationTable, optional
        The steps that were read from the same logs.
    """
    stamps_s = log.times_s[: places[number] + 1]
    known_s = stamps_s[np.isfinite(stamps_s)]
    if told is not None and not np.isfinite(stamps_s[-1]) and told.timed == bool(known_s.size):
        row = number - (len(places) - told.step.size)  # a run's first line may have no time of its own
        if abs(len(places) - told.step.size) <= _MOST_MORE and 0 <= row < told.step.size:
            return float(told.end_s[row])
    return float(known_s[-1]) if known_s.size else math.nan


def _by_trainer(log: LogTable) -> dict[str, _Rows]:
    rows: dict[str, _Rows] = {}
    for place, line in enumerate(log.lines):
        said = step_line(line)
        if said is None or "Error" in line:
            continue
        of_trainer = rows.setdefault(said.trainer, _Rows())
        if said.step is not None or said.trainer == COUNTED:
            number = len(of_trainer) if said.step is None else said.step
            of_trainer.add(number, said, float(log.times_s[place]), place)
        elif len(of_trainer):
            of_trainer.go_on(said)
    return rows


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


def _lives(steps: Sequence[int]) -> Iterator[array[int]]:
    """Places of the rows of one life each, one for each step."""
    life, of_life = array("q"), array("q")
    for place, step in enumerate(steps):
        if of_life and step == of_life[-1]:
            continue
        if of_life and step < of_life[-1]:
            if step in of_life[-64:]:
                continue  # another rank is a little behind
            yield life
            life, of_life = array("q"), array("q")
        life.append(place)
        of_life.append(step)
    if life:
        yield life


def _far_enough_apart(stamps_s: Floats) -> Ints:
    """Places of the rows whose distances are not mostly rounding, where stamps are of whole seconds.

    Examples
    --------
    >>> _far_enough_apart(np.array([0.0, 1.0, 3.0, 4.0, 6.0, 12.0, 13.0])).tolist()
    [0, 5]
    >>> _far_enough_apart(np.array([0.0, 1.5, 3.0])).tolist()
    [0, 1, 2]
    """
    whole = np.isfinite(stamps_s) & (np.floor(stamps_s) == stamps_s)
    if not whole.all():
        return np.arange(stamps_s.size)
    kept = [0]
    for place in range(1, stamps_s.size):
        if stamps_s[place] - stamps_s[kept[-1]] >= ROUNDED_S:
            kept.append(place)
    return np.array(kept, np.int64)


def _timed(rows: _Rows, life: Ints) -> tuple[Ints, Floats, Ints, Floats] | None:
    """Steps, seconds of a step, how many steps a row stands for, and stamps; None where nothing tells the times."""
    if len(life) < 2:
        return None
    step = np.array(rows.step, np.int64)[life]
    stamps_s = np.array(rows.stamp_s)[life]
    steps = np.diff(step, prepend=step[0] - int(np.median(np.diff(step))))
    said_s, rate = np.array(rows.duration_s)[life], np.array(rows.rate)[life]
    if not (np.isfinite(said_s).mean() > 0.5 or np.isfinite(rate).mean() > 0.5):
        wide = _far_enough_apart(stamps_s)
        step, stamps_s, said_s, rate = step[wide], stamps_s[wide], said_s[wide], rate[wide]
        steps = np.diff(step, prepend=step[0] - int(steps[0]))
    apart_s = np.diff(stamps_s, prepend=np.nan) / steps
    if np.isfinite(said_s).mean() > 0.5:
        duration_s = said_s
    elif np.isfinite(rate).mean() > 0.5:
        size = np.nanmedian(apart_s * rate) if np.isfinite(apart_s).any() else np.nanmedian(rate)
        duration_s = size / rate
    else:
        duration_s = apart_s
    good = np.isfinite(duration_s) & (duration_s > 0.0) & (duration_s < MOST_S)
    if good.sum() < 2:
        return None
    return step[good], duration_s[good], np.maximum(steps[good], 1), stamps_s[good]
