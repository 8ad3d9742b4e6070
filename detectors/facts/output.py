"""What processes print as they fail: their last lines, and tracebacks with exception and frame.

A process that no hook reports (it failed before torch was imported, or is no Python) is known by its output alone.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable
from typing import Final

import msgspec

from trainwarden.detectors.job.window import LogLine
from trainwarden.detectors.logs.device_lines import Tasks
from trainwarden.detectors.logs.ends.endings import Ending, EndTable, ranks_of, shipped_endings
from trainwarden.log_text import behind_prefixes

MAX_WRITERS: Final = 4_096
TAIL_LINES: Final = 8
TAIL_CHARS: Final = 240
MAX_RAISED: Final = 8  # tracebacks of one writer that are kept, the newest
NEAR_S: Final = 60.0  # torchrun gives other ranks 30 s to end after the first has failed
_HEAD: Final = "Traceback (most recent call last):"
_FRAME: Final = re.compile(r'^\s{1,8}File "([^"]{1,400})", line ([0-9]{1,9})(?:, in (.{1,200}))?$')
_RAISED: Final = re.compile(r"^((?:[A-Za-z_]\w{0,80}\.){0,8}[A-Za-z_]\w{0,80})(?:: .*|:)?$")
_LIBRARY: Final = ("site-packages/", "dist-packages/", "/torch/", "/lib/python", "<frozen ", "<string>")
# A launcher's own words about a child that failed: the child's are the cause.
_OF_LAUNCHERS: Final = frozenset(
    {
        "ChildFailedError",
        "CalledProcessError",
        "ProcessRaisedException",
        "ProcessExitedException",
        "SignalException",
    }
)
_SIGNALS: Final = {number.value: number.name for number in signal.Signals}


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


class Word(msgspec.Struct):
    """What a launcher says of a process that ended by itself; `before` are the lines that it was said after."""

    ending: Ending
    rank: int | None
    before: list[str]
    time_s: float = 0.0

    @property
    def how(self) -> str:
        """In words.

        Examples
        --------
        >>> Word(shipped_endings().read("Rank 2 crashed with exit code 1."), 2, []).how
        'rank 2 exited with code 1, says its launcher (composer.crashed)'
        """
        who = f"rank {self.rank}" if self.rank is not None else "a process"
        number, code = self.ending.signal, self.ending.code
        how = f"exited with code {code}" if code is not None else "failed"
        if number is not None:
            how = f"was killed by {_SIGNALS.get(number, f'signal {number}')}"
        return f"{who} {how}, says its launcher ({self.ending.id})"


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
        self._nodes: set[str] = set()  # of the writers
        self._tables: dict[str, EndTable] = {}  # of launchers, by node and file
        self._word: Word | None = None
        self.tasks = Tasks()
        self.has_launcher = False
        """Whether a launcher of several processes has spoken."""

    def word(self, time_s: float) -> Word | None:
        """What a launcher says of the process that ended first, unless it was said long before `time_s`.

        What the job has outlived by so much is not how it ends.
        """
        word = self._word
        return word if word is not None and time_s - word.time_s <= NEAR_S else None

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
            self._nodes.add(line.node)
            self.tasks.hear(line.rank, line.node)
        text = behind_prefixes(line.line, line.rank)
        self._read_ending(writer, text, line)
        writer.time_s = max(writer.time_s, line.time_s)
        writer.tail.append(text[:TAIL_CHARS])
        if len(writer.tail) > TAIL_LINES:
            del writer.tail[0]
        if writer.unfinished or text.startswith(("Traceback", "  File ", "    File ")):
            _read_traceback(writer, text, line.time_s)

    def _read_ending(self, writer: Writer, text: str, line: LogLine) -> None:
        """Of several ends the first that a launcher calls the first, with its rank; else the first with a rank."""
        self.tasks.read(text)
        self.has_launcher |= self.tasks.are_agents
        ending = shipped_endings().read(text)
        if ending is None or ending.says == "done":
            return
        ending = ranks_of(ending, self.tasks)
        rank = writer.rank
        if rank is None and ending.local is not None and len(self._nodes) == 1:
            rank = ending.local
        ending, rank = self._tables.setdefault(f"{line.node}/{line.source}", EndTable()).read(ending, rank)
        self.has_launcher |= ending.first or bool(ending.ranks) or ending.says in {"stopped", "first", "row"}
        if not (ending.failed or ending.says == "block"):
            return
        known, new = self.word(line.time_s), Word(ending, rank, [*writer.tail], line.time_s)
        if known is None or _weight(new) > _weight(known):
            self._word = new if known is None else msgspec.structs.replace(new, before=known.before)

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
        self._nodes.clear()
        self._tables.clear()
        self.tasks, self._word, self.has_launcher = Tasks(), None, False


def _weight(word: Word) -> int:
    """How much a launcher's word says of who failed first."""
    return 0 if word.rank is None else 2 if word.ending.first else 1


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
