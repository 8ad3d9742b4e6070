"""Logs that end with words of a failure of which no incident came: such a job is not called healthy."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy as np

from trainwarden.detectors.logs.loss_lines import goes_on
from trainwarden.detectors.logs.rules import LogRules, shipped_rules
from trainwarden.recorded.job import LogTable

LAST_LINES: Final = 8  # of a log, without blank ones: what is said later than a failure is clean-up
MOST_CHARS: Final = 160
_FAILS: Final = re.compile(
    r"\b[A-Z][A-Za-z0-9]{0,60}(?:Error|Exception|Failure|Fault)\b(?:: |$| \()"  # the name of an exception
    r"|(?:^|[\s\[|:])(?:FATAL|CRITICAL|PANIC|Fatal|fatal|panic)(?:[\s\]|:]|$)"
    r"|\bterminat(?:e called|ing due to|ing with)|\b[Aa]bort(?:ed|ing)\b|: abort\b"
    r"|\bcore dumped\b|\bSegmentation fault\b"
    r"|(?:^|[\s\[|])(?:ERROR|error)(?:[\]|]|: )"
    r"|\b(?:exited|failed|died) (?:with|by|due)\b|Failed with result|\b(?:has|was) (?:crashed|killed)\b"
)
_WELL: Final = re.compile(
    r"(?i)\b(?:complet(?:e|ed)|finished|succe(?:ss|eded|ssfully)|done|saved|train_runtime)\b"
    r"|\bexit(?:ed)?(?: with)?(?: (?:code|status):?)? 0\b"
)
_HARMLESS: Final = re.compile(
    r"(?i)\bwarn(?:ing)?\b|retry|ignor|wandb|comet|mlflow|telemetry|tensorboard|\b(?:0|no) (?:errors?|failures?)\b"
    r"|error[_ ]rate|loss|(?:^|[\s\[:])W[0-9]{3,4} [0-9]{2}:"  # the last: glog's and c10's warnings
)
# What the machine says of itself, for which there are rules: its other programs fail as well.
_SYSTEM: Final = re.compile(
    r"^\[\s{0,8}[0-9]{1,9}\.[0-9]{6}\]|\bkernel: |\b(?:systemd|sshd|dbus-daemon)(?:\[[0-9]{1,8}\])?: "
)


# Python's own words, as they are printed where nothing catches an exception; torch puts the rank before them.
_TRACEBACK: Final = re.compile(r"^(?:\[rank[0-9]{1,6}\]: ?)?Traceback \(most recent call last\):")
_RAISED: Final = re.compile(r"^(?:\[rank[0-9]{1,6}\]: ?)?[A-Za-z_][A-Za-z0-9_.]{0,120}(?:Error|Exception|Interrupt)\b")
_SURVIVED: Final = re.compile(
    r"(?i)^Exception (?:ignored|in thread)|never retrieved|^future: |logging error|\b(?:skip|retry|ignor|caught|fall)"
)
BUFFER_CHARS: Final = 8192  # io.DEFAULT_BUFFER_SIZE of CPython: what a program's end may write behind a traceback


class UnknownEnd(NamedTuple):
    """A line, by its number from 1, that tells of a failure at the end of a log.

    `buffered`: steps stand behind it, which may have been made before.
    """

    file: str
    number: int
    line: str
    buffered: bool = False


def unknown_ends(logs: Iterable[LogTable], rules: LogRules | None = None) -> list[UnknownEnd]:
    """The last such line of each log that ends so; none where something went well later, or a rule knows it as benign.

    Examples
    --------
    >>> import numpy as np
    >>> lines = ["step 41 loss 2.1", "FluxError: the flux of plane 3 is gone"]
    >>> [one.number for one in unknown_ends([LogTable("a.log", np.zeros(2), (None,) * 2, (None,) * 2, lines)])]
    [2]
    """
    rules = rules or shipped_rules()
    found = []
    for log in logs:
        looked = 0
        stepped = set[int | None]()  # ranks that make a step behind the line that is looked at
        for place in range(len(log.lines) - 1, -1, -1):
            line = log.lines[place].strip()
            if not line:
                continue
            looked += 1
            if looked > LAST_LINES or _WELL.search(line):
                break
            if goes_on(line):
                stepped.add(log.ranks[place])
            if log.ranks[place] in stepped or not _FAILS.search(line) or _HARMLESS.search(line) or _SYSTEM.search(line):
                continue
            if (rule := rules.match(line)) is None or rule.role not in ("benign", "phase"):
                found.append(UnknownEnd(log.file, place + 1, line[:MOST_CHARS]))
                break
    return found


def buffered_ends(logs: Iterable[LogTable]) -> list[UnknownEnd]:
    """Exceptions that nothing caught, by Python's words, behind which a log without stamps has a few more steps.

    Python writes errors at once, and what it has printed to a file or pipe only as it ends: then the last steps stand
    behind the exception that followed them. More than a buffer's worth, or words of a good end, refute that.

    Examples
    --------
    >>> import numpy as np
    >>> lines = ["Traceback (most recent call last):", '  File "a.py", line 1', "OSError: gone", "step 1 loss 2.1"]
    >>> [one.line for one in buffered_ends([LogTable("a.log", np.full(4, np.nan), (None,) * 4, (None,) * 4, lines)])]
    ['OSError: gone']
    """
    return [end for log in logs if (end := _buffered_end(log)) is not None]


def _buffered_end(log: LogTable) -> UnknownEnd | None:
    chars, steps, raised = 0, 0, None
    for place in range(len(log.lines) - 1, -1, -1):
        line = log.lines[place]
        chars += len(line) + 1
        if chars > BUFFER_CHARS or np.isfinite(log.times_s[place]) or _WELL.search(line):
            return None
        if _TRACEBACK.match(line):
            before = log.lines[place - 1] if place else ""
            if raised is None or not steps or _SURVIVED.search(before):
                return None
            return UnknownEnd(log.file, raised + 1, log.lines[raised][:MOST_CHARS], buffered=True)
        if _RAISED.match(line):
            raised = place
        elif raised is None:
            steps += goes_on(line)
    return None
