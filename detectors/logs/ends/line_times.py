"""When each line of a recorded log was written, as far as it can be known: a time between the stamps around it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import numpy as np

from trainwarden.detectors.logs.ends.endings import shipped_endings
from trainwarden.detectors.logs.loss_lines import goes_on
from trainwarden.detectors.logs.rules import shipped_rules
from trainwarden.recorded.job import Floats, LogTable

UNSTAMPED_S: Final = 1.0  # lines of a file without any time stamp are taken to be so far apart
WIDE_S: Final = 60.0  # between stamps that are nearer the last one is good enough
_TIMEOUT: Final = re.compile(r"Timeout\(ms\)=([0-9]{1,12})")


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


def began_s(line: str, time_s: float) -> float:
    """When what `line` tells of began: a watchdog's line carries how long its rank has waited."""
    match = _TIMEOUT.search(line)
    return time_s - int(match[1]) / 1000.0 if match else time_s


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
