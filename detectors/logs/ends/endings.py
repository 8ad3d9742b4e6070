"""How launchers say that a rank has ended, and trainers that the run is done: the table `endings.toml`, one matcher."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import re2

from trainwarden.detectors.logs.device_lines import Tasks
from trainwarden.errors import ConfigError
from trainwarden.log_shapes import may_fit
from trainwarden.records import MAX_LINE_CHARS

ENDINGS_FILE: Final = Path(__file__).with_name("endings.toml")
MAX_RANKS: Final = 4096  # of one line
_SIGNALS: Final = {
    "hangup": 1, "illegal instruction": 4, "aborted": 6, "bus error": 7, "floating point exception": 8, "killed": 9,
    "out of memory": 9, "segmentation fault": 11, "terminated": 15, "hup": 1, "int": 2, "ill": 4, "abrt": 6, "bus": 7,
    "fpe": 8, "kill": 9, "segv": 11, "term": 15, "abort": 6,
    "illegal hardware instruction": 4,
}  # fmt: skip
_STOPS: Final = frozenset({1, 2, 15})  # what whoever ends a process sends first
_BY_SHELL: Final = 128
_PREFIXED: Final = frozenset({"lightning.child"})  # the rank is read as the prefix of the line
_OF_ROW: Final = frozenset({"mpirun.code"})  # words of many programs, which count behind the launcher's row alone
TASKS: Final = frozenset({"srun.exit", "srun.signal"})

Says = Literal["failed", "stopped", "row", "done", "first", "block", "note"]


class EndingRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One row of the table: see the head of `endings.toml`."""

    id: str
    pattern: str
    says: Says
    sample: str
    source: str
    first: bool = False


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """What one line says of the end of ranks.

    Attributes
    ----------
    says : str
        ``failed``: processes ended by themselves; ``stopped``: the launcher ends the others; ``done``: the run is done;
        ``first``, ``row``: parts of a table, of its first failure and of whom the next line is; ``block``: the next
        traceback is of that rank; ``note``: more of a table, which says nothing by itself.
    ranks : tuple of int
        Global ranks; empty if the line names none.
    code : int or None
        Exit code.
    signal : int or None
        By which they died; None if by none.
    first : bool
        The launcher names who was first.
    """

    id: str
    says: Says
    ranks: tuple[int, ...] = ()
    local: int | None = None
    pid: int | None = None
    node: str | None = None
    code: int | None = None
    signal: int | None = None
    first: bool = False

    @property
    def failed(self) -> bool:
        """Whether a process ended by itself, and not because it was told to or had nothing more to do."""
        return self.says == "failed" and self.code != 0 and self.signal not in _STOPS


class Endings:
    """All rows as one automaton (RE2's set), then the groups of the first row that fits: linear time.

    Raises
    ------
    ConfigError
        If the table is wrong; the message names the row.

    Examples
    --------
    >>> said = shipped_endings().read("srun: error: ge: tasks 2-3: Exited with exit code 1")
    >>> said.ranks, said.code, said.node, said.failed
    ((2, 3), 1, 'ge', True)
    >>> shipped_endings().read("srun: error: ge: tasks 0-1,3: Terminated").failed
    False
    >>> shipped_endings().read("step 12 loss 3.2") is None
    True
    """

    def __init__(self, path: Path = ENDINGS_FILE) -> None:
        options = re2.Options()
        options.log_errors = False
        options.max_mem = 64 << 20
        self._set = re2.Set.SearchSet(options)
        self.rows: list[EndingRow] = []
        self._patterns: list[Any] = []
        for entry in _entries(path):
            try:
                row = msgspec.convert(entry, EndingRow)
                self._set.Add(row.pattern)
                self._patterns.append(re2.compile(row.pattern, options))
            except (msgspec.ValidationError, re2.error) as error:
                name = entry.get("id", "?") if isinstance(entry, dict) else "?"
                raise ConfigError(f"{path}: ending {name}: {error}") from error
            self.rows.append(row)
        self._set.Compile()
        self._may_fit = may_fit([row.pattern for row in self.rows], options)

    def read(self, line: str) -> Ending | None:
        """What `line` says by the first row that fits, None if it says nothing of an end."""
        line = line[:MAX_LINE_CHARS]
        if not self._may_fit(line):
            return None
        found = self._set.Match(line.encode(errors="replace"))
        if not found:
            return None
        row, match = self.rows[min(found)], self._patterns[min(found)].search(line)
        return _ending(row, match.groupdict() if match else {})


