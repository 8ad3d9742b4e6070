"""Whether a job stood still for long before its scheduler ended it, by the clock in the scheduler's own words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import numpy as np

from trainwarden.detectors.logs.ends.verdicts import Cause, Verdict
from trainwarden.detectors.logs.loss_lines import goes_on
from trainwarden.recorded.job import LogTable
from trainwarden.recorded.log_stamps import iso_time_s

LEAST_S: Final = 1800.0  # evaluation and a checkpoint are over by then, and so is NCCL's patience
LEAST_STEPS: Final = 30.0  # of the usual length
FEWEST_STEPS: Final = 8  # that show what is usual
FEW_LINES: Final = 10  # behind the last step; who says more does something else
_NEWEST: Final = 4096  # lines of a file in which its last steps stand
_ZONE_S: Final = 900.0  # zones are whole quarters of an hour apart
_NEAR_ZONE_S: Final = 120.0
_PROGRESS: Final = re.compile(r"\b([0-9]{1,12}) ?/ {0,12}([0-9]{1,12})\b")
# slurmstepd, of a person, a time limit or a preemption: the time is local, and a log's own clock may be another zone's.
_ENDED_AT: Final = re.compile(
    r"\*\*\* (?:JOB|STEP) [0-9._+]{1,32} ON \S{1,200} CANCELLED AT "
    r"([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2})\b"
)


def standstill(tables: Sequence[LogTable]) -> Verdict | None:
    """The verdict on a job whose every file ends with a step, long before the scheduler's word; None if it moved.

    A file whose last steps have no stamp says nothing of when they were. A gap of whole quarters of an hour may be the
    distance of two zones, and is none.
    """
    ended_s = min((one for table in tables if (one := _ended_at_s(table)) is not None), default=None)
    if ended_s is None:
        return None
    last_s, usual_s = -np.inf, np.inf
    for table in tables:
        if _ended_at_s(table) is not None and not any(goes_on(line) for line in table.lines[-_NEWEST:]):
            continue  # the scheduler's own file
        steps = _steps_s(table)
        if steps is None:
            return None
        last_s, usual_s = max(last_s, float(steps[-1])), min(usual_s, float(np.median(np.diff(steps))))
    still_s = ended_s - last_s
    if not np.isfinite(still_s) or not np.isfinite(usual_s):
        return None
    zone_s = abs(still_s - _ZONE_S * round(still_s / _ZONE_S))
    if zone_s <= max(_NEAR_ZONE_S, 2.0 * usual_s) or still_s < max(LEAST_S, LEAST_STEPS * usual_s):
        return None
    cause = Cause(
        order=(last_s, 0, 0), rank=None, node=None, file="",
        line=f"no rank logged anything for {still_s:.0f} s before the scheduler ended the job, where a step takes "
        f"{usual_s:.1f} s: no rank is accused",
        rule="silent.ranks", kind="hang", severity="sev2",
    )  # fmt: skip
    return Verdict(cause, "", last_s)


def _ended_at_s(table: LogTable) -> float | None:
    """When the scheduler ended the job, as its last lines say."""
    found = (match for line in table.lines[-FEW_LINES:] if (match := _ENDED_AT.search(line)))
    return next((iso_time_s(match[1]) for match in found), None)


def _steps_s(table: LogTable) -> np.ndarray[tuple[int], np.dtype[np.float64]] | None:
    """Times of the newest steps; None where they are few, have no stamps, or are not what the file ends with."""
    lines = table.lines[-_NEWEST:]
    times_s = table.times_s[-_NEWEST:]
    places = [place for place, line in enumerate(lines) if goes_on(line)]
    if len(places) < FEWEST_STEPS:
        return None
    behind = sum(_ENDED_AT.search(line) is None for line in lines[places[-1] + 1 :])
    progress = _PROGRESS.search(lines[places[-1]])
    if progress is not None and progress[1] == progress[2]:
        return None  # that was its last step
    steps_s = times_s[places[-FEWEST_STEPS * 8 :]]
    return np.asarray(steps_s) if behind <= FEW_LINES and bool(np.isfinite(steps_s).all()) else None
