"""Times of Kubernetes' events that kubectl prints with an age: ``3m2s`` before the folder's files were taken."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from trainwarden.formats.stamps import time_s_of
from trainwarden.recorded.job import Floats, LogTable
from trainwarden.recorded.logs import is_epoch

# apimachinery's duration.HumanDuration; an event that came again has "(x3 over 5m)" behind the newest age.
_AGE: Final = r"((?:[0-9]{1,5}[ydhms]){1,3})"
_LISTED: Final = re.compile(
    r"(?:[a-z0-9][a-z0-9.-]{0,62} {1,40})?"
    + _AGE
    + r"(?: \(x[0-9]{1,6} over [0-9a-z]{1,20}\))? {1,20}(?:Normal|Warning) "
)
_DESCRIBED: Final = re.compile(
    r" {1,4}(?:Normal|Warning) {1,12}(\S{1,63}) {1,60}" + _AGE + r"(?: \(x[0-9]{1,6} over [0-9a-z]{1,20}\))? "
)
_PART: Final = re.compile(r"([0-9]{1,5})([ydhms])")
_SECONDS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "y": 365.0 * 86_400.0}
_LISTS: Final = "LAST SEEN"
_STARTED: Final = re.compile(
    r"Start Time: {1,20}[A-Z][a-z]{2}, ([0-9]{2} [A-Z][a-z]{2} [0-9]{4} [0-9:]{8}) ([+-][0-9]{4})$"
)
_WORD: Final = re.compile(r"Reason: {1,40}(\S{1,63})$")
MOST_LINES: Final = 100_000  # of a file of events


def age_s(text: str) -> float:
    """Seconds of an age.

    Examples
    --------
    >>> age_s("3m2s"), age_s("44m"), age_s("2d3h")
    (182.0, 2640.0, 183600.0)
    """
    return sum(int(number) * _SECONDS[unit] for number, unit in _PART.findall(text))


def dated_events(logs: Sequence[LogTable]) -> tuple[LogTable, ...]:
    """`logs` with times of events; what no file tells the time of stays without one.

    A pod that is described says when it started and how long ago that was, else the newest stamp of all files is taken
    for the time at which the events were listed.
    """
    lists = [_is_listed(log) for log in logs]
    if not any(lists):
        return tuple(logs)
    newest_s = _newest_s(log for log, listed in zip(logs, lists, strict=True) if not listed)
    return tuple(_dated(log, newest_s) if listed else log for log, listed in zip(logs, lists, strict=True))


def _is_listed(log: LogTable) -> bool:
    if len(log.lines) > MOST_LINES or np.isfinite(log.times_s).any():
        return False
    return any(line.startswith(("Events:", _LISTS)) or f" {_LISTS} " in line[:120] for line in log.lines)


def _newest_s(logs: Iterable[LogTable]) -> float:
    times = [log.times_s[np.isfinite(log.times_s)] for log in logs]
    newest_s = max((float(one.max()) for one in times if one.size), default=math.nan)
    return newest_s if is_epoch(newest_s) else math.nan


def _dated(log: LogTable, newest_s: float) -> LogTable:
    described = any(line.startswith("Events:") for line in log.lines)
    return _of_descriptions(log, newest_s) if described else _of_list(log, newest_s)


def _of_list(log: LogTable, newest_s: float) -> LogTable:
    """The rows of `kubectl get events`, the oldest first."""
    matches = [_LISTED.match(line) for line in log.lines]
    times_s = np.array([math.nan if one is None else newest_s - age_s(one[1]) for one in matches])
    if not np.isfinite(times_s).any():
        return log
    order = np.argsort(np.where(np.isfinite(times_s), times_s, -np.inf), kind="stable").tolist()
    nodes, ranks = (tuple(column[place] for place in order) for column in (log.nodes, log.ranks))
    return replace(log, times_s=times_s[order], nodes=nodes, ranks=ranks, lines=[log.lines[one] for one in order])


def _of_descriptions(log: LogTable, newest_s: float) -> LogTable:
    """The rows of events under descriptions; an object's reason and message are those of the event they name."""
    times_s = np.full(len(log.lines), np.nan)
    begun = 0
    for place in [*(place for place, line in enumerate(log.lines) if line.startswith("Name:")), len(log.lines)]:
        times_s[begun:place] = _of_one(log.lines[begun:place], newest_s)
        begun = place
    return replace(log, times_s=times_s)


def _of_one(lines: Sequence[str], newest_s: float) -> Floats:
    """Times of the lines that describe one object."""
    times_s = np.full(len(lines), np.nan)
    rows = {place: match for place, line in enumerate(lines) if (match := _DESCRIBED.match(line))}
    ages_s = {match[1]: age_s(match[2]) for match in rows.values()}
    started = next((match for line in lines if (match := _STARTED.match(line))), None)
    base_s = newest_s
    if started is not None and "Scheduled" in ages_s:
        base_s = time_s_of(started[1]) - _zone_s(started[2]) + ages_s["Scheduled"]
    for place, match in rows.items():
        times_s[place] = base_s - age_s(match[2])
    word = next((match[1] for line in lines if (match := _WORD.match(line))), None)
    if word in ages_s:
        for place, line in enumerate(lines):
            if line.startswith(("Reason:", "Message:")):
                times_s[place] = base_s - ages_s[word]
    return times_s


def _zone_s(zone: str) -> float:
    ahead_s = int(zone[1:3]) * 3600.0 + int(zone[3:]) * 60.0
    return -ahead_s if zone[0] == "-" else ahead_s
