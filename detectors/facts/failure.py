"""What is known of one failed process."""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from trainwarden.detectors.protocol import SURVIVED
from trainwarden.records import TRANSITION_PHASES, EventRecord, IncidentKind, Severity

SURVIVED_S: Final = "transition_seconds"  # evidence: seconds of the transitions by phase
MOST_SURVIVED: Final = 16  # transitions whose sentences are kept
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
    renewed: bool = False  # its launcher starts this rank again alone, while the others go on
    survived: list[str] = msgspec.field(default_factory=list)  # what became of those transitions
    survived_s: dict[str, float] = msgspec.field(default_factory=dict)  # seconds of them by phase
    went_on_s: float | None = None  # when the newest of those transitions was over
    over: bool = False  # its ranks were started again: it is reported once, if it was not, and forgotten

    @property
    def waits(self) -> bool:
        """Whether its rank has not joined the others again, or that is not told yet."""
        return self.renewed and not (self.over and self.reported)

    @property
    def transition(self) -> dict[str, Any]:
        """What an incident says of how the others went on."""
        if not self.renewed:
            return {}
        return {"renewed": True, SURVIVED: [*self.survived], SURVIVED_S: {**self.survived_s}}

    def follow(self, known: Failure) -> None:
        """Keep what `known`, of the same process, says of how the others went on."""
        self.renewed, self.over = known.renewed, known.over
        self.survived, self.survived_s, self.went_on_s = known.survived, known.survived_s, known.went_on_s

    def survive(self, event: EventRecord) -> None:
        """Note a transition of the survivors; once this rank has joined, the failure is over and reported once more."""
        gone, joined = (_ranks(event.fields.get(name)) for name in ("gone", "joined"))
        if self.time_s >= event.time_s:  # who joined then has died since
            joined = set()
        if not self.renewed or self.rank not in gone | joined:
            return
        self.survived = [*self.survived, event.message][-MOST_SURVIVED:]
        self.went_on_s = max(event.time_s, self.went_on_s or event.time_s)
        for phase in TRANSITION_PHASES:
            if isinstance(spent_s := event.fields.get(f"{phase}_s"), int | float):
                self.survived_s[phase] = round(self.survived_s.get(phase, 0.0) + spent_s, 4)
        if self.rank in joined:
            self.over, self.reported, self.hold_s = True, self.role == "stop", 0.0  # a stop is not reported


def _ranks(said: object) -> set[int]:
    """The ranks of a field such as ``1, 2``."""
    return {int(one) for one in said.split(", ") if one.isdecimal()} if isinstance(said, str) else set()


def one_was_killed(stops: list[Failure], cascades: list[Failure]) -> bool:
    """True if one process was stopped alone: it went first, the others broke off, and any further stop came later."""
    first = stops[0]
    alone = all(stop.time_s - first.time_s > 0.15 for stop in stops[1:])
    return alone and all(cascade.time_s > first.time_s - 0.1 for cascade in cascades)
