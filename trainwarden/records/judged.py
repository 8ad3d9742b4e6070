"""What detection makes of it: votes, verdicts, incidents."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from trainwarden.records.base import IncidentKind, Opinion, Rank, Ratio, Record, Severity


class Suspect(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False):
    """One candidate culprit; whatever of rank, node, device is unknown is None.

    `weight`: what the vote weighs about it, where that was measured for its family of entities.
    """

    score: Ratio
    reason: str
    rank: Rank | None = None
    node: str | None = None
    device: str | None = None
    weight: Annotated[float, msgspec.Meta(ge=0.0)] | None = None


class Vote(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One detector's opinion of one window; `score` and `threshold` are calibrated to 0..1.

    `provisional`: its models had too little to be judged by, and the vote weighs less for it. `evidence` goes into the
    incident that the vote opens.
    """

    opinion: Opinion
    score: Ratio = 0.0
    threshold: Ratio = 0.5
    reason: str = ""
    kind: IncidentKind | None = None
    severity: Severity | None = None
    suspects: tuple[Suspect, ...] = ()
    metrics: tuple[str, ...] = ()
    onset_s: float | None = None
    onset_step: int | None = None
    at_step: int | None = None
    verified: bool = False
    hard: bool = False
    provisional: bool = False
    evidence: dict[str, Any] = msgspec.field(default_factory=dict)


class VerdictRecord(Record, frozen=True, kw_only=True, omit_defaults=True, tag="verdict"):
    """The ensemble's answer for one window of one job, by which rule, with every vote and the model versions used."""

    id: str
    job: str
    time_s: float
    window_s: float
    anomalous: bool
    reason: str
    votes: dict[str, Vote] = msgspec.field(default_factory=dict)
    kind: IncidentKind | None = None
    severity: Severity | None = None
    suspects: tuple[Suspect, ...] = ()
    phase: str = ""
    step: int | None = None
    model_versions: dict[str, str] = msgspec.field(default_factory=dict)
    iteration_s: float | None = None
    rule: Literal["weighted", "transom"] = "weighted"


class IncidentRecord(Record, frozen=True, kw_only=True, omit_defaults=True, tag="incident"):
    """Verdicts of one cause joined, one per problem; updates are revisions. `told_late_s`: nobody was there in time.

    `attempt` is the newest start of the job's ranks that had been heard of when it was opened, counted from 0.
    `unresolved`: closed only as all ranks have ended, so that an action is wanted as long as it was before. A later
    revision without it says that the job trains again or is over; one that is not closed, that the fault goes on or the
    job failed again.
    """

    id: str
    job: str
    kind: IncidentKind
    severity: Severity
    state: Literal["opened", "updated", "closed"]
    revision: int
    opened_at_s: float
    updated_at_s: float
    reason: str
    closed_at_s: float | None = None
    onset_s: float | None = None
    onset_step: int | None = None
    opened_step: int | None = None
    suspects: tuple[Suspect, ...] = ()
    metrics: tuple[str, ...] = ()
    votes: dict[str, Ratio] = msgspec.field(default_factory=dict)
    model_versions: dict[str, str] = msgspec.field(default_factory=dict)
    evidence: dict[str, Any] = msgspec.field(default_factory=dict)
    told_late_s: float | None = None
    attempt: Annotated[int, msgspec.Meta(ge=0)] | None = None
    unresolved: bool = False

    @property
    def wants_action(self) -> bool:
        """Whether something may be done about it: it lasts, or what has ended all ranks is not mended yet."""
        return self.state != "closed" or self.unresolved

    @property
    def standing(self) -> str:
        """Its state as a person is told: ``closed, unresolved`` is not mended yet."""
        return "closed, unresolved" if self.state == "closed" and self.unresolved else self.state


class SamplingRecord(Record, frozen=True, kw_only=True, omit_defaults=True, tag="sampling"):
    """A detector's request to a job's agents: sample every step from `from_step` up to, and not with, `until_step`.

    Steps are named ahead, so that all ranks sample the same ones. An agent may pass it over.
    """

    job: str
    time_s: float
    from_step: Annotated[int, msgspec.Meta(ge=0, lt=1 << 40)]
    until_step: Annotated[int, msgspec.Meta(ge=0, lt=1 << 40)]
    why: str = ""
