"""When each line of a recorded log was written, as far as it can be known: a time between the stamps around it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final

import numpy as np

from trainwarden.detectors.logs.ends.endings import shipped_endings
from trainwarden.detectors.logs.loss_lines import goes_on
from trainwarden.detectors.logs.rules import shipped_rules
from trainwarden.recorded.job import Floats, LogTable
from trainwarden.recorded.log_stamps import iso_time_s

UNSTAMPED_S: Final = 1.0  # lines of a file without any time stamp are taken to be so far apart
WIDE_S: Final = 60.0  # between stamps that are nearer the last one is good enough
_NEWEST: Final = 4096  # lines of a file in which its last step and what follows it stand
_LEAST_S: Final = 0.001  # behind the step that came before
_TRACEBACK: Final = "Traceback (most recent call last)"
# slurmstepd's words have no stamp in front.
_ENDED_AT: Final = re.compile(
    r"\*\*\* (?:JOB|STEP) \S{1,40} ON \S{1,200} CANCELLED AT ([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8})\b"
)
_TIMEOUT: Final = re.compile(r"Timeout\(ms\)=([0-9]{1,12})")


def times_of_lines(logs: Sequence[LogTable], start_s: float) -> list[Floats]:
    """`line_times` of all files of a job: last words of a rank in a file without any stamp are as old as the job's end.

    A rank's own file often holds its exception alone. It belongs to the end that other files tell of; where they tell
    of none, it may be an exception that was caught, and its time is not known.

    Examples
    --------
    >>> said = ["step 7 loss: 2.5", "failed (exitcode: 1) local_rank: 0 (pid: 7)"]
    >>> train = LogTable("train.log", np.array([5.0, 9.0]), (None,) * 2, (None,) * 2, said)
    >>> own = LogTable("rank3.err", np.array([np.nan] * 2), (None,) * 2, (3,) * 2, ["warning", "KeyError: 'x'"])
    >>> [times_s.tolist() for times_s in times_of_lines([train, own], 5.0)]
    [[5.0, 9.0], [5.0, 9.0]]
    """
    times_s = [line_times(log, start_s) for log in logs]
    unstamped = [number for number, log in enumerate(logs) if log.lines and not np.isfinite(log.times_s).any()]
    own = [number for number in unstamped if any(rank is not None for rank in logs[number].ranks)]
    silent = [number for number in own if not any(goes_on(line) for line in logs[number].lines[-_NEWEST:])]
    stamped = [number for number in range(len(logs)) if logs[number].lines and number not in unstamped]
    if silent and stamped:
        end_s = _end_s([logs[number] for number in stamped], [times_s[number] for number in stamped])
        for number in silent if end_s is not None else ():
            times_s[number][_last_words(logs[number].lines) :] = end_s
    return times_s


def line_times(log: LogTable, start_s: float) -> Floats:
    """Times that never fall: a line without a stamp is as old as the last stamped one before it, where these are dense.

    Between stamps that are far apart, step lines are spread evenly, and what follows the last of them belongs to the
    stamp behind where that one tells of an end: then it is what came before the end.

    Examples
    --------
    >>> def of(times_s, lines): return LogTable("logs.txt", np.array(times_s), (None,), (None,), lines)
    >>> line_times(of([np.nan, 5.0, np.nan, 4.0, 6.0], ["x"] * 5), 0.0).tolist()
    [5.0, 5.0, 5.0, 5.0, 6.0]
    >>> line_times(of([np.nan, np.nan], ["x"] * 2), 7.0).tolist()
    [7.0, 8.0]
    >>> lines = ["start", "{'loss': 2.5}", "Traceback", "KeyError: 'x'", "failed (exitcode: 1) local_rank: 0 (pid: 7)"]
    >>> line_times(of([0.0, np.nan, np.nan, np.nan, 9000.0], lines), 0.0).tolist()
    [0.0, 4500.0, 9000.0, 9000.0, 9000.0]
    """
    log = _with_ends(log)
    known = np.isfinite(log.times_s)
    if not known.any():
        return np.asarray(start_s + UNSTAMPED_S * np.arange(log.times_s.size))
    first = float(log.times_s[known][0])
    times_s = np.asarray(np.maximum.accumulate(np.where(known, log.times_s, first)))
    stamped = np.flatnonzero(known)
    wide = (np.diff(stamped) > 1) & (np.diff(times_s[stamped]) > WIDE_S)
    for number in np.flatnonzero(wide).tolist():
        _spread(times_s, log.lines, int(stamped[number]), int(stamped[number + 1]))
    return times_s


def _with_ends(log: LogTable) -> LogTable:
    """`log` with the times in the scheduler's own words, where they fit between the stamps around them.

    Examples
    --------
    >>> lines = ["a", "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 1970-01-01T00:01:00 DUE TO TIME LIMIT ***", "b"]
    >>> _with_ends(LogTable("a.err", np.array([5.0, np.nan, 70.0]), (None,) * 3, (None,) * 3, lines)).times_s.tolist()
    [5.0, 60.0, 70.0]
    """
    untold = np.flatnonzero(~np.isfinite(log.times_s[-_NEWEST:])) + max(0, log.times_s.size - _NEWEST)
    told = {place: match[1] for place in untold.tolist() if (match := _ENDED_AT.search(log.lines[place]))}
    if not told:
        return log
    times_s = log.times_s.copy()
    for place, text in told.items():
        before, behind = times_s[:place], times_s[place + 1 :]
        time_s = iso_time_s(text)
        late = before[np.isfinite(before)][-1:] <= time_s
        early = behind[np.isfinite(behind)][:1] >= time_s
        if late.all() and early.all() and late.size + early.size:
            times_s[place] = time_s
    return replace(log, times_s=times_s)


def began_s(line: str, time_s: float) -> float:
    """When what `line` tells of began: a watchdog's line carries how long its rank has waited."""
    match = _TIMEOUT.search(line)
    return time_s - int(match[1]) / 1000.0 if match else time_s


