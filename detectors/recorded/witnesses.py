"""What else a recording says about a time in which steps stopped: the pauses before it, lines, events."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from trainwarden.detectors.facts.failures import STOP_SIGNALS
from trainwarden.detectors.logs.rules import shipped_rules
from trainwarden.recorded.job import Floats, RecordedJob
from trainwarden.records import EventRecord

MIN_STEPS: Final = 10  # before which nobody knows what pauses the job makes
TIMES: Final = 3.0  # a pause may take so many times the longest that has gone over by itself
ENDS: Final = frozenset({"job_end", "process_exit", "exception", "fatal_signal", "restart"})
_FAILS: Final = frozenset({"process_exit", "exception", "fatal_signal"})
_OVER: Final = re.compile(
    r"(?i)\b(training|job|run)( is| has| was)?( now)? (done|finished|completed?|ended|over)\b|\bfinished training\b"
)
_NOISE: Final = "noise."


@dataclass(frozen=True, slots=True)
class Steps:
    """When any rank of the job ended a step, ascending.

    Attributes
    ----------
    usual_s : float
        How long a step usually takes.
    longest_s : float array, one entry for each end
        The longest pause up to it; not a number while it is too early to say.
    few : int
        Ends after which it is not.
    """

    ends_s: Floats
    usual_s: float
    longest_s: Floats
    few: int

    @classmethod
    def of(cls, job: RecordedJob) -> Steps | None:
        """None where the steps' times are not known: those counted from durations fit no other clock."""
        table = job.iterations
        if table is None or not table.timed or not table.end_s.size:
            return None
        longest_s = np.full(table.end_s.size, np.nan)
        steps = cls(np.sort(table.end_s), float(np.median(table.duration_s)), longest_s, MIN_STEPS * len(table.ranks))
        return steps.without([])

    def without(self, places: list[int]) -> Steps:
        """As if there were no pauses behind these ends: what was a hang is none that the job makes."""
        lasted_s = np.diff(self.ends_s, prepend=self.ends_s[:1])
        lasted_s[[place + 1 for place in places if place + 1 < lasted_s.size]] = 0.0
        longest_s = np.maximum(np.maximum.accumulate(lasted_s), self.usual_s)
        longest_s[: self.few] = np.nan
        return replace(self, longest_s=longest_s)


def ended(job: RecordedJob, events: Iterable[EventRecord], from_s: float, until_s: float) -> bool:
    """True if something says that the job, or a process of it, ended or was ended between the two times."""
    if any(event.kind in ENDS and from_s <= event.time_s <= until_s for event in events):
        return True
    for _, line in _lines(job, from_s, until_s):
        rule = shipped_rules().match(line)
        if _OVER.search(line) or (rule is not None and rule.role in {"root", "phase"}):
            return True
    return False


def left_alone(job: RecordedJob, events: Iterable[EventRecord], node: str, from_s: float, until_s: float) -> str | None:
    """What others than `node` say of a peer that is gone: a broken connection, a process that failed.

    None if nobody does, or if the job is said to have ended.
    """
    found: list[tuple[float, str]] = []
    for event in events:
        if event.node != node and event.kind in _FAILS and from_s <= event.time_s <= until_s:
            if event.fields.get("code", 1) == 0 or _was_stopped(event):
                return None
            who = f"rank {event.rank}" if event.rank is not None else f"a process on {event.node}"
            found.append((event.time_s, f"{who} failed"))
        elif event.kind in {"job_end", "restart"} and from_s <= event.time_s <= until_s:
            return None
    for time_s, line in _lines(job, from_s, until_s, node):
        rule = shipped_rules().match(line)
        if _OVER.search(line) or (rule is not None and rule.role == "phase"):
            return None
        if rule is not None and rule.role == "cascade" and not rule.id.startswith(_NOISE):
            found.append((time_s, f"a peer says: {line.strip()[:120]}"))
    return min(found)[1] if found else None


def heard_after(job: RecordedJob, node: str, time_s: float) -> bool:
    """True if `node` has written lines or made steps after a time."""
    table = job.iterations
    if table is not None and table.timed and node in table.nodes:
        of_node = np.flatnonzero([one == node for one in table.nodes])
        if (table.end_s[np.isin(table.rank, of_node)] > time_s).any():
            return True
    for log in job.logs:
        late = np.flatnonzero(log.times_s > time_s)
        if any(log.nodes[index] == node for index in late.tolist()):
            return True
    return False


def _was_stopped(event: EventRecord) -> bool:
    return event.fields.get("signal") in STOP_SIGNALS or event.fields.get("code") in {130, 143}


def _lines(job: RecordedJob, from_s: float, until_s: float, but: str | None = None) -> Iterator[tuple[float, str]]:
    """Lines with a time of their own between the two, and that time; not those of the node `but`."""
    for log in job.logs:
        for index in np.flatnonzero((log.times_s >= from_s) & (log.times_s <= until_s)).tolist():
            if but is None or log.nodes[index] != but:
                yield float(log.times_s[index]), log.lines[index]
