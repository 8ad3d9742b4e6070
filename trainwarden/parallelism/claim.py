"""What one source says of a job's layout, as the fields of an event of kind ``parallel_layout``."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec

from trainwarden.errors import RecordError
from trainwarden.records import EventRecord
from trainwarden.topics import fields_as

Source = Literal["settings", "arguments", "groups"]
TRUST: Final[tuple[Source, ...]] = ("settings", "arguments", "groups")
"""Most trusted first: what a person wrote down, what the job was asked for, what its processes were seen to make."""
MAX_CHARS: Final = 2_000
Size = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]


class Claim(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One source's word, from one process.

    Parameters
    ----------
    source : {"settings", "arguments", "groups"}
    world_size : int
    started_s : float
        When the process began, wall time: words of an attempt before are no contradiction.
    framework : str
        Whose arguments or names of groups they are.
    tp, cp, dp, pp, ep : int, optional
        Ranks of a group.
    order : str
        Axes, fastest first, as ``tp-cp-pp-dp``; empty: the usual one.
    uneven : str
        Why replicas must not run unequal numbers of micro-batches, by ``; ``.
    groups : str
        The groups that this rank is in, as ``tp=0-7;pp=0-56:8`` (see `trainwarden.parallelism.groups`).
    """

    source: Source
    world_size: Size
    started_s: float
    framework: str = ""
    tp: Size | None = None
    cp: Size | None = None
    dp: Size | None = None
    pp: Size | None = None
    ep: Size | None = None
    order: str = ""
    uneven: str = ""
    groups: str = ""

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes that it tells."""
        told = {kind: getattr(self, kind) for kind in ("tp", "cp", "dp", "pp", "ep")}
        return {kind: size for kind, size in told.items() if size is not None}

    @property
    def says(self) -> bool:
        """Whether there is anything in it."""
        return bool(self.sizes or self.uneven or self.groups)

    @property
    def said_by(self) -> str:
        """The source for people."""
        what = {"settings": "settings", "arguments": "arguments", "groups": "process groups"}[self.source]
        return f"{self.framework} {what}" if self.framework and self.source == "arguments" else what


def event_fields(claim: Claim) -> dict[str, Any]:
    """`claim` as the fields of an event.

    Examples
    --------
    >>> event_fields(Claim(source="settings", world_size=8, started_s=5.0, tp=2))
    {'source': 'settings', 'world_size': 8, 'started_s': 5.0, 'tp': 2}
    """
    fields: dict[str, Any] = msgspec.to_builtins(claim)
    return fields


def claim_of(event: EventRecord) -> Claim | None:
    """The claim that `event` carries; None if it is of another kind or damaged."""
    if event.kind != "parallel_layout" or event.rank is None:
        return None
    try:
        claim = fields_as(event, Claim)
    except RecordError:
        return None
    words = claim.framework + claim.uneven  # people will read them
    return claim if words.isprintable() and len(words) <= MAX_CHARS else None
