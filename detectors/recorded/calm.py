"""Stretches of a job's logs in which nothing happens: a window for eight steps is enough, as for a table of steps."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from statistics import median
from typing import Final

from trainwarden.detectors.logs.ends.endings import shipped_endings
from trainwarden.detectors.logs.loss_lines import goes_on
from trainwarden.detectors.logs.rules import shipped_rules
from trainwarden.detectors.recorded.stream import CUT_STEPS, Fact
from trainwarden.log_text import behind_prefixes
from trainwarden.recorded.job import RecordedJob
from trainwarden.records import HeartbeatRecord, IterationRecord, LogRecord, Record

FIRST: Final = 64  # windows of a job that is still being learnt
HOLD_S: Final = 180.0  # a finding is undecided so long, and twice
HOLD: Final = 32  # windows, where steps are long
MOST_LINES: Final = 8  # of a window; more may be a storm
KEPT: Final = 31  # steps of which the usual length is known
FEWEST: Final = 16
LIKE: Final = (0.8, 1.25)  # times the usual step
MOST_SHAPES: Final = 4_096
_DIGITS: Final = re.compile(r"[0-9]+")
_INFINITE: Final = re.compile(r"(?i)\b-?(?:nan|inf(?:inity)?)\b")


class CalmStretches:
    """Which windows of a replay need not be scored one by one.

    A window is calm while lines are of no rule, steps last as long as those before, and no detector sees anything.
    After one that is not, each is scored for a while: findings are decided by what comes next.

    Examples
    --------
    >>> from pathlib import Path
    >>> CalmStretches(RecordedJob("j", Path(".")), ()).skips([], 5.0, True)
    False
    """

    def __init__(self, job: RecordedJob, facts: Sequence[Fact]) -> None:
        beats = any(isinstance(fact, HeartbeatRecord) for fact in facts)
        self._possible = job.metrics is None and job.collectives is None and not beats
        self._rules, self._endings = shipped_rules(), shipped_endings()
        self._steps: deque[float] = deque(maxlen=KEPT)
        self._shapes: dict[str, bool] = {}  # of step lines: numbers are left out
        self._left, self._until_s = FIRST, float("-inf")
        self._skipped = 0

    def skips(self, records: Sequence[Record], now_s: float, quiet: bool) -> bool:
        """Whether the window at `now_s` waits for those that come; `quiet`: nothing was found in the last one."""
        if not self._possible:
            return False
        calm = len(records) > 0 and all([self._calm(record) for record in records])
        if not calm or not quiet:
            self._left, self._until_s = HOLD, now_s + HOLD_S
        self._left = max(0, self._left - 1)
        waits = not self._left and now_s > self._until_s and self._skipped < CUT_STEPS - 1
        self._skipped = self._skipped + 1 if waits else 0
        return waits

    def _calm(self, record: Record) -> bool:
        if isinstance(record, IterationRecord):
            return all([self._usual(duration_s) for duration_s in record.duration_s])
        if not isinstance(record, LogRecord) or len(record.lines) > MOST_LINES:
            return False
        return all(self._says_nothing(line, record.rank) for line in record.lines)

    def _usual(self, duration_s: float) -> bool:
        """Whether a step lasts as long as those before."""
        known = len(self._steps) >= FEWEST
        low, high = LIKE
        like = known and low <= duration_s / median(self._steps) <= high
        self._steps.append(duration_s)
        return like

    def _says_nothing(self, line: str, rank: int | None) -> bool:
        shape = _DIGITS.sub("0", line)
        known = self._shapes.get(shape)
        if known is not None:
            return known
        rest = behind_prefixes(line, rank)
        rule = self._rules.match(line) or self._rules.match(rest)
        calm = (rule is None or rule.role == "benign") and self._endings.read(rest) is None
        if goes_on(line) and len(self._shapes) < MOST_SHAPES:  # other lines mean something by their numbers
            calm = calm and _INFINITE.search(line) is None
            self._shapes[shape] = calm
        return calm
