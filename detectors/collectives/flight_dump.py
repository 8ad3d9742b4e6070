"""PyTorch flight-recorder dumps as plain data: what each rank has begun and finished in each process group.

Tolerant over versions 1.x to 2.10 of the format, NCCL and Gloo: numbers may be text, process groups may be described or
not, finished calls may have been dropped, and ``retired`` means finished where the state is not kept (Gloo).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

import msgspec

from trainwarden.errors import DataError

MAX_ENTRIES: Final = 200_000  # PyTorch's default ring holds 2,000 calls
MAX_GROUPS: Final = 100_000
MAX_MEMBERS: Final = 1_000_000
MAX_NAME: Final = 120
_PEERS: Final = re.compile(r"\b(send|recv) ([0-9]{1,7}) ?(->|<-) ?([0-9]{1,7})")
_STEPS: Final = re.compile(r"([0-9]{1,7}):([0-9]{1,8}):([0-9]{1,7})")


class GroupKey:
    """A process group: its name, and its members as far as a rank's own dump says them. Hashed once."""

    __slots__ = ("_hash", "members", "name")

    def __init__(self, name: str, members: tuple[int, ...] = ()) -> None:
        self.name = name
        self.members = members
        self._hash = hash((name, len(members), members[:8]))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, GroupKey) or self.name != other.name:
            return False
        return self.members is other.members or self.members == other.members


@dataclass(frozen=True, slots=True)
class Call:
    """One collective, send or receive of one rank. `peer` is the other side's place in the group."""

    group: GroupKey
    seq: int
    op: str
    done: bool
    started: bool
    created_ns: int | None
    p2p: bool
    peer: int | None
    receives: bool
    sizes: tuple[int, int]
    dtypes: tuple[str, str]


@dataclass(slots=True)
class RankDump:
    """What one rank's dump says; `present` is False where there is none."""

    rank: int
    present: bool = True
    calls: list[Call] = field(default_factory=list)
    describes: dict[GroupKey, str] = field(default_factory=dict)
    enqueued: dict[GroupKey, int] = field(default_factory=dict)
    completed: dict[GroupKey, int] = field(default_factory=dict)


def read_dump(rank: int, raw: Any) -> RankDump:
    """`raw`, the parsed JSON (or its text) of one rank.

    Raises
    ------
    DataError
        If it is no flight-recorder dump; the message names the rank and the entry.

    Examples
    --------
    >>> entry = {"collective_seq_id": 3, "process_group": ["0", "default_pg"], "profiling_name": "nccl:all_reduce",
    ...     "state": "scheduled"}
    >>> dump = read_dump(1, {"entries": [entry]})
    >>> dump.calls[0].seq, dump.calls[0].op, dump.calls[0].done
    (3, 'all_reduce', False)
    """
    where = f"flight-recorder dump of rank {rank}"
    if raw is None:
        return RankDump(rank, present=False)
    if isinstance(raw, str | bytes | bytearray):
        raw = _parsed(raw, where)
    if not isinstance(raw, Mapping):
        raise DataError(f"{where}: is no JSON object")
    entries = raw.get("entries") or []
    if not isinstance(entries, list):
        raise DataError(f"{where}: entries is no list")
    if len(entries) > MAX_ENTRIES:
        raise DataError(f"{where}: has {len(entries)} entries, more than {MAX_ENTRIES}")
    out = RankDump(rank)
    config = _groups(raw.get("pg_config"), where)
    local: dict[str, GroupKey] = {}
    ended: dict[str, int | None] = {}
    status = _mapping(raw.get("pg_status"), f"{where}: pg_status")
    lasts = {str(key): _mapping(value, f"{where}: pg_status {key}") for key, value in status.items()}
    for place, entry in enumerate(entries):
        if not isinstance(entry, Mapping):
            raise DataError(f"{where}: entry {place} is no object")
        key, description, pg_id = _group_of(entry, config)
        out.describes.setdefault(key, description)
        local.setdefault(pg_id, key)
        if pg_id not in ended:
            said = lasts.get(pg_id, {}).get("last_completed_collective")
            ended[pg_id] = _number(said, f"{where}: pg_status {pg_id}")
        out.calls.append(_call(entry, key, ended[pg_id], f"{where}: entry {place}"))
    for key, description in config.values():
        out.describes.setdefault(key, description)
    _statuses(out, lasts, config, local, where)
    return out


def _parsed(raw: str | bytes | bytearray, where: str) -> Any:
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DataError(f"{where}: is no JSON ({error})") from error


def _groups(raw: Any, where: str) -> dict[str, tuple[GroupKey, str]]:
    """Process groups by name: their key and description."""
    described = _mapping(raw, f"{where}: pg_config")
    if len(described) > MAX_GROUPS:
        raise DataError(f"{where}: pg_config has {len(described)} groups, more than {MAX_GROUPS}")
    out = {}
    for name, value in described.items():
        one = _mapping(value, f"{where}: pg_config {name}")
        members = _members(one.get("ranks"), f"{where}: pg_config {name}")
        label = str(one.get("name") or name)[:MAX_NAME]
        if label:  # Gloo writes one nameless entry, of whichever group came last
            out[label] = (GroupKey(label, members), str(one.get("desc") or "")[:MAX_NAME])
    return out


def _members(raw: Any, where: str) -> tuple[int, ...]:
    if isinstance(raw, str):
        try:
            return _spelt(raw or "[]")
        except DataError as error:
            raise DataError(f"{where}: {error}") from error
    return _checked(raw, where)


