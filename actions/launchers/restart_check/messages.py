"""What launchers ask before ranks start again, and what they are told: who is to be measured, and who is at fault."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple, Protocol

import msgspec

from trainwarden.launching import Check, Findings


class Outcome(NamedTuple):
    """How a validation ended: `findings`, or one sentence why there are none."""

    findings: Findings | None
    error: str | None = None


class OpenSuspicion(msgspec.Struct, frozen=True, kw_only=True):
    """An open incident whose suspects no validation has cleared or confirmed.

    `action` is the id of the record that says what comes of it, `why` the incident in words.
    """

    incident: str
    action: str
    why: str
    checks: tuple[Check, ...]
    nodes: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()


class CheckRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be measured: of the nodes `nodes`, and of others beside them; of all, if none is named."""

    checks: tuple[Check, ...]
    nodes: tuple[str, ...] = ()
    doubts: tuple[OpenSuspicion, ...] = ()


class Conclusion(msgspec.Struct, frozen=True, kw_only=True):
    """What follows from a measurement: nodes that are at fault by themselves, and a sentence for people."""

    confirmed: tuple[str, ...] = ()
    said: str = ""


class Suspicions(Protocol):
    """Who is suspected of what (`trainwarden.actions.suspicions.on_bus.SuspicionsOnBus`)."""

    def wanted(self, nodes: Collection[str]) -> CheckRequest | None:
        """What is to be measured of `nodes` before their ranks start; None: nothing. May wait, for the bus."""
        ...

    def conclude(self, wanted: CheckRequest, outcome: Outcome) -> Conclusion:
        """What follows from `outcome`; it is told on the bus as well, without waiting for that."""
        ...


class Child(Protocol):
    """A validation as a process (`trainwarden.actions.launchers.restart_check.measuring.Measurement`)."""

    pid: int

    @property
    def ended(self) -> bool: ...
    @property
    def ready(self) -> bool: ...
    def begin(self) -> None: ...
    def kill(self) -> None: ...
    def outcome(self) -> Outcome: ...