class EndTable(msgspec.Struct):
    """What a launcher says over several lines of one file or stream: a row names the rank, a later line how it ended.

    Examples
    --------
    >>> table, endings = EndTable(), shipped_endings()
    >>> lines = ("Root Cause (first observed failure):", "rank   : 3 (local_rank: 3)", "exitcode  : -9 (pid: 70)")
    >>> *_, (ending, rank) = (table.read(endings.read(line), None) for line in lines)
    >>> rank, ending.signal, ending.first
    (3, 9, True)
    """

    row: int | None = None  # whom the next line of the table is about
    node: str | None = None  # and where that ran
    first: bool = False  # it is of who failed first

    def read(self, ending: Ending, writer: int | None) -> tuple[Ending, int | None]:
        """The ending as it stands in its table, and the rank that ended: of several at once none.

        Parameters
        ----------
        writer : int or None
            Rank that the prefixes of the line name, or that its local rank means.
        """
        if ending.says == "first":
            self.first = True
        elif ending.says == "row":
            self.row, self.node = (ending.ranks[0] if ending.ranks else None), ending.node
        elif ending.id in _OF_ROW and self.row is None:
            return msgspec.structs.replace(ending, says="note", first=False), None
        elif ending.says not in {"done", "note"}:
            if self.first:
                self.first, ending = False, msgspec.structs.replace(ending, first=True)
            if ending.ranks:
                return ending, ending.ranks[0] if len(ending.ranks) == 1 else None
            if ending.local is not None or ending.id in _PREFIXED:
                return ending, writer
            row, node, self.row, self.node = self.row, self.node, None, None
            return msgspec.structs.replace(ending, node=ending.node or node), row
        return ending, None


def ranks_of(ending: Ending, tasks: Tasks) -> Ending:
    """The ending without ranks where it names tasks of the scheduler's that are no ranks."""
    if ending.id not in TASKS or all(tasks.is_rank(task, ending.node) for task in ending.ranks):
        return ending
    return msgspec.structs.replace(ending, ranks=())


def _entries(path: Path) -> list[Any]:
    try:
        entries: list[Any] = tomllib.loads(path.read_text(encoding="utf-8")).get("ending", [])
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read ({error})") from error
    return entries


def _ending(row: EndingRow, groups: dict[str, str | None]) -> Ending:
    code = _number(groups.get("code"))
    signal = _number(groups.get("signal"))
    how = groups.get("how")
    if signal is None and how is not None:
        signal = _SIGNALS.get(how.lower().removeprefix("sig"))
    if signal is None and code is not None:
        signal = -code if code < 0 else code - _BY_SHELL if _BY_SHELL < code < _BY_SHELL + 65 else None
    return Ending(
        id=row.id, says=row.says, ranks=_ranks(groups.get("ranks") or ""), local=_number(groups.get("local")),
        pid=_number(groups.get("pid")), node=groups.get("node"), code=code, signal=signal, first=row.first,
    )  # fmt: skip


def _number(text: str | None) -> int | None:
    return None if not text else int(text)


def _ranks(text: str) -> tuple[int, ...]:
    """Ranks of a list as Slurm writes it.

    Examples
    --------
    >>> _ranks("0-1,3"), _ranks("[7]"), _ranks("")
    ((0, 1, 3), (7,), ())
    """
    found: list[int] = []
    for part in text.strip("[]").split(","):
        low, _, high = part.partition("-")
        if low.isdigit() and (high.isdigit() or not high):
            found.extend(range(int(low), min(int(high or low), int(low) + MAX_RANKS) + 1))
    return tuple(found[:MAX_RANKS])


@cache
def shipped_endings() -> Endings:
    """The rows shipped, read once."""
    return Endings()