@lru_cache(maxsize=8192)
def _spelt(raw: str) -> tuple[int, ...]:
    """Members as text: every rank's dump spells the same groups, so that they are read once and share one tuple.

    The agent spells ranks in equal steps ``first:end:step``.
    """
    steps = _STEPS.fullmatch(raw)
    if steps is None:
        return _checked(_parsed(raw, "ranks"), "ranks")
    found = range(int(steps[1]), int(steps[2]), int(steps[3]) or 1)
    if len(found) > MAX_MEMBERS:
        raise DataError("ranks is no list of ranks")
    return tuple(found)


def _checked(raw: Any, where: str) -> tuple[int, ...]:
    if raw is None:
        return ()
    if not isinstance(raw, list | tuple) or len(raw) > MAX_MEMBERS:
        raise DataError(f"{where}: ranks is no list of ranks")
    return tuple(_required(rank, f"{where}: ranks") for rank in raw)


def _group_of(entry: Mapping[str, Any], config: Mapping[str, tuple[GroupKey, str]]) -> tuple[GroupKey, str, str]:
    named = entry.get("process_group")
    pg_id = str(entry.get("pg_id", ""))
    if isinstance(named, list | tuple) and named:
        name, description = str(named[0])[:MAX_NAME], str(named[1])[:MAX_NAME] if len(named) > 1 else ""
    elif isinstance(named, str) and named:
        name, description = named[:MAX_NAME], ""
    else:
        name, description = pg_id or "0", ""
    key, described = config.get(name) or (GroupKey(name), "")
    return key, description or described, pg_id


def _call(entry: Mapping[str, Any], key: GroupKey, last_done: int | None, where: str) -> Call:
    name = str(entry.get("profiling_name") or "")[:MAX_NAME]
    _, colon, op = name.partition(":")
    op = op if colon else name
    p2p = bool(entry.get("is_p2p")) or op.startswith(("send", "recv"))
    seq = entry.get("p2p_seq_id" if p2p else "collective_seq_id", entry.get("seq_id"))
    if type(seq) is not int:  # the usual case must not cost an f-string
        seq = _number(seq, f"{where}: sequence")
    if seq is None:
        raise DataError(f"{where}: has no sequence number")
    state = str(entry.get("state") or "")
    done = state == "completed" or bool(entry.get("retired"))
    if not p2p and last_done is not None and 0 <= seq <= last_done:
        done = True
    found = _PEERS.search(name) if p2p else None
    created = entry.get("time_created_ns")
    if type(created) is not int:
        created = _number(created, f"{where}: time_created_ns")
    return Call(
        group=key, seq=seq, op=op.partition(" ")[0] if found else op, done=done, started=state == "started",
        created_ns=created or None, p2p=p2p, peer=int(found.group(4)) if found else None,
        receives=found is not None and found.group(1) == "recv",
        sizes=(_elements(entry.get("input_sizes")), _elements(entry.get("output_sizes"))),
        dtypes=(_types(entry.get("input_dtypes")), _types(entry.get("output_dtypes"))),
    )  # fmt: skip


def _statuses(
    out: RankDump,
    lasts: Mapping[str, Mapping[str, Any]],
    config: Mapping[str, tuple[GroupKey, str]],
    local: Mapping[str, GroupKey],
    where: str,
) -> None:
    """The last collective begun and finished per group; groups are numbered locally in `pg_status`.

    Both tables list a rank's groups in the order of their making, so equal lengths pair them up; entries, which know
    both the local number and the name, must agree.
    """
    pairs = dict(local)
    if len(lasts) == len(config) and all(name.isdigit() for name in [*lasts, *config]):
        ordered = zip(sorted(lasts, key=int), sorted(config, key=int), strict=True)
        guessed = {number: config[name][0] for number, name in ordered}
        if all(guessed.get(number) == key for number, key in local.items()):
            pairs = guessed
    for number, key in pairs.items():
        last = lasts.get(number, {})
        for field_, table in (("last_enqueued_collective", out.enqueued), ("last_completed_collective", out.completed)):
            value = _number(last.get(field_), f"{where}: pg_status {number}")
            if value is not None and value >= 0:
                table[key] = value


def _elements(raw: Any) -> int:
    """Number of elements of all tensors of a call; -1 where it is not said."""
    if not isinstance(raw, list):
        return -1
    total = 0
    for shape in raw:
        count = 1
        for length in shape if isinstance(shape, list) else [shape]:
            if not isinstance(length, int):
                return -1
            count *= length
        total += count
    return total


def _types(raw: Any) -> str:
    if not isinstance(raw, list):
        return ""
    return str(raw[0])[:MAX_NAME] if len(raw) == 1 else ",".join([str(one)[:MAX_NAME] for one in raw[:64]])


def _mapping(raw: Any, where: str) -> Mapping[str, Any]:
    if raw is None:
        return {}
    if not isinstance(raw, Mapping):
        raise DataError(f"{where} is no object")
    return raw


def _number(raw: Any, where: str) -> int | None:
    if raw is None or raw == "":
        return None
    if isinstance(raw, bool) or not isinstance(raw, int | str | float):
        raise DataError(f"{where}: {str(raw)[:40]!r} is no number")
    try:
        return int(raw)
    except (ValueError, OverflowError) as error:
        raise DataError(f"{where}: {str(raw)[:40]!r} is no number") from error


def _required(raw: Any, where: str) -> int:
    value = _number(raw, where)
    if value is None or value < 0:
        raise DataError(f"{where}: {str(raw)[:40]!r} is no rank")
    return value
