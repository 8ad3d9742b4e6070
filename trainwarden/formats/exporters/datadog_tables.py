"""Columns of Datadog's exports: queries as names, and a column for each host."""

from __future__ import annotations

import re
from typing import Final

import pandas as pd

from trainwarden.formats import names

_QUERY: Final = re.compile(r"(?:avg|sum|max|min)[:_]([A-Za-z0-9_.]{1,120})(?:\{[^{}]{0,200}\})?(?: by .{0,100})?$")
_HOST: Final = re.compile(r"host:(\S{1,120})$")
LEAST_HOSTS: Final = 2


def plainly_named(frame: pd.DataFrame, file: str) -> pd.DataFrame:
    """`frame` with metrics for queries, and with a row for each host where it has a column for each.

    Examples
    --------
    >>> frame = pd.DataFrame([[1, "a1", 0.2]], columns=["timestamp", "host", "avg:system.cpu.stolen{*} by {host}"])
    >>> plainly_named(frame, "t.csv").columns.tolist()
    ['timestamp', 'host', 'system.cpu.stolen']
    >>> frame = pd.DataFrame([[1, 0.2, 0.3]], columns=["timestamp", "host:a1", "host:a2"])
    >>> plainly_named(frame, "avg_system.cpu.stolen by host.csv")["host"].tolist()
    ['a1', 'a2']
    """
    asked = {
        one: match[1] for one in frame.columns if (match := _QUERY.match(str(one))) is not None and ":" in str(one)
    }
    if asked and len(set(asked.values())) == len(asked):
        frame = frame.rename(columns=asked)
    hosts = {one: match[1] for one in frame.columns if (match := _HOST.match(str(one))) is not None}
    title = _QUERY.match(re.sub(r"\.(?:csv|tsv|json)(?:\.gz)?$", "", file.rsplit("/", 1)[-1]))
    if len(hosts) < LEAST_HOSTS or title is None or names.metric_of(title[1]) is None:
        return frame
    kept = [one for one in frame.columns if one not in hosts]
    parts = [frame[kept].assign(host=host, **{title[1]: frame[column]}) for column, host in hosts.items()]
    return pd.concat(parts, ignore_index=True)
