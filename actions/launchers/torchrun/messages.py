"""What torchrun's agents and the rendezvous service send each other: one JSON object a line.

The agents' side is `trainwarden.torchrun`, which imports the standard library alone and writes these as plain objects.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from trainwarden.launching import Check, LauncherState, Operation, OperationId, Report, Verb

MAX_BYTES: Final = 1 << 20  # of a line: the seats of 4,096 nodes fit
KEPT_OPERATIONS: Final = 64
MOST_NODES: Final = 4096
MOST_RESULT_CHARS: Final = 400_000  # of a validation, so that it fits into a beat
MOST_ROUND: Final = 2**53  # the largest number that JSON readers agree on

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
Text = Annotated[str, msgspec.Meta(max_length=512)]
Number = Annotated[int, msgspec.Meta(ge=0, le=MOST_ROUND)]
Nodes = Annotated[int, msgspec.Meta(ge=1, le=MOST_NODES)]
Ranks = Annotated[tuple[Number, ...], msgspec.Meta(max_length=1024)]
Grow = Literal["worth", "now", "restart"]


class AskState(msgspec.Struct, frozen=True, tag="state", tag_field="do"):
    """What is true now?"""

    job: str


class AskJobs(msgspec.Struct, frozen=True, tag="jobs", tag_field="do"):
    """Which jobs are there for the coordinator?"""


class Submit(msgspec.Struct, frozen=True, tag="submit", tag_field="do"):
    """Carry `operation` out."""

    operation: Operation


class Poll(msgspec.Struct, frozen=True, tag="poll", tag_field="do"):
    """How far is the operation of that id?"""

    job: str
    operation: OperationId


class JobSeen(msgspec.Struct, frozen=True, kw_only=True):
    """A job whose nodes were started with a weight: it needs `minimum` nodes, and uses `maximum`."""

    job: str
    weight: float
    minimum: int
    maximum: int


class Reply(msgspec.Struct, frozen=True, omit_defaults=True):
    """A state, or a report; else `error` is one sentence why there is neither, or `later` why not yet: ask again."""

    state: LauncherState | None = None
    report: Report | None = None
    jobs: tuple[JobSeen, ...] = ()
    error: str | None = None
    later: str | None = None


class Seat(msgspec.Struct, frozen=True):
    """A place of a round: which agent (`life`, unique to one process) on which node."""

    life: Name
    node: Name


class Split(msgspec.Struct, frozen=True, kw_only=True):
    """A plan of micro-batches by rank, as ranks read it from plan.json."""

    number: Number
    micro_batches: Annotated[tuple[Number, ...], msgspec.Meta(max_length=65_536)]
    why: Text
    operation: Text


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """An accepted operation and how far it is; a restart is done with the round of number `until`.

    `by` asked for it, and said `why`; `target` is its node, where it is about one.
    """

    kind: Verb
    report: Report
    until: Number = 0
    by: Text = ""
    why: Text = ""
    target: Text = ""


class Checkpoint(msgspec.Struct, frozen=True):
    """The newest whole checkpoint that a node sees.

    `outlives` is the newest step that the loss of that node leaves; absent if there is none.
    """

    step: Number
    path: Annotated[str, msgspec.Meta(max_length=4096)]
    outlives: Number | None = None


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """All that the service has decided of a job. Agents carry it, so that a service that was killed learns it again.

    `round` numbers the last round that has begun; where `target` is higher, all agents are to come back for the next
    one. `bench` are agents that waited without a place. `proof` is the step of the newest checkpoint at the last
    failure, `failures` counts failures since that step; `failed_rounds` counts all.
    """

    serial: Number = 0
    generation: Number = 0
    round: Number = 0
    target: Number = 1
    roster: Annotated[tuple[Seat, ...], msgspec.Meta(max_length=MOST_NODES)] = ()
    bench: Annotated[tuple[Name, ...], msgspec.Meta(max_length=MOST_NODES)] = ()
    host: Text = ""
    port: Annotated[int, msgspec.Meta(ge=0, le=65_535)] = 0
    world: Number = 0
    resume: Checkpoint | None = None
    cordoned: Annotated[dict[Name, Text], msgspec.Meta(max_length=MOST_NODES)] = {}
    order: Annotated[tuple[Name, ...], msgspec.Meta(max_length=MOST_NODES)] = ()
    paused: bool = False
    over: Annotated[int, msgspec.Meta(ge=0, le=255)] | None = None
    reason: Text = ""
    failed_rounds: Number = 0
    failures: Number = 0
    proof: Number | None = None
    splits: Annotated[tuple[Split, ...], msgspec.Meta(max_length=8)] = ()
    kept: Annotated[tuple[Kept, ...], msgspec.Meta(max_length=KEPT_OPERATIONS)] = ()

    @property
    def newer_than(self) -> tuple[int, int]:
        """By which of two services decided last."""
        return self.round, self.serial


class Failure(msgspec.Struct, frozen=True):
    """The first rank that failed on a node in the round that it is in, in words."""

    rank: Number
    how: Text


class KeeperAt(msgspec.Struct, frozen=True, kw_only=True):
    """Where the keeper of a node listens, and its request for a certificate (PEM).

    `domain` names what its node shares with others that are lost together: a rack, a switch, a power line.
    """

    port: Annotated[int, msgspec.Meta(ge=1, le=65_535)]
    request: Annotated[str, msgspec.Meta(max_length=4096)]
    domain: Text = ""


class Ring(msgspec.Struct, frozen=True, kw_only=True):
    """The keepers of a round, each with host and port and in the order of copying, and what one proves itself with."""

    round: int
    nodes: tuple[tuple[str, str, int], ...]
    ca: str
    certificate: str


class CheckWord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An agent's part in validation `number` of the job: start its process as node `place` of `nodes`, and wait.

    The first node's agent chooses the port, at which all meet at `host`. Then its ranks stand still after `step`, for
    `for_s` at most, and the process measures once it is to. Where this word is missing all goes on.
    """

    number: int
    place: int
    nodes: int
    checks: tuple[Check, ...]
    host: str
    port: int = 0
    for_s: float | None = None
    step: int | None = None
    measures: bool = False


