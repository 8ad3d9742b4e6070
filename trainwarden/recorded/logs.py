"""Log files of a recorded folder: plain lines or JSON lines, with the time, node and rank that each line shows."""

from __future__ import annotations

import codecs
import math
import re
import tempfile
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

import msgspec
import numpy as np

from trainwarden.errors import DataError
from trainwarden.log_text import Writer, clean, embedded, label_of, unfolded, writer_of
from trainwarden.recorded.files import bounded_lines, mistake, opened, reading
from trainwarden.recorded.job import Floats, LogTable
from trainwarden.recorded.joining.read_log import ReadLog
from trainwarden.recorded.log_stamps import Clock, Stamps, strays, zone_s
from trainwarden.recorded.stored_lines import stored
from trainwarden.records import MAX_LINE_CHARS, Rank

MAX_LINES = 100_000_000
# Of one state of a line this much is kept; enough for MAX_LINE_CHARS of UTF-8 and the terminal codes between them.
_MAX_STATE_BYTES = 4 * MAX_LINE_CHARS
_PIECE_BYTES = 65_536
_IN_MEMORY_BYTES = 64 * 1024 * 1024
GAP: Final = 100  # blank lines in a row; nobody writes so many on purpose
_MAX_JSON_LINE_BYTES = 4 * 1024 * 1024
# Times since the epoch that a year may be taken from: 1973 to 5138. A recording's own clock starts near zero.
_EPOCH_S = (1e8, 1e11)

# torch's watchdog, DeepSpeed and OLMo: [E ProcessGroupNCCL.cpp:828] [Rank 3], [INFO] [logging.py:96:log_dist] [Rank 0],
# CRITICAL [olmo.util:158, rank=6].
_GROUP = re.compile(r" {0,2}(?:[A-Z]{4,8}[ \t]{1,8})?\[([^\[\]]{0,120})\]:?")
_REST_OF_GROUP = re.compile(r"[^\[\]]{0,120}\]")
_RANK_IN_GROUP = re.compile(
    r"(?:PG [A-Za-z0-9_() :-]{1,60} |[A-Za-z0-9_.]{1,80}:[0-9]{1,6}, )?[Rr]ank[ :=]{0,2}([0-9]{1,6})"
)
# What torchrun says of a process that has ended, in a line and in a table: often nobody else names its rank.
_DIED = re.compile(r"failed \(exitcode: -?[0-9]{1,3}\) local_rank: ([0-9]{1,6}) \(pid: [0-9]{1,10}\)")
_ROW = re.compile(r" {0,4}rank {1,8}: ([0-9]{1,6}) \(local_rank: ([0-9]{1,6})\)$")
_OF_ROW = re.compile(r" {0,4}(?:exitcode|error_file|traceback) {0,4}: (Signal )?")
_NUMBERED = re.compile(r" {0,6}([0-9]{1,6}): ")
_RANK_IN_NAME = re.compile(r"rank[-_.]?([0-9]{1,6})(?![0-9])")
_MAX_PREFIXES = 4
_DAY_S = 86_400.0
_HALF_DAY_S = _DAY_S / 2
_HALF_YEAR_S = 182 * _DAY_S
# Syslog and journalctl: host, then the program with its process id, or the kernel.
_HOST = re.compile(
    r" ([A-Za-z0-9][A-Za-z0-9_.-]{0,62}) (?:[A-Z]{3,8} )?(?:kernel|[A-Za-z0-9_./-]{1,48}\[[0-9]{1,10}\]): "
)
_NCCL_HOST = re.compile(r" {0,2}([A-Za-z0-9][A-Za-z0-9_.-]{0,62}):[0-9]{1,10}:[0-9]{1,10} \[[0-9]{1,3}\] ")
# kubectl describe pod: its parts begin at the left, and say in whose node it is in one line, whose address is left
# out once the pod is gone.
_POD_NODE = re.compile(r"Node: {1,20}([a-z0-9][a-z0-9.-]{0,252})/[0-9A-Fa-f.:]{0,45}$")
_OF_POD = ("Name: ", "Node: ")
_NODE_NAME = re.compile(r"Name: {1,40}([a-z0-9][a-z0-9.-]{0,252})$")  # of kubectl describe node, which has roles too
_UCX_HOST = re.compile(r" {0,2}\[([A-Za-z0-9][A-Za-z0-9_.-]{0,62}):[0-9]{1,10}(?::[0-9]{1,10}){1,2}\] ")
_LEVELS = frozenset({"DEBUG", "INFO", "NOTICE", "WARN", "WARNING", "ERROR", "CRITICAL", "FATAL"})


class LogRow(msgspec.Struct):
    """A line, and what is known of it beside its text."""

    line: str
    time_s: float | None = None
    node: str | None = None
    rank: Rank | None = None


