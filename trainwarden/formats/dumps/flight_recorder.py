"""Format: PyTorch's flight-recorder dumps under any name, as JSON or as pickles of plain data."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from trainwarden.errors import DataError
from trainwarden.formats.dumps.plain_pickle import load_plain
from trainwarden.formats.protocol import NEVER, SURE, Found
from trainwarden.formats.source import Source

MAX_DUMP_BYTES: Final = 256 * 1024 * 1024
_RANK: Final = re.compile(r"(?i)rank[_\-.=]?([0-9]{1,6})(?![0-9])")
_LAST: Final = re.compile(r"([0-9]{1,6})(?:\.[a-z]{1,12}){0,2}$")
_KEYS: Final = ('"pg_config"', '"pg_status"', '"collective_seq_id"', '"comm_lib_version"', '"nccl_version"')


class FlightRecorder:
    """One dump of one rank, whose number is in the file's name."""

    name = "flight recorder"

    def sniff(self, name: str, head: str) -> float:
        """By the keys of a dump; the name alone says it of a file without entries or one that is cut short."""
        if '"traceEvents"' in head:
            return NEVER
        named = "trace_rank" in name or "flight" in name or "fr_trace" in name
        text = head.lstrip()[:1] == "{"
        if text and (sum(key in head for key in _KEYS) >= 2 or ('"entries"' in head and '"profiling_name"' in head)):
            return SURE
        if head[:1] == "\x80" and ("pg_config" in head or "entries" in head or "version" in head):
            return SURE
        return SURE if named and (text or not head.strip() or head[:1] == "\x80") else NEVER

    def read(self, source: Source, columns: Mapping[str, str]) -> Found:
        """See `trainwarden.formats.protocol.Format`."""
        del columns
        rank = rank_of(source.stem)
        if rank is None:
            raise DataError(f"{source.name}: nothing says whose dump it is: name it rank_N.json")
        data = source.data(MAX_DUMP_BYTES)
        if not data.strip():
            raise DataError(f"{source.name} is empty")
        raw = parsed(data, source.name)
        entries = raw.get("entries") or []
        return Found(rows=len(entries) if isinstance(entries, list) else 0, dumps={rank: raw})


def rank_of(name: str) -> int | None:
    """The rank that a file's name tells.

    Examples
    --------
    >>> [rank_of(name) for name in ("nccl_trace_rank_12", "rank_3.json", "dump.7", "trace.json", "comm_trace_rank_0")]
    [12, 3, 7, None, 0]
    """
    match = _RANK.search(name) or _LAST.search(name)
    return int(match[1]) if match is not None else None


def parsed(data: bytes, name: str) -> dict[str, Any]:
    """What a dump holds; a pickle is read without running it.

    Raises
    ------
    DataError
        If it is neither JSON nor a pickle of plain data, or is cut short.
    """
    if data[:1] == b"\x80":
        try:
            raw = load_plain(data)
        except DataError as error:
            raise DataError(f"{name}: {error}") from error
    else:
        try:
            raw = msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise DataError(f"{name} is not JSON: {error}") from error
    if not isinstance(raw, dict):
        raise DataError(f"{name} is no flight-recorder dump: it holds no object")
    return raw
