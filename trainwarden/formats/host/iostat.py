"""Format: what `iostat -xt` prints of disks and processors, and `vmstat -t` of processors, again and again."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np
import pandas as pd

from trainwarden.errors import DataError
from trainwarden.formats.building import metric_table
from trainwarden.formats.host.sysstat import Work, is_pseudo, number
from trainwarden.formats.protocol import NEVER, SURE, Found
from trainwarden.formats.source import Source
from trainwarden.formats.stamps import time_s_of

_TITLE: Final = re.compile(r"Linux \S{1,80} \(([^)\n]{1,100})\)\s")
_DEVICES: Final = re.compile(r"(?m)^Device:?\s{1,40}[^\n]{0,400}await")
_VMSTAT: Final = re.compile(r"(?m)^procs -{2,40}memory[^\n]{0,200}\n\s{0,4}r\s{1,4}b\s{1,8}swpd\s[^\n]{0,200}")
_DATED: Final = re.compile(r"([0-9]{2})/([0-9]{2})/((?:20)?[0-9]{2}) ([0-9]{2}:[0-9]{2}:[0-9]{2})(?: ([AP]M))?$")
# Columns of avg-cpu and of vmstat, in percent.
_SHARES: Final = {
    "%steal": "host_cpu_steal_ratio", "%iowait": "host_cpu_iowait_ratio", "%system": "host_cpu_system_ratio",
    "st": "host_cpu_steal_ratio", "wa": "host_cpu_iowait_ratio", "sy": "host_cpu_system_ratio",
}  # fmt: skip
_STAMPED: Final = "no line says when it was: run it with -t, or give node_exporter's text of the same host"
_EVERY_S: Final = 1.0
_UNTIMED: Final = "no times written (`iostat -t`): reports taken for a second apart, the last one at the file's change"
_NOTE: Final = "no zone is written: times are taken for UTC"


class Iostat:
    """Blocks of one host; the first report of iostat is of all time since its boot and is left out."""

    name = "iostat report"

    def sniff(self, name: str, head: str) -> float:
        """By the header of disks that have waiting times, or of vmstat."""
        del name
        start = head[:8_000]
        return SURE if _VMSTAT.search(start) or (_TITLE.match(start) and _DEVICES.search(start)) else NEVER

    def read(self, source: Source, columns: Mapping[str, str]) -> Found:
        """See `trainwarden.formats.protocol.Format`."""
        del columns
        text = source.text()
        is_vmstat = _VMSTAT.search(text[:8_000]) is not None
        untimed = not is_vmstat and not any(np.isfinite(_stamp_s(line.strip())) for line in text[:8_000].split("\n"))
        if untimed:
            text = _stamped(text, source.path.stat().st_mtime)
        rows = list(_of_vmstat(text) if is_vmstat else _of_iostat(text))
        table = metric_table(pd.DataFrame(rows)) if rows else None
        if table is None:
            raise DataError(f"{source.name}: {_STAMPED}")
        return Found(rows=len(rows), metrics=[table], notes=[_UNTIMED if untimed else _NOTE])


def _stamped(text: str, last_s: float) -> str:
    """`text` with a stamp before each report: those of each host end at `last_s`."""
    lines: list[str] = []
    for part in re.split(r"(?m)^(?=Linux )", text):
        begins = next((word for word in ("avg-cpu:", "Device") if re.search(rf"(?m)^{word}", part)), "avg-cpu:")
        left = len(re.findall(rf"(?m)^{begins}", part))
        for line in part.split("\n"):
            if line.startswith(begins):
                left -= 1
                lines.append(datetime.fromtimestamp(last_s - left * _EVERY_S, UTC).isoformat())
            lines.append(line)
    return "\n".join(lines)


def _of_iostat(text: str) -> Iterator[dict[str, Any]]:
    """A row of the host and one of each disk, of each report but the first."""
    node, time_s, reports = "", np.nan, 0
    header: list[str] = []
    work = Work()
    for line in text.split("\n"):
        cells = line.split()
        if (title := _TITLE.match(line)) is not None:
            node, time_s, reports = title[1], np.nan, 0
        elif not cells:
            header = []
        elif cells[0] in ("avg-cpu:", "Device", "Device:"):
            header = cells
        elif not header:
            stamp_s = _stamp_s(line.strip())
            reports += int(np.isfinite(stamp_s))
            time_s = stamp_s
        elif reports > 1 and np.isfinite(time_s):
            if header[0] == "avg-cpu:":
                yield {"time_s": time_s, "node": node, "device": "host", **_shares(header[1:], cells)}
            elif len(cells) == len(header) and not is_pseudo(cells[0]):
                values = dict(zip(header[1:], map(number, cells[1:]), strict=True))
                row = work.disk(node, cells[0], time_s, values)
                yield {"time_s": time_s, "node": node, "device": cells[0], **row}


def _of_vmstat(text: str) -> Iterator[dict[str, Any]]:
    """A row of the host for each line with a stamp; the first one is of all time since its boot."""
    header: list[str] = []
    rows = 0
    for line in text.split("\n"):
        cells = line.split()
        if cells[:3] == ["r", "b", "swpd"]:
            header = [cell for cell in cells if not cell.isupper()]  # the last names the zone of the stamps
        elif header and len(cells) == len(header) + 2 and cells[0].isdecimal():
            time_s = time_s_of(" ".join(cells[-2:]))
            rows += 1
            if np.isfinite(time_s) and rows > 1:
                swap = 1024.0 * number(cells[header.index("swpd")])
                yield {"time_s": time_s, "device": "host", "host_swap_used_bytes": swap, **_shares(header, cells[:-2])}


def _shares(header: list[str], cells: list[str]) -> dict[str, float]:
    return {_SHARES[name]: 0.01 * number(cell) for name, cell in zip(header, cells, strict=False) if name in _SHARES}


def _stamp_s(text: str) -> float:
    """The time of a report: as in the C locale, months first, or ISO 8601."""
    if (dated := _DATED.match(text)) is None:
        return time_s_of(text)
    year = dated[3] if len(dated[3]) == 4 else f"20{dated[3]}"
    clock_s = time_s_of(f"{year}-{dated[1]}-{dated[2]} {dated[4]}")
    hour = int(dated[4][:2])
    shift = {"AM": -12 if hour == 12 else 0, "PM": 12 if hour < 12 else 0}.get(dated[5] or "", 0)
    return clock_s + 3600.0 * shift