def is_epoch(time_s: float) -> bool:
    """Whether a time can be one since the Unix epoch, so that a date may be compared with it."""
    return _EPOCH_S[0] <= time_s < _EPOCH_S[1]


def read_log(path: Path, file: str, reference_s: float | None = None) -> ReadLog:
    """Read a log file; an empty one is a source that said nothing.

    Parameters
    ----------
    path : Path
        ``.txt`` or ``.jsonl``, also with ``.gz``.
    file : str
        Its name in the folder.
    reference_s : float or None
        A time of the job; where stamps have no year it tells which one is meant.

    Raises
    ------
    DataError
        One sentence with file and line.
    """
    reference_s = reference_s if reference_s is not None and is_epoch(reference_s) else None
    with reading(file), opened(path) as stream:
        if _is_json(path):
            return _read_json(stream, file, reference_s)
        return _read_text(stream, file, reference_s)


def read_logs(folder: Path, names: Sequence[str], reference_s: float | None) -> list[ReadLog]:
    """Read the log files of one job; stamps without a year take the year of the others, else of the file itself.

    Raises
    ------
    DataError
        One sentence with file and line.
    """
    read = [read_log(folder / file, file, reference_s) for file in names]
    dated = [
        np.nanmax(log.table.times_s) for log in read if not log.year_guessed and np.isfinite(log.table.times_s).any()
    ]
    known_s = max((float(one) for one in dated if is_epoch(float(one))), default=None)
    for place, file in enumerate(names):
        if read[place].year_guessed and not read[place].day_guessed:
            # A file's last change is after all that it says: its stamps are of the year up to then.
            near_s = known_s if known_s is not None else (folder / file).stat().st_mtime - _HALF_YEAR_S
            read[place] = _once_more(read[place], folder / file, near_s)
    known_s = max((time_s for log in read if not log.day_guessed and is_epoch(time_s := _newest_s(log))), default=None)
    for place, file in enumerate(names):
        if read[place].day_guessed:
            read[place] = _on_a_day(read[place], folder / file, known_s)
    return read


def _newest_s(log: ReadLog) -> float:
    times_s = log.table.times_s
    return float(np.nanmax(times_s)) if np.isfinite(times_s).any() else math.nan


def _on_a_day(log: ReadLog, path: Path, known_s: float | None) -> ReadLog:
    """The log whose stamps are times of day, so that it ends on the day of the other logs, else of its last change."""
    end_s = known_s if known_s is not None else path.stat().st_mtime - _HALF_DAY_S
    read = _once_more(log, path, end_s)
    late_s = _DAY_S * round((_newest_s(read) - end_s) / _DAY_S) if np.isfinite(_newest_s(read)) else 0.0
    return _once_more(log, path, end_s - late_s) if late_s else read


def _once_more(log: ReadLog, path: Path, near_s: float) -> ReadLog:
    """The log with the year of its stamps, by a time near them."""
    file = log.table.file
    if _is_json(path):
        return read_log(path, file, near_s)
    return _read_lines(file, log.table.lines, near_s if is_epoch(near_s) else None, log.table.label, _rank_of(file))


def _is_json(path: Path) -> bool:
    return path.name.removesuffix(".gz").endswith(".jsonl")


def _rank_of(file: str) -> int | None:
    named = _RANK_IN_NAME.search(file)
    return int(named[1]) if named else None


def _lines(stream: BinaryIO, file: str) -> Iterator[bytes]:
    """Lines without their newline; of a line that is too long to keep, its last state between carriage returns."""
    number = 0
    while piece := stream.readline(_PIECE_BYTES):
        number += 1
        if number > MAX_LINES:
            raise DataError(f"{file} line {number} is one more than the {MAX_LINES:,} lines that are read")
        if piece.endswith(b"\n") or len(piece) < _PIECE_BYTES:
            yield piece.removesuffix(b"\n")
            continue
        before, state = b"", b""
        while piece:
            *ended, rest = piece.removesuffix(b"\n").split(b"\r")
            for part in ended:
                before = (state + part)[:_MAX_STATE_BYTES] if (state + part).strip() else before
                state = b""
            state = (state + rest)[:_MAX_STATE_BYTES]
            piece = b"" if piece.endswith(b"\n") else stream.readline(_PIECE_BYTES)
        yield state if state.strip() else before


def without_gaps(lines: Iterable[bytes]) -> Iterator[bytes]:
    """`lines` with no more than `GAP` blank ones in a row: a small compressed file can hold millions.

    Examples
    --------
    >>> len(list(without_gaps([b"a", *[b""] * 1000, b"b"]))) == GAP + 2
    True
    """
    blank = 0
    for line in lines:
        blank = 0 if line.strip() else blank + 1
        if blank <= GAP:
            yield line


