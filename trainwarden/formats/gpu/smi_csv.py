"""Format: `nvidia-smi --query-gpu=... --format=csv`, with units in the header and in the cells."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from trainwarden.formats.protocol import NEVER, SURE, Found, Misfit, Problem
from trainwarden.formats.source import Source
from trainwarden.formats.tables.plain import PlainTable

_MARKS: Final = re.compile(
    r"(?m)^[^\n]{0,4000}\b(temperature\.gpu|utilization\.gpu|power\.draw|clocks\.(?:current\.)?sm|memory\.used"
    r"|clocks_(?:event|throttle)_reasons\.active|pcie\.link\.gen|ecc\.errors\.)"
)


_BARE: Final = re.compile(
    r"[0-9]{4}/[0-9]{2}/[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{3}, |[0-9]{1,2}, (?:NVIDIA|Tesla) "
)


class NvidiaSmiCsv:
    """One row for each GPU and sample."""

    name = "nvidia-smi csv"

    def sniff(self, name: str, head: str) -> float:
        """By names of columns that only nvidia-smi has."""
        del name
        if _BARE.match(head):
            return SURE
        first = "\n".join(head.split("\n", 5)[:5])
        return SURE if _MARKS.search(first) and ("," in first or ";" in first or "\t" in first) else NEVER

    def read(self, source: Source, columns: Mapping[str, str]) -> Found:
        """See `trainwarden.formats.protocol.Format`."""
        if _BARE.match(source.head):
            remedy = "write the fields of --query-gpu as its first line, or leave noheader out of --format"
            raise Misfit(source.name, [Problem(1, "", "there is no header that names the columns", remedy)])
        return PlainTable().read(source, columns)
