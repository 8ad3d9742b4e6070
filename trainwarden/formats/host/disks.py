"""Format: `df`, `df -h` and `df -i`, once or again and again: file systems that are full."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np

from trainwarden.formats.host.mounts import is_sealed
from trainwarden.formats.protocol import NEVER, SURE, Found
from trainwarden.formats.source import Source
from trainwarden.formats.stamps import time_s_of
from trainwarden.formats.verdicts import Verdict, found_of_verdicts

_HEADER: Final = re.compile(
    r"(?m)^Filesystem\s{1,200}(?:Type\s{1,40})?(?:\S{1,20}\s{1,40}){1,4}(?:Use%|IUse%|Capacity)\s{1,8}Mounted on\s*$"
)
# Source, kind, size, used, free and share of a file system. Read from the end: a source may hold blanks.
_ROW: Final = re.compile(
    r"(\S[^\n]{0,200}?)\s{1,200}(?:([a-z][a-z0-9._]{1,20})\s{1,40})?([0-9.]{1,20}[KMGTPEi]{0,2})\s{1,40}"
    r"(-?[0-9.]{1,20}[KMGTPEi]{0,2})\s{1,40}(-?[0-9.]{1,20}[KMGTPEi]{0,2})\s{1,40}([0-9]{1,3})%\s{1,8}(/[^\n]{0,400})$"
)
_LEAST_SHARE: Final = 0.6
_FULL: Final = 100  # percent, of what others than root may use


class Disks:
    """Each table is a moment; the line with a date before it says when."""

    name = "disk report"

    def sniff(self, name: str, head: str) -> float:
        """By the header of the table."""
        del name
        start = head[:4_000]
        if _HEADER.search(start) is None:
            return NEVER
        lines = [line for line in start.split("\n")[:-1] if line.strip()]
        own = sum(_ROW.match(line) is not None or _HEADER.match(line) is not None for line in lines)
        return SURE if own >= _LEAST_SHARE * len(lines) else NEVER  # else a log that prints its disks once

    def read(self, source: Source, columns: Mapping[str, str]) -> Found:
        """See `trainwarden.formats.protocol.Format`."""
        del columns
        return found_of_verdicts(source, "disk report", _verdicts(source.text()))


def _verdicts(text: str) -> Iterator[Verdict]:
    """A verdict for each file system that is written to, of each moment; a full one is reported once."""
    time_s: float | None = None
    inodes, reported = False, set[tuple[str, bool]]()
    for line in text.split("\n"):
        if line.startswith("Filesystem") and _HEADER.match(line) is not None:
            inodes = "IUse%" in line
            continue
        row = _ROW.match(line)
        if row is None:
            stamp_s = time_s_of(line.strip(" #=-\r"))
            time_s = stamp_s if np.isfinite(stamp_s) and stamp_s > 1e8 else time_s
            continue
        place = row[7].strip()
        if is_sealed(place, row[1], row[2] or ""):
            continue
        if int(row[6]) < _FULL:
            reported.discard((place, inodes))
            yield Verdict(place, "", None, None, time_s)
        elif (place, inodes) not in reported:
            reported.add((place, inodes))
            what = "no inode is left" if inodes else f"{row[6]} % of {row[3]} used, {row[5]} left"
            yield Verdict(place, "storage", f"{what} ({row[1].strip()})", None, time_s)