def _as_utf8(stream: BinaryIO) -> BinaryIO:
    """`stream`, or what it holds as UTF-8 where it begins with the mark of UTF-16, as shells of Windows write it."""
    mark = stream.read(2)
    if mark not in {codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE}:
        stream.seek(0)
        return stream
    decoder = codecs.getincrementaldecoder("utf-16")("replace")
    decoder.decode(mark)
    whole = cast(BinaryIO, tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY_BYTES))  # noqa: SIM115 - read by the caller
    while piece := stream.read(_PIECE_BYTES):
        whole.write(decoder.decode(piece).encode("utf-8", "replace"))
    whole.seek(0)
    return whole


def _read_text(stream: BinaryIO, file: str, reference_s: float | None) -> ReadLog:
    with _as_utf8(stream) as text:
        lines = stored(part for line in without_gaps(_lines(text, file)) for part in unfolded(clean(line)))
    return _read_lines(file, lines, reference_s, label_of(lines), _rank_of(file))


def _read_lines(
    file: str,
    lines: Sequence[str],
    reference_s: float | None,
    label: re.Pattern[str] | None = None,
    rank: int | None = None,
) -> ReadLog:
    """Read lines; once more if a stamp without a year came before the file itself said which year it is."""
    stamps = Stamps(reference_s)
    found = _LineReader(stamps, label=label, rank=rank).read(file, lines)
    if stamps.guessed and stamps.dated_s is not None:
        stamps = Stamps(stamps.dated_s)
        found = _LineReader(stamps, label=label, rank=rank).read(file, lines)
    if stamps.leap_s is not None and reference_s is not None and abs(stamps.leap_s - reference_s) > _HALF_YEAR_S:
        found = _LineReader(Stamps(stamps.leap_s), label=label, rank=rank).read(file, lines)
    return replace(found, year_guessed=stamps.guessed, day_guessed=stamps.day_guessed)


def _read_json(stream: BinaryIO, file: str, reference_s: float | None) -> ReadLog:
    decoder = msgspec.json.Decoder(LogRow)
    rows: list[LogRow] = []
    for number, line in enumerate(bounded_lines(stream, file, _MAX_JSON_LINE_BYTES), 1):
        if number > MAX_LINES:
            raise DataError(f"{file} line {number} is one more than the {MAX_LINES:,} lines that are read")
        if not line.strip():
            rows.append(LogRow(""))
            continue
        try:
            row = decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            what, key = mistake(error)
            place = f"{file} line {number}, column {key}" if key else f"{file} line {number}"
            raise DataError(f"{place}: {what}") from error
        if row.time_s is not None and not math.isfinite(row.time_s):
            raise DataError(f"{file} line {number}, column time_s: the time is not finite")
        rows.append(row)
    return read_rows(rows, file, reference_s)


def read_rows(rows: Sequence[LogRow], file: str, reference_s: float | None = None) -> ReadLog:
    """The log that `rows` are: what a row says goes before what its line shows."""
    lines = [clean(row.line.encode("utf-8", "replace")) for row in rows]
    found = _read_lines(file, lines, reference_s)
    table = found.table
    times_s = np.array([math.nan if row.time_s is None else row.time_s for row in rows], np.float64)
    given = ~np.isnan(times_s)
    merged = LogTable(
        file,
        np.where(given, times_s, table.times_s),
        tuple(row.node or node for row, node in zip(rows, table.nodes, strict=True)),
        tuple(rank if row.rank is None else row.rank for row, rank in zip(rows, table.ranks, strict=True)),
        lines,
    )
    local = {place: rank for place, rank in (found.local or {}).items() if rows[place].rank is None}
    from_boot = tuple(place for place in found.from_boot if not given[place])
    return ReadLog(merged, from_boot, local, found.year_guessed)


