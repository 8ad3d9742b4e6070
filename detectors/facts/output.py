"""What processes print as they fail: their last lines, and tracebacks with exception and frame.

A process that no hook reports (it failed before torch was imported, or is no Python) is known by its output alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from trainwarden.detectors.job.window import LogLine
from trainwarden.detectors.logs.device_lines import AGENT
from trainwarden.log_text import behind_prefixes

MAX_WRITERS: Final = 4_096
TAIL_LINES: Final = 8
TAIL_CHARS: Final = 240
MAX_RAISED: Final = 8  # tracebacks of one writer that are kept, the newest
_HEAD: Final = "Traceback (most recent call last):"
_FRAME: Final = re.compile(r'^\s{1,8}File "([^"]{1,400})", line ([0-9]{1,9})(?:, in (.{1,200}))?$')
_RAISED: Final = re.compile(r"^((?:[A-Za-z_]\w{0,80}\.){0,8}[A-Za-z_]\w{0,80})(?:: .*|:)?$")
_LIBRARY: Final = ("site-packages/", "dist-packages/", "/torch/", "/lib/python", "<frozen ", "<string>")
# A launcher's own words about a child that failed: the child's are the cause.
_OF_LAUNCHERS: Final = frozenset(
    {"ChildFailedError", "CalledProcessError", "ProcessRaisedException", "SignalException"}
)
_ROOT_CAUSE: Final = "Root Cause (first observed failure)"
_TABLE_RANK: Final = re.compile(r"^\s*rank\s*: ([0-9]{1,6}) \(local_rank: [0-9]{1,6}\)")


class Raised(msgspec.Struct):
    """One exception that was printed with its traceback; `time_s` is when its line was read."""

    text: str
    frame: str
    time_s: float
    node: str
    rank: int | None


class Writer(msgspec.Struct):
    """One stream of output: a rank's, or that of the whole command."""

    node: str
    rank: int | None
    time_s: float = 0.0
    tail: list[str] = msgspec.field(default_factory=list)
    unfinished: int = 0  # tracebacks that have begun: those of several processes may be mixed
    frame: str = ""
    own_frame: str = ""
    raised: list[Raised] = msgspec.field(default_factory=list)


class Output:
    """The last lines and tracebacks of every writer of a job.

    Examples
    --------
    >>> output = Output()
    >>> lines = (_HEAD, '  File "train.py", line 3, in <module>', "    import dta", "ModuleNotFoundError: no 'dta'")
    >>> output.read(LogLine("n", "logs/job.log", None, line, 5.0) for line in lines)
    >>> (one,) = output.raised(since_s=0.0)
    >>> one.text, one.frame
    ("ModuleNotFoundError: no 'dta'", 'train.py:3 in <module>')
    """

    def __init__(self) -> None:
        self._writers: dict[str, Writer] = {}
        self._in_table = False
        self.root_rank: int | None = None
        """The rank that torchrun's table names as the first to fail."""
        self.has_launcher = False
        """Whether a launcher of several processes has spoken."""

    def read(self, lines: Iterable[LogLine]) -> None:
        """Read new log lines; the kernel's are no output of the job."""
        for line in lines:
            if line.source != "kmsg":
                self._read(line)

    def _read(self, line: LogLine) -> None:
        key = f"{line.node}/{line.source}/{line.rank}"
        writer = self._writers.get(key)
        if writer is None:
            if len(self._writers) >= MAX_WRITERS:
                return
            writer = self._writers[key] = Writer(line.node, line.rank)
        text = behind_prefixes(line.line, line.rank)
        writer.time_s = max(writer.time_s, line.time_s)
        writer.tail.append(text[:TAIL_CHARS])
        if len(writer.tail) > TAIL_LINES:
            del writer.tail[0]
        if writer.unfinished or text.startswith(("Traceback", "  File ", "    File ")):
            _read_traceback(writer, text, line.time_s)
        self._read_table(text)

    def _read_table(self, text: str) -> None:
        if _ROOT_CAUSE in text:
            self._in_table = self.has_launcher = True
        elif self._in_table and (found := _TABLE_RANK.match(text)):
            self.root_rank, self._in_table = int(found[1]), False
        elif "ChildFailedError" in text or AGENT in text:
            self.has_launcher = True

    def raised(self, *, since_s: float) -> list[Raised]:
        """Exceptions that were read at `since_s` or later, newest first."""
        kept = [one for writer in self._writers.values() for one in reversed(writer.raised) if one.time_s >= since_s]
        return sorted(kept, key=lambda one: -one.time_s)

    def tail(self, rank: int | None) -> list[str]:
        """The last lines of `rank`, or of whoever has written last if it has written none."""
        own = [one for one in self._writers.values() if rank is not None and one.rank == rank]
        newest = max(own or self._writers.values(), key=lambda one: one.time_s, default=None)
        return [] if newest is None else [text for text in newest.tail if text.strip()]

    def tails(self) -> list[str]:
        """The last lines of every writer."""
        return [text for one in self._writers.values() for text in one.tail]

    def forget(self) -> None:
        """Other processes run now."""
        self._writers.clear()
        self._in_table, self.root_rank, self.has_launcher = False, None, False

    def state(self) -> dict[str, Any]:
        """Plain data for `restore`."""
        table = [self._in_table, self.root_rank, self.has_launcher]
        return {"writers": self._writers, "table": table}

    def restore(self, plain: dict[str, Any]) -> None:
        """Go on from what `state` gave; memories of before are without.

        Raises
        ------
        msgspec.ValidationError
            If it is no such state.
        """
        self._writers = msgspec.convert(plain.get("writers", {}), dict[str, Writer])
        in_table, root_rank, has_launcher = plain.get("table", (False, None, False))
        self._in_table, self.has_launcher = bool(in_table), bool(has_launcher)
        self.root_rank = msgspec.convert(root_rank, int | None)


def _read_traceback(writer: Writer, text: str, time_s: float) -> None:
    """One line of what may be a traceback."""
    if text.startswith(_HEAD):
        writer.unfinished += 1
        return
    if found := _FRAME.match(text):
        writer.unfinished = writer.unfinished or 1  # a syntax error has frames without a head
        writer.frame = f"{found[1].rpartition('/')[2]}:{found[2]}" + (f" in {found[3]}" if found[3] else "")
        if not any(mark in found[1] for mark in _LIBRARY):
            writer.own_frame = writer.frame
        return
    if text.startswith((" ", "\t")) or not text.strip():
        return
    name = found[1] if (found := _RAISED.match(text)) else ""
    if not writer.frame or not (name[:1].isupper() or "." in name or "rror" in name):
        return  # another process's line in between
    writer.unfinished = max(0, writer.unfinished - 1)
    if name.rpartition(".")[2] not in _OF_LAUNCHERS:
        frame = writer.own_frame or writer.frame
        writer.raised.append(Raised(text[:2_000], frame, time_s, writer.node, writer.rank))
        del writer.raised[:-MAX_RAISED]
    if not writer.unfinished:
        writer.frame = writer.own_frame = ""
