"""What the bus keeps for ourselves: what could not be read, and memory to go on from."""

from __future__ import annotations

from typing import Annotated

import msgspec

from trainwarden.records.base import Record


class DeadLetter(Record, frozen=True, kw_only=True, omit_defaults=True, tag="dead_letter"):
    """Bytes that were no record of their topic, kept for a person to look at (cut at 64 KiB)."""

    topic: str
    partition: int
    offset: int
    reason: str
    value: bytes


class SnapshotRecord(Record, frozen=True, kw_only=True, omit_defaults=True, tag="snapshot"):
    """A part of what a detection service remembers of a job, or its offsets; see `trainwarden.detectors.snapshots`."""

    job: str
    number: Annotated[int, msgspec.Meta(ge=1)]
    part: Annotated[int, msgspec.Meta(ge=0, lt=4_096)]
    parts: Annotated[int, msgspec.Meta(ge=0, le=4_096)]
    partition: int
    positions: dict[str, int]
    floors: dict[str, int]
    digest: str
    value: bytes
