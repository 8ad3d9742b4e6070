"""What NCCL's RAS socket answers, as plain data: the communicators of a job and their ranks.

Text since NCCL 2.24, JSON (``ncclras -f json``) since 2.28; the fields are those
that `src/ras/client_support.cc` of NCCL 2.28 to 2.31 writes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from trainwarden.errors import DataError

MAX_BYTES: Final = 256 << 20
MAX_RANKS: Final = 4_000_000
MAX_LINE: Final = 2_000
# All bounded and anchored by fixed words: time is linear in the answer.
_COMM: Final = re.compile(r"^ *#([0-9]{1,9}-[0-9]{1,9}) \(([0-9a-fA-Fx:]{1,80})\) ([A-Z]{1,20})")
_MANY: Final = re.compile(r"^ *([0-9]{1,9}) ranks have (?:launched up to operation ([0-9]{1,19})|not launched any)")
_ONE: Final = re.compile(r"^ *Rank ([0-9]{1,9}) has (?:launched up to operation ([0-9]{1,19})|not launched any)")
_DIFFERENT: Final = re.compile(r"^ *Communicator ranks have different ([A-Za-z]{1,40}) ?operation counts")
_RANK: Final = re.compile(r"^ *Rank ([0-9]{1,9}) ?(?:--|$)")
_LOST: Final = re.compile(r"^ *Process ([0-9]{1,10}) on node (\S{1,255}) managing GPU")
# Without -v, missing ranks stand in one line, as numbers and ranges of them.
_MISSING: Final = re.compile(r"^ *The missing ranks?: ([0-9][0-9, -]{0,1000})$")
_RANGE: Final = re.compile(r"([0-9]{1,9})(?: ?- ?([0-9]{1,9}))?")
_DEAD: Final = re.compile(r"^DEAD\b")
_WHERE: Final = re.compile(r"managed by process ([0-9]{1,10}) on node (\S{1,255})")
# NCCL 2.28.9 leaves a comma out between the members of a missing rank.
_NO_COMMA: Final = re.compile(r'([0-9"}\]]|true|false)[ \t]{0,40}\n([ \t]{0,40}")')


class RasRank(msgspec.Struct, frozen=True):
    """One rank of a communicator, None where only its process is told; `host` and `pid` name that."""

    rank: int | None
    host: str = ""
    pid: int | None = None
    device: int | None = None
    counts: dict[str, int] = {}
    missing: bool = False
    dead: bool = False
    error: int = 0
    aborted: bool = False


class RasCommunicator(msgspec.Struct, frozen=True):
    """One communicator as RAS reports it."""

    name: str
    size: int
    ranks: tuple[RasRank, ...]


def parse(answer: str | bytes | Mapping[str, Any]) -> list[RasCommunicator]:
    """The communicators of a JSON answer (text, bytes or already parsed) or of a verbose text answer.

    Raises
    ------
    DataError
        If it is neither, or larger than any job; one sentence.

    Examples
    --------
    >>> (comm,) = parse({"communicators": [{"hash": "0xa", "size": 2, "ranks": [{"rank": 0,
    ...     "collective_counts": {"AllReduce": 9}}], "missing_ranks": [{"rank": 1, "host": "n1"}]}]})
    >>> comm.size, [one.missing for one in comm.ranks]
    (2, [False, True])
    """
    if isinstance(answer, Mapping):
        return _from_json(answer)
    if len(answer) > MAX_BYTES:
        raise DataError(f"RAS answer of {len(answer)} bytes is larger than {MAX_BYTES}")
    text = answer.decode(errors="replace") if isinstance(answer, bytes) else answer
    start = text.find("{")
    if start >= 0 and (not text[:start].strip() or '"communicators"' in text):
        for candidate in (text[start:], _NO_COMMA.sub(r"\1,\n\2", text[start:])):
            try:
                return _from_json(msgspec.json.decode(candidate))
            except (msgspec.DecodeError, RecursionError) as error:
                reason = error
        raise DataError(f"RAS answer is damaged JSON ({reason})")
    return _from_text(text)


# -- JSON ----------------------------------------------------------------------------------------------------


def _from_json(raw: Any) -> list[RasCommunicator]:
    if not isinstance(raw, Mapping) or not isinstance(raw.get("communicators"), list):
        raise DataError("RAS answer has no list of communicators")
    out, total = [], 0
    for number, comm in enumerate(raw["communicators"]):
        if not isinstance(comm, Mapping):
            raise DataError(f"RAS answer: communicator {number} is no object")
        present, missing = comm.get("ranks") or [], comm.get("missing_ranks") or []
        if not isinstance(present, list) or not isinstance(missing, list):
            raise DataError(f"RAS answer: communicator {number}: ranks is no list")
        total += len(present) + len(missing)
        if total > MAX_RANKS:
            raise DataError(f"RAS answer has more than {MAX_RANKS} ranks")
        where = f"RAS answer: communicator {number}"
        ranks = [_rank(one, where, missing=False) for one in present]
        ranks += [_rank(one, where, missing=True) for one in missing]
        parts = (str(comm.get(key))[:80] for key in ("hash", "secondary_hash") if comm.get(key))
        name = ":".join(parts) or str(number)
        out.append(RasCommunicator(name, _integer(comm.get("size", len(ranks)), where), tuple(ranks)))
    return out


def _rank(raw: Any, where: str, *, missing: bool) -> RasRank:
    if not isinstance(raw, Mapping):
        raise DataError(f"{where}: a rank is no object")
    told = raw.get("status")
    status = told if isinstance(told, Mapping) else raw
    counts = raw.get("collective_counts") or {}
    if not isinstance(counts, Mapping):
        raise DataError(f"{where}: collective_counts is no object")
    pid, device = raw.get("pid"), raw.get("cuda_dev")
    host = str(raw.get("host") or "")[:255]
    return RasRank(
        rank=_integer(raw.get("rank"), where), host="" if host == "unknown" else host,
        pid=pid if isinstance(pid, int) and pid > 0 else None, device=device if isinstance(device, int) else None,
        counts={str(op)[:40]: _integer(count, where) for op, count in list(counts.items())[:64]},
        missing=missing, dead=bool(status.get("considered_dead")), aborted=bool(status.get("abort_flag")),
        error=_integer(status.get("async_error", 0), where),
    )  # fmt: skip


def _integer(raw: Any, where: str) -> int:
    if isinstance(raw, bool) or not isinstance(raw, int) or not 0 <= raw < 1 << 63:
        raise DataError(f"{where}: {str(raw)[:40]!r} is no number")
    return raw


# -- text ----------------------------------------------------------------------------------------------------


def _from_text(text: str) -> list[RasCommunicator]:
    """Communicators of the sections Errors and Warnings; healthy ones are only summed up in this form."""
    if "Communicators" not in text and "NCCL" not in text and "#" not in text:
        raise DataError("RAS answer is neither JSON nor a RAS report")
    comms: list[_TextComm] = []
    dead, lost = False, list[tuple[str, int]]()
    for whole in text.split("\n"):
        line = whole[:MAX_LINE].rstrip()
        if (head := _COMM.match(line)) is not None:
            comms.append(_TextComm(head.group(2), head.group(3)))
        elif not comms and (process := _LOST.match(line)) is not None:
            lost.append((process.group(2), int(process.group(1))))
        elif not comms and _DEAD.match(line):
            dead = True
        elif comms:
            comms[-1].read(line)
    out: dict[str, RasCommunicator] = {}
    for comm in comms:
        merged = comm.ranks()
        gone = [place for place, one in enumerate(merged) if one.missing and one.rank is not None and not one.host]
        if len(gone) == len(lost) == 1:  # the one process that is lost for the whole job is that of the one rank
            host, pid = lost[0]
            merged[gone[0]] = msgspec.structs.replace(merged[gone[0]], host=host, pid=pid, dead=dead)
        known = out.get(comm.name)
        if known is not None:
            merged = [*known.ranks, *(one for one in merged if one.rank not in {old.rank for old in known.ranks})]
        if len(merged) > MAX_RANKS:
            raise DataError(f"RAS answer has more than {MAX_RANKS} ranks")
        out[comm.name] = RasCommunicator(comm.name, max(comm.size, len(merged)), tuple(merged))
    return list(out.values())


class _TextComm:
    """One section of the report: ranks that are named, and how many stand at which count."""

    def __init__(self, name: str, state: str) -> None:
        self.name = name
        self.size = 0
        self._state = state
        self._op = "operations"
        self._count: int | None = None
        self._many = 0
        self._unnamed: list[tuple[str, int, int]] = []
        self._lost: list[RasRank] = []
        self._named: dict[int, tuple[str, int | None, dict[str, int]]] = {}

    def read(self, line: str) -> None:
        if (found := _DIFFERENT.match(line)) is not None:
            self._close()
            self._op = "operations" if found.group(1) == "collective" else found.group(1)
        elif (found := _MANY.match(line)) is not None:
            self._close()
            self._many, self._count = int(found.group(1)), int(found.group(2) or 0)
            self.size += self._many
        elif (found := _ONE.match(line)) is not None:
            self._close()
            self.size += 1
            self._name(int(found.group(1)), int(found.group(2) or 0), line)
        elif (found := _LOST.match(line)) is not None:
            dead = self._state == "DEAD"
            self._lost.append(RasRank(None, found.group(2), int(found.group(1)), missing=True, dead=dead))
        elif (found := _MISSING.match(line)) is not None:
            for rank in _numbers(found.group(1)):
                self._name(rank, None, line)
        elif (found := _RANK.match(line)) is not None:
            self._many = max(0, self._many - 1)
            self._name(int(found.group(1)), self._count, line)

    def ranks(self) -> list[RasRank]:
        self._close()
        missing = self._state in {"INCOMPLETE", "DEAD"}
        out = [
            RasRank(rank, host, pid, None, counts, missing=missing and not counts, dead=self._state == "DEAD",
                    error=2 if self._state in {"ERROR", "ABORT"} else 0)
            for rank, (host, pid, counts) in sorted(self._named.items())
        ]  # fmt: skip
        # Ranks that stand where most stand are counted and not named.
        for op, count, number in self._unnamed[:64]:
            out.extend(RasRank(None, counts={op: count}) for _ in range(min(number, MAX_RANKS // 64)))
        return [*out, *self._lost]

    def _close(self) -> None:
        if self._many and self._count is not None:
            self._unnamed.append((self._op, self._count, self._many))
        self._many, self._count = 0, None

    def _name(self, rank: int, count: int | None, line: str) -> None:
        where = _WHERE.search(line)
        host, pid, counts = self._named.get(rank, ("", None, {}))
        if where is not None:
            pid, host = int(where.group(1)), where.group(2)
        self._named[rank] = (host, pid, counts if count is None else counts | {self._op: count})


def _numbers(text: str) -> list[int]:
    """Numbers of a list of ranks, `MAX_LINE` of them at most.

    Examples
    --------
    >>> _numbers("3, 8-10,12")
    [3, 8, 9, 10, 12]
    """
    found: list[int] = []
    for one in _RANGE.finditer(text):
        first, last = int(one.group(1)), int(one.group(2) or one.group(1))
        found += range(first, min(last + 1, first + MAX_LINE - len(found)))
    return found
