"""Format: answers of NCCL's RAS service (`ncclras -v`, `ncclras -f json`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from trainwarden.formats.protocol import NEVER, SURE, Found
from trainwarden.formats.source import Source

MAX_BYTES: Final = 256 * 1024 * 1024


class RasAnswer:
    """One answer a file; several files of one job are compared in the order of their names."""

    name = "nccl ras"

    def sniff(self, name: str, head: str) -> float:
        """By the JSON's keys or the text's headings."""
        del name
        if head.lstrip()[:1] == "{" and '"communicators"' in head and '"nccl_version"' in head:
            return SURE
        start = head[:8_000]
        return SURE if "NCCL version" in start and ("Job summary" in start or "Communicators..." in start) else NEVER

    def read(self, source: Source, columns: Mapping[str, str]) -> Found:
        """See `trainwarden.formats.protocol.Format`."""
        del columns
        data = source.data(MAX_BYTES)
        return Found(rows=max(1, data.count(b"\n")), ras=[data])
