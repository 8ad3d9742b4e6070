"""What engine and launchers tell each other: capabilities, states, operations, reports, refusals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal

import msgspec

from trainwarden.launching.rates import Rates
from trainwarden.records import IncidentKind, Rank

Verb = Literal[
    "restart", "rebalance", "move", "stop", "pause", "resume", "checkpoint", "cordon", "uncordon", "evict", "replace",
    "validate",
]  # fmt: skip
NODE_VERBS: Final[frozenset[Verb]] = frozenset({"cordon", "uncordon", "evict", "replace"})
"""Verbs whose targets are nodes; they may take hours and leave the job's ranks to go on meanwhile."""

JobPhase = Literal["pending", "running", "paused", "failed", "restarting", "stopping", "ended"]
NodeCondition = Literal["healthy", "suspect", "cordoned", "lost", "spare"]
Progress = Literal["unknown", "accepted", "running", "done", "failed", "refused"]
Check = Literal["gemm", "links", "disk", "memory"]
CHECKS: Final[tuple[Check, ...]] = ("gemm", "links", "disk", "memory")
Refusal = Literal["unsupported", "stale", "unknown_job", "unknown_target", "unfit", "over"]

OperationId = Annotated[str, msgspec.Meta(min_length=1, max_length=512)]
Generation = Annotated[int, msgspec.Meta(ge=0)]
Sentence = Annotated[str, msgspec.Meta(max_length=2000)]
MAX_SENTENCE_CHARS = 2000
COORDINATOR_MARK: Final = "coordinator: "
"""How the reason of a cordon begins that the coordinator of many jobs may lift."""


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What a launcher can do; `cannot` says in its own words why it does not do the rest.

    `restarts_itself`: where a rank ends or a node falls silent it starts all ranks again, at once and unasked.
    `restarts_to_validate`: a ``validate`` is of a job that trains, whose ranks it ends and starts again.

    Examples
    --------
    >>> able = Capabilities(can=frozenset({"restart"}), cannot={"evict": "a desk has one node"})
    >>> able.refusal("restart") is None, able.refusal("evict"), able.refusal("pause")
    (True, 'a desk has one node', 'this launcher does not offer pause')
    """

    can: frozenset[Verb]
    cannot: Mapping[Verb, str] = msgspec.field(default_factory=dict)
    restarts_itself: bool = False
    restarts_to_validate: bool = False

    def refusal(self, verb: Verb) -> str | None:
        """None if `verb` can be done, else one sentence why not."""
        return None if verb in self.can else self.cannot.get(verb, f"this launcher does not offer {verb}")


class NodeState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One node of a job, as the launcher sees it, and which ranks are placed on it.

    `waits`: what starts ranks there lives, and has none of this round to run.
    """

    node: str
    state: NodeCondition = "healthy"
    ranks: tuple[Rank, ...] = ()
    why: str = ""
    since_s: float | None = None
    waits: bool = False


class LauncherState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is true of a job now, by its launcher.

    `generation` rises with every operation that is accepted and whenever the launcher itself starts anew; it never
    falls. `attempt` counts the starts of the job's ranks from 0. `under_way` are operations without an end. `step`
    and `micro_batches` (by rank) are as far as the launcher knows. `attempt_age_s` is how long ago the ranks that run
    were started, by the launcher's own clock. `pausable`: all ranks would stand still between two iterations if they
    were asked to. `failures` counts the attempts that a failed rank has ended and that the launcher has followed by
    another by itself; it rises as soon as it has seen the rank.
    """

    job: str
    phase: JobPhase
    generation: Generation
    attempt: int = 0
    nodes: tuple[NodeState, ...] = ()
    ranks_running: tuple[Rank, ...] = ()
    under_way: tuple[str, ...] = ()
    step: int | None = None
    micro_batches: tuple[int, ...] = ()
    attempt_age_s: Annotated[float, msgspec.Meta(ge=0.0)] | None = None
    pausable: bool = False
    failures: Annotated[int, msgspec.Meta(ge=0)] = 0


class Targets(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Whom an operation is about: `ranks` (None = all of the job), or `nodes` for a verb of nodes."""

    ranks: tuple[Rank, ...] | None = None
    nodes: tuple[str, ...] = ()


class Plan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a verb needs to know besides its targets: `micro_batches` by rank for ``rebalance``.

    For ``validate`` the `checks` to be made, of the targets and of whoever is measured beside them. For ``move`` the
    `node_order`: all nodes that have ranks, in the order in which their ranks are to be numbered.
    """

    micro_batches: tuple[Annotated[int, msgspec.Meta(ge=1, le=2**40)], ...] = ()
    checks: tuple[Check, ...] = ()
    node_order: tuple[str, ...] = ()


class Operation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing to be done to a job, once by its `id`.

    `expected_generation` is that of the state it was planned from; `why` and `by` (who wants it) are for people.
    """

    id: OperationId
    job: str
    kind: Verb
    expected_generation: Generation
    targets: Targets = Targets()
    plan: Plan = Plan()
    why: Sentence = ""
    by: str = "engine"


class Accused(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Somebody whom a validation accuses: `ranks` on `nodes`, or the `link` between two of them that are both well."""

    kind: IncidentKind
    text: Sentence
    ranks: tuple[Rank, ...] = ()
    nodes: tuple[str, ...] = ()
    link: tuple[Rank, Rank] | None = None


class Findings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a ``validate`` ended: whom it accuses, of what.

    `judged` are the checks of which all that was asked for could be compared with something: who is accused of nothing
    there is well. `nodes` are those whose ranks came, `rates` what was measured.
    """

    accused: tuple[Accused, ...] = ()
    judged: tuple[Check, ...] = ()
    nodes: tuple[str, ...] = ()
    rates: Rates = Rates()


class Report(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How far an operation is. ``unknown``: never accepted here; only then may it be submitted (again).

    `text` is the progress while it lasts, the reason where it ``failed`` or was ``refused``; `reason` is a refusal's
    for programs. ``done`` and ``failed`` are for good: later polls and repeats are told the same. `findings` come with
    a ``validate`` that is ``done``.
    """

    operation: str
    state: Progress
    text: str = ""
    reason: Refusal | None = None
    findings: Findings | None = None

    @property
    def ended(self) -> bool:
        """Whether nothing more will come of it."""
        return self.state in ("done", "failed", "refused")


def refused(operation: Operation, reason: Refusal, text: str) -> Report:
    """The report that `operation` is refused."""
    return Report(operation=operation.id, state="refused", reason=reason, text=text)


def refusal(operation: Operation, capabilities: Capabilities, generation: int) -> Report | None:
    """The refusal that every launcher owes an operation it has not accepted before; None if there is none.

    Examples
    --------
    >>> able = Capabilities(can=frozenset({"restart"}))
    >>> operation = Operation(id="i1/restart/1", job="j", kind="restart", expected_generation=3)
    >>> refusal(operation, able, 3) is None, refusal(operation, able, 4).reason
    (True, 'stale')
    """
    why_not = capabilities.refusal(operation.kind)
    if why_not is not None:
        return refused(operation, "unsupported", why_not)
    if operation.expected_generation != generation:
        planned = operation.expected_generation
        return refused(operation, "stale", f"it was planned at generation {planned}, the job is at {generation}")
    return None
