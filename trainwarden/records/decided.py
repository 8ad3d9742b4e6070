"""What is done about it, and what people say to that."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from trainwarden.records.base import ActionKind, IncidentKind, Outcome, Record, Severity


class ActionRecord(Record, frozen=True, kw_only=True, omit_defaults=True, tag="action"):
    """What the engine decided and what became of it; one record per change of `outcome`, same id.

    `severity` is how grave the trouble is taken to be by what is done about it; where that was raised, `after` is the
    action that failed or did not help. `blames` is the node of the incident's first suspect. What a person
    has asked for has a `command` in place of the `incident`.

    `generation` is the launcher's then (`trainwarden.launching`), `plan_digest` stands for all that would be done, `by`
    is who approved it.
    """

    id: str
    incident: str | None = None
    job: str
    kind: ActionKind
    outcome: Outcome
    at_s: float
    why: str
    finished_at_s: float | None = None
    plan: dict[str, Any] = msgspec.field(default_factory=dict)
    generation: int | None = None
    plan_digest: str | None = None
    by: str | None = None
    severity: Severity | None = None
    after: str | None = None
    blames: str | None = None
    command: str | None = None

    @property
    def cause(self) -> str:
        """Id of the incident, or of the person's word, that it is about."""
        return self.incident or self.command or self.id


class Signature(msgspec.Struct, frozen=True, kw_only=True):
    """Whose key vouches for a command: its name, when (Unix seconds), a number used once, and the signature in hex."""

    by: str
    at_s: float
    nonce: str
    value: str


class CommandRecord(Record, frozen=True, kw_only=True, omit_defaults=True, tag="command"):
    """A person's word to the engine: on one action (by the `plan_digest` that was shown), on all acting, or a silence.

    A silence lasts until `until_s`, of incidents of that kind whose first suspect is on that node; None means any. An
    engine's own word is the latch: for the reason `why` no more nodes are taken out, until a person's reset. After a
    `node` was set healthy, or uncordoned, older evidence against it counts no more. `signature` vouches for all of it
    (`trainwarden.commands.trust`).
    """

    id: str
    job: str
    at_s: float
    kind: Literal["approve", "deny", "stop", "resume", "silence", "latch", "reset", "set_healthy", "cordon", "uncordon"]
    by: str
    action: str | None = None
    plan_digest: str | None = None
    until_s: Annotated[float, msgspec.Meta(ge=0.0, le=1e11)] | None = None
    incident_kind: IncidentKind | None = None
    node: str | None = None
    why: str = ""
    signature: Signature | None = None


class TaskStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the coordinator says of a task: nodes that it has, is to have, and would have if jobs were only restarted.

    `throughput` is by number of nodes from 0, of which `assumed` were not measured. The three `waf` are weight times
    throughput, those of `waf_s` their sums over time since the coordinator's start. `mode` and `event` are the
    coordinator's: what it may do, and what it has planned for last.
    """

    nodes: tuple[str, ...] = ()
    planned: int | None = None
    restart_only: int | None = None
    throughput: tuple[float | None, ...] = ()
    assumed: tuple[int, ...] = ()
    waf: dict[str, float] = msgspec.field(default_factory=dict)
    waf_s: dict[str, float] = msgspec.field(default_factory=dict)
    mode: str = "observe"
    event: str = ""
    phase: str = ""
    why: str = ""


class TaskRecord(Record, frozen=True, kw_only=True, omit_defaults=True, tag="task"):
    """A job that the coordinator may give nodes, or take them from; the newest of a job holds.

    It is worth nothing on fewer than `minimum` nodes, and gets no more than `maximum`. `weight` compares jobs.
    `work_per_step` is a step's work in a unit that all jobs share; with `work_grows` each node brings as much to a
    step. `throughput` is work a second by number of nodes from 0, where it was measured before. `by` is who has
    registered it.
    """

    id: str
    job: str
    at_s: float
    weight: Annotated[float, msgspec.Meta(ge=0.0, le=1e6)] = 1.0
    minimum: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 1
    maximum: Annotated[int, msgspec.Meta(ge=1, le=10_000)]
    work_per_step: Annotated[float, msgspec.Meta(gt=0.0, le=1e30)] = 1.0
    work_grows: bool = False
    throughput: tuple[Annotated[float, msgspec.Meta(ge=0.0, le=1e30)] | None, ...] = ()
    finished: bool = False
    by: str = ""
    status: TaskStatus | None = None