class _LineReader:
    """Takes lines apart: prefixes that name a rank or node, before or after the stamp, then the node."""

    def __init__(self, stamps: Stamps, *, label: re.Pattern[str] | None, rank: int | None) -> None:
        self._stamps = stamps
        self._label = label
        self._rank = rank
        self._pod_node: str | None = None  # of the pod that is described
        self._named: str | None = None  # what is described, as its first line says
        self._events = False  # in the table of its events, whose rows are indented
        self._row: int | None = None  # whose row of torchrun's table is read

    def read(self, file: str, lines: Sequence[str]) -> ReadLog:
        stamped, stamps_s = array("q"), array("d")
        clocks: list[Clock] = []
        nodes: list[str | None] = [None] * len(lines)
        ranks: list[int | None] = [self._rank] * len(lines)
        local: dict[int, int] = {}
        same: dict[Any, Any] = {}  # one text and one number for all lines of a node or rank
        for place, line in enumerate(lines):
            if not line:
                continue
            writer = writer_of(line, self._label)
            rank, at_rank, rest, node = writer.rank, writer.local, writer.rest, writer.node
            stamp = self._stamps.read(rest)
            if not stamp.end and rank is None and (label := _NUMBERED.match(rest)):
                # A single number and colon is a label at least where a stamp follows.
                stamp = self._stamps.read(rest[label.end() :])
                rank, rest = (int(label[1]), rest[label.end() :]) if stamp.end else (None, rest)
            if stamp.end:
                stamped.append(place)
                stamps_s.append(stamp.time_s)
                clocks.append(stamp.clock)
                after = rest[stamp.end : stamp.end + 200]
                inner = self._behind(after, named=rank is not None)
                node = _host(after) or inner.node or writer.node
                rank, at_rank = (inner.rank, inner.local) if inner.named else (rank, at_rank)
            elif rank is None and (deeper := embedded(rest)) is not None:
                rank, rest = deeper.rank, deeper.rest
            if rank is None:
                rank = _rank_in_groups(rest[stamp.end : stamp.end + 300])
            if rank is None and at_rank is None:
                rank, at_rank = self._died(rest)
            node = node or self._node(rest, stamp.end)
            nodes[place] = same.setdefault(node, node)
            if rank is not None:
                ranks[place] = same.setdefault(rank, rank)
            elif at_rank is not None and self._rank is None:
                local[place] = at_rank
        times_s = _times_s(len(lines), stamped, stamps_s, clocks)
        from_boot = tuple(place for place, clock in zip(stamped, clocks, strict=True) if clock == "boot")
        return ReadLog(LogTable(file, times_s, tuple(nodes), tuple(ranks), lines, self._label), from_boot, local)

    def _behind(self, after: str, *, named: bool) -> Writer:
        """Who wrote what stands behind a stamp: torch's prefix may follow a logger's name and level."""
        inner = writer_of(after.lstrip(" \t"), self._label)
        if named or inner.named or (deeper := embedded(after)) is None:
            return inner
        deeper.node = deeper.node or inner.node
        return deeper

    def _node(self, text: str, start: int) -> str | None:
        """Node that NCCL's prefix names, or the last lines of `kubectl describe pod`."""
        if self._events and not text.startswith(" "):
            self._pod_node, self._events = None, False
        if text.startswith(_OF_POD):
            pod = _POD_NODE.match(text)
            self._pod_node = pod[1] if pod else None
            name = _NODE_NAME.match(text)
            self._named = name[1] if name else None
        elif text.startswith("Roles: ") and self._named:
            self._pod_node = self._named
        elif text.startswith("Events:"):
            self._events = True
        if " NCCL " in text[:200] and (match := _NCCL_HOST.match(text, start)):
            return match[1]
        if text.startswith("[", start) and (match := _UCX_HOST.match(text, start)):
            return match[1]
        return self._pod_node

    def _died(self, text: str) -> tuple[int | None, int | None]:
        """Rank and local rank of the process whose death a launcher tells of in this line."""
        if "local_rank: " in text:
            row, line = _ROW.match(text), _DIED.search(text)
            self._row = int(row[1]) if row else None
            return None, int(line[1]) if line else None
        if self._row is None:
            return None, None
        of_row, rank = _OF_ROW.match(text), self._row
        self._row = rank if of_row else None
        return rank if of_row and of_row[1] else None, None


def _rank_in_groups(text: str) -> int | None:
    """Rank that one of the leading groups in brackets names; a stamp may have ended inside the first."""
    if "ank" not in text:
        return None
    rest = _REST_OF_GROUP.match(text)
    start = rest.end() if rest else 0
    for _ in range(_MAX_PREFIXES):
        group = _GROUP.match(text, start)
        if group is None:
            return None
        if named := _RANK_IN_GROUP.fullmatch(group[1]):
            return int(named[1])
        start = group.end()
    return None


def _times_s(size: int, stamped: Sequence[int], stamps_s: array[float], clocks: Sequence[Clock]) -> Floats:
    """Times of `size` lines, NaN where no stamp is or one that is no time of its line."""
    times_s = np.full(size, np.nan)
    on_utc = _on_utc(np.frombuffer(stamps_s), clocks) if clocks else np.zeros(0)
    times_s[np.array(stamped, np.int64)] = np.where(strays(clocks, on_utc), np.nan, on_utc)
    return times_s


def _on_utc(stamps_s: Floats, clocks: Sequence[Clock]) -> Floats:
    """Times of a file's stamps, those without a zone shifted by the zone that the others show."""
    ahead_s = zone_s(stamps_s, clocks)
    unzoned = np.fromiter((clock == "unzoned" for clock in clocks), np.bool_, len(clocks))
    return np.where(unzoned, stamps_s - ahead_s, stamps_s)


def _host(after: str) -> str | None:
    match = _HOST.match(after)
    return match[1] if match and match[1] not in _LEVELS else None