class RankProgress(msgspec.Struct, frozen=True, array_like=True):
    """How far an agent's ranks are (`trainwarden.torchrun.standing.Progress`)."""

    least: Number
    most: Number
    pace_s: Annotated[float, msgspec.Meta(gt=0.0, le=1e9)]
    stride: Annotated[int, msgspec.Meta(ge=1, le=MOST_ROUND)]


class CheckBeat(msgspec.Struct, frozen=True, kw_only=True):
    """How far an agent is with validation `number`; `stands` are its ranks that stand still for it.

    `result` is what its process has written, as text; `error` why there is none.
    """

    number: Number
    port: Annotated[int, msgspec.Meta(ge=0, le=65_535)] = 0
    ready: bool = False
    stands: Ranks = ()
    progress: RankProgress | None = None
    result: Annotated[str, msgspec.Meta(max_length=MOST_RESULT_CHARS)] | None = None
    error: Text | None = None


class Beat(msgspec.Struct, frozen=True, kw_only=True, tag="beat", tag_field="do"):
    """What an agent says of itself, at least twice a second.

    `at` is the round that its ranks are of (0: none). `waits`: it has no ranks and wants a place; its store for the
    next round then listens at `port`. `ranks` were started, `alive` of them run. `finished`: all have ended with 0.
    `left`: it ends now. `moves`: it goes to another service. `split` numbers the plan that its ranks can read.
    """

    at: Number = 0
    waits: bool = False
    port: Annotated[int, msgspec.Meta(ge=0, le=65_535)] = 0
    ranks: Ranks = ()
    alive: Ranks = ()
    failure: Failure | None = None
    finished: bool = False
    left: bool = False
    moves: bool = False
    split: Number = 0
    checkpoint: Checkpoint | None = None
    looks: bool = False
    """Whether it has been given a folder of checkpoints to look in."""
    first_step: Number | None = None
    """The lowest first step of its ranks, once each has finished one under a number of the script's own."""
    start_s: Annotated[float, msgspec.Meta(ge=0.0, le=1e9)] | None = None
    """How long its ranks took to their first steps, where that was seen last."""
    keeper: KeeperAt | None = None
    saves: bool = False
    """Whether all its ranks handle TRAINWARDEN_CHECKPOINT_SIGNAL."""
    holds: bool = False
    """Whether all its ranks can stand still between two steps."""
    check: CheckBeat | None = None
    restored: Number | None = None
    """The step that its ranks went on from by the nodes' memory, which may be older than what was newest."""


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag="hello", tag_field="do"):
    """The first line of an agent.

    `place` is the node rank that a person has given it, `spares` how many torchruns may wait beside `most`. `failures`
    without a newer checkpoint end the job; None: as many as the service's rule says. `grow`: when fewer than `most`
    take in more: at a checkpoint that is worth a restart, at the next one, or with the next restart alone. A job with a
    `weight` is one of the coordinator's; a torchrun that is `held` has just been started, and waits until it is given.
    """

    job: Name
    life: Name
    node: Name
    host: Text
    least: Nodes
    most: Nodes
    beat: Beat
    last_call_s: Annotated[float, msgspec.Meta(ge=0.0, le=86_400.0)] = 30.0
    place: Annotated[int, msgspec.Meta(ge=0, le=2 * MOST_NODES)] | None = None
    spares: Annotated[int, msgspec.Meta(ge=0, le=MOST_NODES)] | None = None
    failures: Annotated[int, msgspec.Meta(ge=1, le=1001)] | None = None
    grow: Grow = "worth"
    weight: Annotated[float, msgspec.Meta(ge=0.0, le=1e6)] | None = None
    held: bool = False
    token: str = ""
    memory: Memory | None = None


class Question(msgspec.Struct, frozen=True, kw_only=True, tag="ask", tag_field="do"):
    """The one line of a person or an engine."""

    ask: AskState | AskJobs | Submit | Poll
    token: str = ""


class Refused(msgspec.Struct, frozen=True):
    """Why whoever has connected is not answered."""

    error: str


class Begin(msgspec.Struct, frozen=True, kw_only=True):
    """An agent's place in a round, and where the store of all is."""

    round: int
    rank: int
    world: int
    host: str
    port: int
    resume: str | None = None


class Word(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the service says to an agent, whenever it changes and as the answer to each `Beat`.

    `memory`, `splits` and `ring` come where they have changed, with the `bus` to which a node is to be watched. `stop`:
    the agent's ranks have to end, as a new round is wanted. `check` is its part in a validation. `save` is the
    operation that has them save a checkpoint now.
    """

    begin: Begin | None = None
    check: CheckWord | None = None
    save: str | None = None
    stop: bool = False
    over: int | None = None
    why: str = ""
    memory: Memory | None = None
    splits: tuple[Split, ...] | None = None
    bus: str | None = None
    ring: Ring | None = None


FIRST: Final = msgspec.json.Decoder(Hello | Question)
BEAT: Final = msgspec.json.Decoder(Beat)
ENCODE: Final = msgspec.json.Encoder().encode