def _end_s(logs: Sequence[LogTable], times_s: Sequence[Floats]) -> float | None:
    """When the job has ended: the first line behind the last step of all files that tells of an end or of its cause."""
    newest = [log.lines[-_NEWEST:] for log in logs]
    newest_s = [times[-_NEWEST:] for times in times_s]
    steps = [[place for place, line in enumerate(lines) if goes_on(line)] for lines in newest]
    step_s = max((float(times[one[-1]]) for times, one in zip(newest_s, steps, strict=True) if one), default=None)
    found = (
        float(times[place])
        for lines, times, one in zip(newest, newest_s, steps, strict=True)
        for place in range(one[-1] + 1 if one else 0, len(lines))
        if (step_s is None or times[place] >= step_s) and _tells_of_a_failure(lines[place])
    )
    end_s = min(found, default=None)
    return None if end_s is None else end_s if step_s is None else max(end_s, step_s + _LEAST_S)


def _last_words(lines: Sequence[str]) -> int:
    """Where the last traceback of a file begins, else its last line."""
    traced = (place for place in range(len(lines) - 1, -1, -1) if _TRACEBACK in lines[place])
    return next(traced, len(lines) - 1)


def _spread(times_s: Floats, lines: Sequence[str], before: int, behind: int) -> None:
    """Times of the lines between two stamps that are far apart."""
    steps = [place for place in range(before + 1, behind) if goes_on(lines[place])]
    since_s = float(times_s[before])
    until_s = max(since_s, began_s(lines[behind], float(times_s[behind])))
    if steps:
        each_s = (until_s - since_s) / (len(steps) + 1)
        marks = [*steps, behind]
        for number, (place, next_) in enumerate(pairwise(marks), 1):
            times_s[place:next_] = since_s + each_s * number
    if _tells_of_an_end(lines[behind]):
        times_s[(steps[-1] if steps else before) + 1 : behind] = until_s


def _tells_of_an_end(line: str) -> bool:
    if shipped_endings().read(line) is not None:
        return True
    rule = shipped_rules().match(line)
    return rule is not None and rule.role in {"cascade", "phase"}


def _tells_of_a_failure(line: str) -> bool:
    ending, rule = shipped_endings().read(line), shipped_rules().match(line)
    return (ending is not None and ending.failed) or (rule is not None and rule.role in {"cascade", "root"})
