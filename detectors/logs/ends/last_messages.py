"""How a recorded job has ended, by its logs: what each rank said last, and what launchers say of ends.

A rank that names a cause and is not heard of again is believed however long ago that was: collectives wait ten minutes
and more before the others give up. Training that goes on, or a run that says that it is done, takes everything back.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np

from trainwarden.detectors.logs.device_lines import Tasks, as_said
from trainwarden.detectors.logs.ends.endings import MAX_RANKS, Ending, EndTable, ranks_of, shipped_endings
from trainwarden.detectors.logs.ends.line_times import began_s, times_of_lines
from trainwarden.detectors.logs.ends.standstills import standstill
from trainwarden.detectors.logs.ends.verdicts import OUTSIDE, Attempt, Cause, Order, Stall, Verdict, decide
from trainwarden.detectors.logs.findings import EVENT_KIND, OUTLIVED
from trainwarden.detectors.logs.loss_lines import goes_on
from trainwarden.detectors.logs.rules import LogRule, shipped_rules
from trainwarden.formats.text.trainers import step_line
from trainwarden.log_text import embedded, writer_of
from trainwarden.recorded.job import LogTable, RecordedJob
from trainwarden.recorded.log_stamps import Stamps
from trainwarden.records import EventRecord, IncidentKind

_FACTS: Final = frozenset({"process_exit", "exception", "fatal_signal", "heartbeat_lost", "job_end"})
MOST_LINES: Final = 1_000_000  # of one file, its last
_PIECE: Final = 16_384  # lines whose order is a list at a time
MAX_PREFIX: Final = 200
FEWEST_HEARD: Final = 6  # most of a node of eight
OUTLIVED_STEPS: Final = 3  # step lines of one writer after which nothing before them was the end
_TRACEBACK: Final = "Traceback (most recent call last)"
_FRAME: Final = " \t\u256d\u2500"  # rich draws a box around a traceback, its exception follows
_BLANK: Final = " \t"
_INSIDE: Final = frozenset(" \t\u2502\u2570")
_RAISED: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_.]{0,120})(?::|$)")
# What Python, its loggers and asyncio print of an exception that ends nothing: the traceback of it follows.
_CAUGHT: Final = re.compile(
    r"Exception ignored (?:in|on|while)\b|--- Logging error ---|Error in atexit\._run_exitfuncs|"
    r"Task exception was never retrieved|Exception in callback "
)
# A logger's line before a traceback that its program goes on without.
_GOES_ON: Final = re.compile(
    r"(?i)\b(?:skipp(?:ed|ing)|retry(?:ing)?|ignor(?:ed|ing)|(?:continu|proceed)(?:e|ing)\b.{0,40}\b(?:without|anyway)|"
    r"fall(?:s|ing)? back|will try again|non[- ]fatal)\b"
)
_IS_RAISED: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{0,120}(?:Error|Exception)\b")
_WARNING: Final = re.compile(r"\[?W[0-9]{3,4} [0-9]{2}:|WARNING\b")
_ONE_RANK: Final = re.compile(
    r"(?i)\blocal grad|before data-parallel|\bRank ([0-9]{1,6})[:,] |\bon rank ([0-9]{1,6})\b"
)
# Where Megatron says that it saw the value: "Device: 3, node: gd", "node gd, device 3".
_SEEN_ON: Final = (
    re.compile(r"[Dd]evice:? (?P<device>[0-9]{1,3}), node:? (?P<node>[A-Za-z0-9][A-Za-z0-9_.-]{0,62})"),
    re.compile(r"\bnode:? (?P<node>[A-Za-z0-9][A-Za-z0-9_.-]{0,62}), device:? (?P<device>[0-9]{1,3})"),
)
# Said by who lives, of those that are listed next.
_STALLS: Final = frozenset({"horovod.stall", "jax.barrier", "jax.unhealthy"})
# Said by who lives, with those that did not come in the same line: of gloo's barrier, of HCCL's exchange of addresses.
_ABSENT: Final = {
    "gloo.barrier": re.compile(r"\bRanks? ([0-9, ]{1,2000}) failed to pass"),
    "hccl.not_connected": re.compile(r"connect agent\[([0-9,]{1,2000})\]"),
}
# Horovod lists the tensors that a rank has not submitted, JAX the tasks that were not at the barrier.
_MISSING_RANK: Final = re.compile(r"(\d{1,6}): \[|/job:\w{1,40}/replica:\d{1,6}/task:(\d{1,6})$")
_REMOTE: Final = frozenset({"ray.task"})  # whose traceback follows without its first line
_NON_FINITE: Final = "numeric.non_finite"
# What a program may go on without, so it counts only where something ended by it.
_ENDS_SOME: Final = frozenset({"python.exception", *OUTSIDE})
# Namespace and pod, as a template of stern writes them.
_POD: Final = re.compile(r"\[[a-z0-9-]{1,63}\]\[([a-z0-9][a-z0-9-]{0,250}-[0-9]{1,6})\]")
_ENDS_NOTHING: Final = frozenset({"host_contention", "slow_link", "log_storm"})  # what a job survives


def last_word_events(job: RecordedJob, known: Iterable[EventRecord] = ()) -> list[EventRecord]:
    """What `last_words` finds, as events that `log_window` reads; none where events tell of processes themselves."""
    if not job.logs or any(event.kind in _FACTS for event in known):
        return []
    start_s = (job.span_s or (0.0,))[0]
    return [_event(verdict, job.name, number) for number, verdict in enumerate(last_words(job, start_s))]


def _event(verdict: Verdict, job: str, number: int) -> EventRecord:
    cause = verdict.cause
    fields: dict[str, Any] = {"finding": EVENT_KIND, "explained": verdict.explained}
    if cause is not None:
        fields |= {
            "kind": cause.kind, "severity": cause.severity, "rule": cause.rule, "line": cause.line[:300],
            "file": cause.file, "onset_s": cause.time_s,
        }  # fmt: skip
    return EventRecord(
        id=f"{EVENT_KIND}/{number}", job=job, node=(cause or verdict).node or "", time_s=verdict.at_s,
        kind=EVENT_KIND, rank=(cause or verdict).rank, device=cause.device if cause else None,
        message=verdict.then, fields=fields,
    )  # fmt: skip


def last_words(job: RecordedJob, start_s: float) -> list[Verdict]:
    """How the attempts of a recorded job ended, as far as its logs say; empty where they say nothing.

    Parameters
    ----------
    start_s : float
        Where a file without any stamp begins.
    """
    reader = _Reader(job.logs, start_s)
    found: list[Verdict] = []
    attempt = Attempt(heard=reader.heard)
    for order, table, place in reader.lines():
        attempt = _follow(reader, attempt, order, (table, place), found)
    last = decide(attempt, reader.last_s, at_end=True)
    if attempt.uneventful and (still := standstill(job.logs)) is not None:
        last = still
    return [*found, last] if last is not None else found


def _follow(reader: _Reader, attempt: Attempt, order: Order, where: tuple[int, int], found: list[Verdict]) -> Attempt:
    """Read one line; a new attempt where training went on after what ended or might have ended the last one."""
    line = reader.text(*where)
    if not reader.in_traceback(*where) and goes_on(line):
        if attempt.eventful or attempt.done:
            writer = (where[0], reader.tables[where[0]].ranks[where[1]])
            said = step_line(line)
            if attempt.went_on(writer, said.step if said else None, order) >= OUTLIVED_STEPS:
                if any(ending.failed for _, ending, _ in attempt.ends):
                    verdict = decide(attempt, order[0], at_end=False)
                    found.extend([verdict] if verdict is not None and verdict.cause is not None else [])
                elif attempt.causes or attempt.stuck_host:
                    found.append(Verdict(None, OUTLIVED, order[0]))
                return Attempt(heard=reader.heard)
        return attempt
    reader.read(attempt, order, where, line)
    return attempt


def _only_gap(heard: set[int]) -> set[int]:
    """The one rank between others of which no line is, if there is just one; of few ranks a log may hold a part.

    Examples
    --------
    >>> _only_gap({0, 1, 2, 4, 5, 6}), _only_gap({0, 1, 2, 5, 6, 7}), _only_gap({0, 2, 3, 4})
    ({3}, set(), set())
    """
    gaps = set(range(min(heard), max(heard))) - heard if FEWEST_HEARD <= len(heard) < MAX_RANKS else set()
    return gaps if len(gaps) == 1 else set()


def _note_absent(attempt: Attempt, order: Order, rule: LogRule, line: str) -> None:
    """Add the ranks that `line` says did not come to those of the lines before it."""
    if not attempt.stalls:
        attempt.stalls.append(Stall(order, rule.kind or "hang"))
    if (match := _ABSENT[rule.id].search(line)) is not None:
        attempt.stalls[-1].missing.update(int(one) for one in re.findall(r"[0-9]{1,6}", match[1])[:MAX_RANKS])


class _Reader:
    """Lines of all files in the order of their times, and what each of them means for the end of the job."""

    def __init__(self, tables: Sequence[LogTable], start_s: float) -> None:
        self.tables = tables
        self._times_s = times_of_lines(tables, start_s)
        self._rules, self._endings = shipped_rules(), shipped_endings()
        self._open: set[tuple[int, int | None]] = set()  # writers in the middle of a traceback
        self._tables: defaultdict[int, EndTable] = defaultdict(EndTable)  # of launchers, by file
        self._named: dict[int, int] = {}  # whose traceback comes next
        self._caught: set[tuple[int, int | None]] = set()  # whose next traceback ends nothing
        self._tasks = Tasks()
        self._stamps = Stamps()
        self._warns = False  # the line that is being read is a warning
        known = {one for table in tables for one in zip(table.ranks, table.nodes, strict=True)}
        for rank, node in known:
            self._tasks.hear(rank, node)
        heard = {rank for rank, _ in known if rank is not None}
        self.heard = frozenset(heard | _only_gap(heard))
        self.last_s = max((float(times_s[-1]) for times_s in self._times_s if times_s.size), default=start_s)

    def lines(self) -> Iterator[tuple[Order, int, int]]:
        """Order, file and place of every line."""
        newest = [range(max(0, times_s.size - MOST_LINES), times_s.size) for times_s in self._times_s]
        times_s = np.concatenate([np.zeros(0), *(all_s[-MOST_LINES:] for all_s in self._times_s)])
        numbers = np.repeat(np.arange(len(newest)), [len(one) for one in newest])
        places = np.concatenate([np.zeros(0, np.int64), *(np.arange(one.start, one.stop) for one in newest)])
        order = np.lexsort((places, numbers, times_s))
        for first in range(0, order.size, _PIECE):
            part = order[first : first + _PIECE]
            columns = times_s[part].tolist(), numbers[part].tolist(), places[part].tolist()
            for time_s, number, place in zip(*columns, strict=True):
                yield (time_s, number, place), number, place

    def text(self, table: int, place: int) -> str:
        """The line without its writer's prefixes."""
        log = self.tables[table]
        rest = writer_of(log.lines[place], log.label).rest
        self._warns = _WARNING.match(rest) is not None
        if np.isfinite(log.times_s[place]) and (stamp := self._stamps.read(rest)).end:
            after = rest[stamp.end :]
            # The indent shows which lines are a traceback's: one character parts it from the stamp.
            after = after[after[:1] in _BLANK :] if self.in_traceback(table, place) else after.lstrip(_BLANK)
            writer = writer_of(after, log.label)
            rest = writer.rest
            if not writer.named and (inner := embedded(rest)) is not None:  # behind a logger's name and level
                rest = inner.rest
            self._warns = self._warns or _WARNING.match(rest) is not None
        elif (inner := embedded(rest)) is not None:
            rest = inner.rest
            self._warns = self._warns or _WARNING.match(rest) is not None
        return rest

    def in_traceback(self, table: int, place: int) -> bool:
        """Whether the writer of a line is in the middle of a traceback."""
        return (table, self.tables[table].ranks[place]) in self._open

    def read(self, attempt: Attempt, order: Order, where: tuple[int, int], line: str) -> None:
        """Read a line that is no step."""
        if not line.strip():
            return
        table = self.tables[where[0]]
        rank = table.ranks[where[1]]
        key = (where[0], rank)
        self._tasks.read(line)
        if self._in_traceback(key, line):
            return
        if key in self._open:
            self._raised(attempt, order, where, line)
            return
        if self._catches(key, line):
            return
        ending = self._endings.read(line)
        if ending is not None:
            self._ended(attempt, order, where[0], rank, ending)
            return
        # Of the coordinator's own list: an order is a time, a file and a place.
        if attempt.stalls and attempt.stalls[-1].order[1] == where[0] and (match := _MISSING_RANK.match(line)):
            attempt.stalls[-1].missing.add(int(match[1] or match[2]))
            return
        attempt.counts.read(rank, line, order[0])
        rule = self._rules.match(line)
        if rule is not None and rule.id in _ABSENT:
            _note_absent(attempt, order, rule, line)
        elif rule is not None and rule.id in _STALLS:
            # Its writer is the coordinator, who waits like the others.
            attempt.stalls.append(Stall(order, rule.kind or "hang"))
        elif rule is not None:
            rule = as_said(rule, line)
            self._said(attempt, order, where, line, rule)

    def _catches(self, key: tuple[int, int | None], line: str) -> bool:
        """Note whether the next traceback of a writer ends nothing; whether `line` says just that."""
        if _CAUGHT.search(line, 0, MAX_PREFIX):
            self._caught.add(key)
            return True
        if line[:1] not in _INSIDE:  # asyncio names the future before the traceback
            self._caught.discard(key)
            if _GOES_ON.search(line, 0, MAX_PREFIX) and not _IS_RAISED.match(line):
                self._caught.add(key)
        return False

    def _in_traceback(self, key: tuple[int, int | None], line: str) -> bool:
        """Whether the line is one of a traceback, which is open until its exception."""
        if line.lstrip(_FRAME).startswith(_TRACEBACK):
            self._open.add(key)
            return True
        return key in self._open and line[:1] in _INSIDE

    def _raised(self, attempt: Attempt, order: Order, where: tuple[int, int], line: str) -> None:
        """The exception that ends a traceback."""
        table = self.tables[where[0]]
        key = (where[0], table.ranks[where[1]])
        self._open.discard(key)
        if key in self._caught or not _RAISED.match(line):
            return
        ending = self._endings.read(line)
        if ending is not None:
            self._ended(attempt, order, where[0], key[1], ending)
            return
        rule = self._rules.match(line)
        told = rule is not None and rule.role == "root" and rule.class_ in "HNS" and rule.severity != "sev3"
        if rule is not None and (rule.role in {"cascade", "phase"} or told):
            self._said(attempt, order, where, line, rule)
            if rule.id in _ABSENT:
                _note_absent(attempt, order, rule, line)
            elif rule.id in _STALLS:
                attempt.stalls.append(Stall(order, rule.kind or "hang"))
            elif rule.role == "cascade":
                attempt.fallen.append(self._named_cause(order, where, line, rule, raised=True))
            return
        self._cause(attempt, order, where, line, rule, raised=True)

    def _said(self, attempt: Attempt, order: Order, where: tuple[int, int], line: str, rule: LogRule) -> None:
        """A line of its own."""
        rank = self.tables[where[0]].ranks[where[1]]
        if rule.role == "phase":
            attempt.stopped_by = attempt.stopped_by or order
        elif rule.role == "cascade":
            if self._warns:
                attempt.warned = True
            else:
                attempt.followed.append(((min(order[0], began_s(line, order[0])), *order[1:]), line))
                if rank is not None:
                    attempt.waited.add(rank)
                    attempt.stuck.update({rank} if rule.kind == "hang" else ())
                attempt.gave_up = attempt.gave_up or rule.kind == "hang"
        elif rule.role == "root" and rule.class_ in "HNS":
            attempt.stuck_host = attempt.stuck_host or rule.kind == "host_contention"
            if rule.kind not in _ENDS_NOTHING and rule.severity != "sev3":
                attempt.devices.append((order[0], rank))
        elif rule.role == "root" or rule.id in _ENDS_SOME:
            # Of a line alone nobody knows who caught it, but torch's hook for what nothing has caught.
            whole = self.tables[where[0]].lines[where[1]]
            uncaught = rule.id == "python.exception" and whole.endswith(f"[rank{rank}]: {line}")
            self._cause(attempt, order, where, line, rule, raised=uncaught)

    def _cause(
        self, attempt: Attempt, order: Order, where: tuple[int, int], line: str,
        rule: LogRule | None, *, raised: bool,
    ) -> None:  # fmt: skip
        attempt.causes.append(self._named_cause(order, where, line, rule, raised=raised))

    def _named_cause(
        self, order: Order, where: tuple[int, int], line: str, rule: LogRule | None, *, raised: bool
    ) -> Cause:
        table = self.tables[where[0]]
        kind: IncidentKind = "exception"
        # What only whoever dies of it may be told by: an exception of the infrastructure, which others retry.
        died_of = rule is not None and raised and rule.class_ == "S"
        if rule is not None and (rule.role in {"root", "cascade"} or died_of) and rule.kind is not None:
            kind = rule.kind
        elif rule is not None and rule.id == _NON_FINITE and _ONE_RANK.search(line):
            kind = "silent_corruption"
        rank = table.ranks[where[1]]
        seen = (
            next((match for one in _SEEN_ON if (match := one.search(line))), None)
            if kind == "silent_corruption"
            else None
        )
        if rank is None and raised and where[0] in self._named:
            rank = self._named.pop(where[0])
        if rank is None and kind == "silent_corruption":  # whoever saw it says so
            rank = next((int(one[1] or one[2]) for one in _ONE_RANK.finditer(line) if one[1] or one[2]), None)
        pod = _POD.match(table.lines[where[1]]) if rank is None else None
        return Cause(
            order=order, rank=rank,
            node=table.nodes[where[1]] or (seen["node"] if seen else pod[1] if pod else None),
            device=seen["device"] if seen else None, file=table.file, line=table.lines[where[1]],
            rule=rule.id if rule is not None else "python.exception", kind=kind,
            severity=rule.severity if rule is not None and rule.role == "root" else "sev2", raised=raised,
            left=len(table.lines) - where[1] - 1,
        )  # fmt: skip

    def _ended(self, attempt: Attempt, order: Order, table: int, rank: int | None, ending: Ending) -> None:
        if ending.id in _REMOTE:
            self._open.add((table, rank))
        ending, named = self._tables[table].read(ranks_of(ending, self._tasks), rank)
        if ending.says == "done":
            attempt.done = order
        elif ending.says in {"failed", "stopped", "block"}:
            if ending.says == "block" and ending.ranks:
                self._named[table] = ending.ranks[0]
            attempt.ends.append((order, ending, named))
