"""Format: `ethtool DEVICE`, the settings of a port: its speed, its duplex and whether it has a link."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
import pandas as pd

from trainwarden.errors import DataError
from trainwarden.formats.building import metric_table
from trainwarden.formats.protocol import NEVER, SURE, Found
from trainwarden.formats.source import Source
from trainwarden.formats.stamps import time_s_of
from trainwarden.formats.verdicts import Verdict, verdict_tables

_BEGINS: Final = re.compile(r"(?m)^Settings for ([A-Za-z0-9_.@:-]{1,40}):\s{0,4}$")
_SETTING: Final = re.compile(r"\s{1,16}(Speed|Duplex|Link detected): ([A-Za-z0-9/!]{1,20})")
_SPEED: Final = re.compile(r"([0-9]{1,7})Mb/s$")
_MBPS: Final = 1.25e5
_UNJUDGED: Final = "it tells neither the speed of a port nor whether it has a link; run `ethtool DEVICE` as root"


class Ethtool:
    """One port or several, of one node or several; ports of one name are compared where all files have been read."""

    name = "port settings"

    def sniff(self, name: str, head: str) -> float:
        """By the line that begins a port, and one of its settings."""
        del name
        start = head[:8_000]
        return SURE if _BEGINS.search(start) and "NIC statistics:" not in start and _SETTING.search(start) else NEVER

    def read(self, source: Source, columns: Mapping[str, str]) -> Found:
        """See `trainwarden.formats.protocol.Format`."""
        del columns
        when_s = source.path.stat().st_mtime
        rows = list(_rows(source.text(), when_s))
        table = metric_table(pd.DataFrame(rows).drop(columns="is_half")) if rows else None
        if table is None:
            raise DataError(f"{source.name}: {_UNJUDGED}")
        halves = [
            Verdict(row["device"], "port_errors", "half duplex: its partner did not negotiate", None, row["time_s"])
            for row in rows if row["is_half"]
        ]  # fmt: skip
        notes = [] if all(row["time_s"] != when_s for row in rows) else ["its time is the file's last change"]
        return Found(rows=len(rows), metrics=[table], logs=verdict_tables("settings", halves, when_s), notes=notes)


def _rows(text: str, when_s: float) -> Iterator[dict[str, Any]]:
    """A row for each port that tells something."""
    row: dict[str, Any] = {}
    for line in [*text.split("\n"), "Settings for end:"]:
        if (begins := _BEGINS.match(line)) is not None:
            if len(row) > 3:
                yield row
            row = {"time_s": when_s, "device": begins[1], "is_half": False}
        elif row and (match := _SETTING.match(line)) is not None:
            if match[1] == "Duplex":
                row["is_half"] = match[2] == "Half"
            elif match[1] == "Link detected":
                row["nic_link_state"] = float(match[2] == "yes")
            elif (speed := _SPEED.match(match[2])) is not None:
                row["nic_speed_bytes_per_second"] = _MBPS * float(speed[1])
        elif (
            not line.startswith((" ", "\t"))
            and np.isfinite(stamp_s := time_s_of(line.strip(" #=-\r")))
            and stamp_s > 1e8
        ):
            when_s = stamp_s
