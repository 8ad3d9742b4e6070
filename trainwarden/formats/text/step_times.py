"""Step times that trainers print: a table of iterations of the whole job, made of its logs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from trainwarden.formats.text.trainers import COUNTED, StepLine, step_line
from trainwarden.recorded.job import Floats, Ints, IterationTable, LogTable

FEWEST: Final = 20  # steps: of fewer no level is known
ROUNDED_S: Final = 10.0  # stamps of whole seconds are so far apart at least that rounding is a tenth of it
MOST_S: Final = 86_400.0
BASIS: Final = "log"

_Row = tuple[int, StepLine, float]
"""Step, what its line says, and the line's stamp (NaN if it has none)."""


def steps_of(logs: Sequence[LogTable]) -> IterationTable | None:
    """The steps of the log that tells most of them; None where fewer than `FEWEST` have a time.

    A line's own time counts, else the rate of a run whose steps are all of one size, else the distance of the stamps.
    What every rank prints counts once. A step below the last one begins another life of the job.
    """
    best: list[_Row] = []
    for log in logs:
        for rows in _by_trainer(log).values():
            if len(rows) > len(best):
                best = rows
    found = [_timed(life) for life in _lives(best)]
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


def _by_trainer(log: LogTable) -> dict[str, list[_Row]]:
    rows: dict[str, list[_Row]] = {}
    for place, line in enumerate(log.lines):
        if "Error" in line:
            continue
        said = step_line(line)
        if said is None:
            continue
        of_trainer = rows.setdefault(said.trainer, [])
        if said.step is not None or said.trainer == COUNTED:
            number = len(of_trainer) if said.step is None else said.step
            of_trainer.append((number, said, float(log.times_s[place])))
        elif of_trainer:  # a further line of the last step
            step, before, stamp_s = of_trainer[-1]
            of_trainer[-1] = (step, replace(said, step=step), stamp_s) if before.duration_s is None else of_trainer[-1]
    return rows


def _lives(rows: Sequence[_Row]) -> Iterator[list[_Row]]:
    """Rows of one life each, one for each step."""
    life: list[_Row] = []
    for row in rows:
        if life and row[0] == life[-1][0]:
            continue
        if life and row[0] < life[-1][0]:
            if any(one[0] == row[0] for one in life[-64:]):
                continue  # another rank is a little behind
            yield life
            life = []
        life.append(row)
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


def _timed(life: Sequence[_Row]) -> tuple[Ints, Floats, Ints, Floats] | None:
    """Steps, seconds of a step, how many steps a row stands for, and stamps; None where nothing tells the times."""
    if len(life) < 2:
        return None
    step = np.array([row[0] for row in life], np.int64)
    stamps_s = np.array([row[2] for row in life])
    steps = np.diff(step, prepend=step[0] - int(np.median(np.diff(step))))
    said_s = np.array([np.nan if row[1].duration_s is None else row[1].duration_s for row in life])
    rate = np.array([np.nan if row[1].rate is None else row[1].rate for row in life])
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
