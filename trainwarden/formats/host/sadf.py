"""Format: `sadf -d` (semicolons) and `sadf -j` (JSON), what sar keeps, of one host or several."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
import numpy as np
import pandas as pd

from trainwarden.errors import DataError
from trainwarden.formats.building import metric_table
from trainwarden.formats.host.sysstat import COLUMNS, Work
from trainwarden.formats.protocol import NEVER, SURE, Found
from trainwarden.formats.source import Source
from trainwarden.formats.stamps import time_s_of

_HEADER: Final = re.compile(r"(?m)^# hostname;interval;timestamp;([^\n]{1,2000})$")
_JSON: Final = re.compile(r'\A\s{0,8}\{\s{0,8}"sysstat"\s{0,4}:\s{0,4}\{')
_UNJUDGED: Final = "no activity in it is of processors, memory, disks or interfaces: `sadf -d -- -A`"
# Keys of the JSON whose column in sar is not the same with "/s".
_KEYS: Final = {
    "iowait": "%iowait", "steal": "%steal", "system": "%system", "memused-percent": "%memused", "avail": "kbavail",
    "swpused": "kbswpused", "await": "await", "util-percent": "%util", "util": "%util", "ifutil-percent": "%ifutil",
    "tps": "tps", "cpu": "CPU", "disk-device": "DEV", "iface": "IFACE",
}  # fmt: skip
_LISTS: Final = ("cpu-load", "cpu-load-all", "disk", "memory", "net-dev", "net-edev")


class Sadf:
    """Tables of all activities one after the other, each with a header of its own."""

    name = "sadf report"

    def sniff(self, name: str, head: str) -> float:
        """By the header of a table, or the JSON's outermost key."""
        del name
        return SURE if _HEADER.match(head.lstrip()) is not None or _JSON.match(head) is not None else NEVER

    def read(self, source: Source, columns: Mapping[str, str]) -> Found:
        """See `trainwarden.formats.protocol.Format`."""
        del columns
        text = source.text()
        rows = list(_of_json(text, source.name) if _JSON.match(text[:200]) else _of_tables(text))
        table = metric_table(pd.DataFrame(rows)) if rows else None
        if table is None:
            raise DataError(f"{source.name}: {_UNJUDGED}")
        return Found(rows=len(rows), metrics=[table])


def _of_tables(text: str) -> Iterator[dict[str, Any]]:
    header: list[str] = []
    work = Work()
    for line in text.split("\n"):
        if line.startswith("#"):
            match = _HEADER.match(line.rstrip())
            header = [cell.partition("[")[0] for cell in match[1].split(";")] if match is not None else []
            continue
        cells = line.rstrip("\r").split(";")
        if len(cells) != len(header) + 3 or not COLUMNS & set(header):
            continue  # LINUX-RESTART, the last line of what is cut, and what is not judged
        time_s = time_s_of(cells[2].strip())
        if np.isfinite(time_s) and (row := work.row(cells[0], time_s, dict(zip(header, cells[3:], strict=True)))):
            yield row


def _of_json(text: str, name: str) -> Iterator[dict[str, Any]]:
    try:
        whole = msgspec.json.decode(text)
        hosts = whole["sysstat"]["hosts"]
    except (msgspec.DecodeError, RecursionError, LookupError, TypeError) as error:
        raise DataError(f"{name} is not the JSON that it looks like: {error}") from error
    work = Work()
    for host in hosts if isinstance(hosts, list) else []:
        node = str(host.get("nodename", "")) if isinstance(host, dict) else ""
        for moment in host.get("statistics", []) if node else []:
            time_s = _time_s(moment.get("timestamp", {}))
            for own in _lists(moment) if np.isfinite(time_s) else ():
                row = work.row(node, time_s, {_KEYS.get(key, f"{key}/s"): str(value) for key, value in own.items()})
                if row is not None:
                    yield row


def _lists(moment: Any) -> Iterator[Mapping[str, Any]]:
    """The objects of each activity; those of interfaces lie one level deeper."""
    both = {**moment, **(moment.get("network") if isinstance(moment.get("network"), dict) else {})}
    for key in _LISTS:
        listed = both.get(key)
        for one in listed if isinstance(listed, list) else [listed]:
            if isinstance(one, dict):
                yield one


def _time_s(stamp: Any) -> float:
    """The time of a moment; without a zone it is taken for UTC.

    Examples
    --------
    >>> _time_s({"date": "2026-09-21", "time": "14:00:01", "utc": 1})
    1789999201.0
    """
    if not isinstance(stamp, dict):
        return float("nan")
    return time_s_of(f"{stamp.get('date', '')} {stamp.get('time', '')}")
