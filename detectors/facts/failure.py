"""What is known of one failed process."""

from __future__ import annotations

from typing import Literal

import msgspec

from trainwarden.records import IncidentKind, Severity

Role = Literal["root", "cascade", "stop"]


class Failure(msgspec.Struct):
    """One process: what it did, and whether others have caused it."""

    rank: int | None
    node: str
    time_s: float
    seen_s: float
    role: Role
    kind: IncidentKind
    severity: Severity
    reason: str
    step: int | None = None
    spoken: bool = False
    hold_s: float = 0.0
    aborted: bool = False
    waited: bool = False  # for others, until PyTorch's watchdog ended it
    bare: bool = False  # an exit code alone: the output may hold the exception
    unknown: bool = False  # nothing tells how it ended: by whoever ended the command, perhaps
    of_command: bool = False  # the command as a whole, not one of its ranks
    reported: bool = False
    over: bool = False  # its ranks were started again: it is reported once, if it was not, and forgotten


def one_was_killed(stops: list[Failure], cascades: list[Failure]) -> bool:
    """True if one process was stopped alone: it went first, the others broke off, and any further stop came later."""
    first = stops[0]
    alone = all(stop.time_s - first.time_s > 0.15 for stop in stops[1:])
    return alone and all(cascade.time_s > first.time_s - 0.1 for cascade in cascades)
