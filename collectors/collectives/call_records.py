"""PyTorch's record of collective calls, cut down to what tells who broke a collective, and packed for the bus.

The result is a record of the same form with fewer and smaller entries, so that whatever reads whole ones reads it:
per process group the newest calls, the oldest unfinished ones, and what is known of each group's state.
"""

from __future__ import annotations

import base64
import re
import zlib
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from trainwarden.errors import DataError
from trainwarden.formats.dumps.plain_pickle import load_plain

MAX_GROUPS: Final = 4_096
MAX_TEXT: Final = 120
MAX_SHAPES: Final = 1_024
MAX_AXES: Final = 16
MAX_PACKED: Final = 600_000  # of the bus's 900,000 bytes
_KEPT: Final = ("collective_seq_id", "p2p_seq_id", "seq_id", "pg_id", "is_p2p", "retired", "state", "profiling_name",
                "time_created_ns")  # fmt: skip
_STATUS: Final = ("last_enqueued_collective", "last_completed_collective")
_MEMBERS: Final = re.compile(r"\[[0-9, ]{0,10000000}\]")


def read_record(data: bytes) -> Mapping[str, Any]:
    """The record in a file that PyTorch (a pickle) or its JSON writers left.

    Raises
    ------
    DataError
        If it is neither.

    Examples
    --------
    >>> read_record(b'{"entries": []}')
    {'entries': []}
    """
    if data[:1] == b"\x80":
        found = load_plain(data)
    else:
        try:
            found = msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise DataError(f"the record is neither a pickle nor JSON ({error})") from error
    if not isinstance(found, Mapping):
        raise DataError("the record is no table")
    return found


def pack(record: Mapping[str, Any], calls: int) -> str:
    """`record` cut down to `calls` calls of each group (fewer if that is too much for the bus), as text.

    Raises
    ------
    DataError
        If it is damaged, or too much even with one call of each group.

    Examples
    --------
    >>> entry = {"collective_seq_id": 1, "process_group": ("0", "dp"), "state": "completed", "frames": ["long"] * 99}
    >>> unpack(pack({"entries": [entry]}, 8))["entries"]
    [{'collective_seq_id': 1, 'state': 'completed', 'process_group': ['0', 'dp']}]
    """
    while True:
        try:
            text = msgspec.json.encode(reduced(record, calls))
        except (TypeError, ValueError, RecursionError) as error:
            raise DataError(f"the record is damaged ({error})") from error
        packed = base64.b85encode(zlib.compress(text, 6)).decode()
        if len(packed) <= MAX_PACKED:
            return packed
        if calls <= 1:
            raise DataError(f"the record has {len(packed)} bytes even with one call of each group")
        calls //= 2


def unpack(packed: str) -> Any:
    """What `pack` was given, cut down; for tests and people."""
    return msgspec.json.decode(zlib.decompress(base64.b85decode(packed)))


def reduced(record: Mapping[str, Any], calls: int) -> dict[str, Any]:
    """`record` with at most `calls` newest and `calls` oldest unfinished calls of each group.

    Raises
    ------
    DataError
        If its tables are none.
    """
    entries = record.get("entries") or []
    if not isinstance(entries, list):
        raise DataError("the record's entries are no list")
    kept = sorted(_chosen(entries, calls))
    return {
        "pg_config": {
            str(name)[:MAX_TEXT]: {
                "name": _text(group.get("name")), "desc": _text(group.get("desc")),
                "ranks": _members(group.get("ranks")),
            }
            for name, group in _tables(record.get("pg_config"))
        },
        "pg_status": {
            str(number)[:MAX_TEXT]: {key: status[key] for key in _STATUS if isinstance(status.get(key), str | int)}
            for number, status in _tables(record.get("pg_status"))
        },
        "entries": [_entry(entries[place]) for place in kept],
    }  # fmt: skip


def _chosen(entries: list[Any], calls: int) -> set[int]:
    """Places of the entries to keep."""
    newest: dict[str, deque[int]] = {}
    oldest: dict[str, list[int]] = {}
    last: dict[tuple[str, bool], int] = {}
    for place, entry in enumerate(entries):
        if not isinstance(entry, Mapping):
            raise DataError(f"entry {place} of the record is no table")
        kind = "p2p" if entry.get("is_p2p") else "collective"
        group = f"{kind}/{entry.get('process_group')!s:.120}/{entry.get('pg_id')!s:.20}"
        if group not in newest:
            if len(newest) >= 2 * MAX_GROUPS:
                raise DataError(f"the record has more than {MAX_GROUPS} groups")
            newest[group], oldest[group] = deque(maxlen=calls), []
        done = entry.get("state") == "completed" or bool(entry.get("retired"))
        newest[group].append(place)
        last[(group, done)] = place
        if not done and len(oldest[group]) < calls:
            oldest[group].append(place)
    return {*last.values(), *(one for many in (*newest.values(), *oldest.values()) for one in many)}


def _entry(entry: Mapping[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {key: _scalar(entry[key]) for key in _KEPT if key in entry}
    group = entry.get("process_group")
    out["process_group"] = [_text(part) for part in group[:2]] if isinstance(group, list | tuple) else _text(group)
    for key in ("input_sizes", "output_sizes"):
        if isinstance(shapes := entry.get(key), list | tuple):
            out[key] = [[elements]] if (elements := _elements(shapes)) is not None else [None]
    for key in ("input_dtypes", "output_dtypes"):
        if isinstance(types := entry.get(key), list | tuple):
            out[key] = [_text(one) for one in types[:MAX_SHAPES]]
    return out


def _scalar(value: Any) -> Any:
    return value if isinstance(value, bool | int | None) else _text(value)


def _text(value: Any) -> str:
    return "" if value is None else str(value)[:MAX_TEXT] if isinstance(value, str | int | float) else ""


def _elements(shapes: list[Any] | tuple[Any, ...]) -> int | None:
    """Number of elements of all tensors; None where a shape cannot be understood."""
    total = 0
    for shape in shapes[:MAX_SHAPES]:
        count = 1
        for length in shape[:MAX_AXES] if isinstance(shape, list | tuple) else (shape,):
            if type(length) is not int or not 0 <= length < 2**63:
                return None
            count *= length
        total += count
    return total if total < 2**63 else None


def _members(raw: Any) -> str | None:
    """A group's ranks as text, ranks in equal steps as ``first:end:step``: of 16,384 ranks, every dump names all."""
    if raw is None:
        return None
    if isinstance(raw, str):
        if _MEMBERS.fullmatch(raw) is None:
            raise DataError("a group's ranks are no list of ranks")
        ranks = [int(one) for one in raw[1:-1].split(",") if one.strip()]
    elif isinstance(raw, list | tuple) and all(type(one) is int for one in raw):
        ranks = list(raw)
    else:
        raise DataError("a group's ranks are no list of ranks")
    if len(ranks) > 2:
        step = ranks[1] - ranks[0]
        if step > 0 and ranks == list(range(ranks[0], ranks[-1] + 1, step)):
            return f"{ranks[0]}:{ranks[-1] + 1}:{step}"
    return msgspec.json.encode(ranks).decode()


def _tables(raw: Any) -> Iterable[tuple[Any, Mapping[str, Any]]]:
    if raw is None:
        return
    if not isinstance(raw, Mapping) or len(raw) > MAX_GROUPS:
        raise DataError("the record's groups are no table, or too many")
    for name, value in raw.items():
        if isinstance(value, Mapping):
            yield name, value
