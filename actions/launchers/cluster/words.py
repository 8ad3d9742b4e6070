"""What the nodes of a job and its leader tell each other: reports one way, orders the other, again and again."""

from __future__ import annotations

import re
from math import inf
from typing import Annotated, Final, Literal

import msgspec

from actions.launchers.cluster.ledger import Ledger, Number
from actions.launchers.leases.words import MOST_EPOCH, Epoch, Name, SeenEpoch
from actions.launchers.restart_check.trial import Trial, TrialSaid

MOST_NODES: Final = 1024
MOST_PAUSE_S: Final = 60.0
REPORTS_PER_S: Final = 200.0  # that come to a leader of many nodes
MAX_BYTES: Final = 524_288  # an attempt of `MOST_NODES` nodes, whose names have up to 400 bytes, fits
Count = Annotated[int, msgspec.Meta(ge=0, le=MOST_NODES)]
Sentence = Annotated[str, msgspec.Meta(max_length=2000)]
ExitCode = Annotated[int, msgspec.Meta(ge=0, le=255)]
Seconds = Annotated[float, msgspec.Meta(ge=0.0, le=1e9)]
Grow = Literal["worth", "now", "restart"]
AttemptId = tuple[Epoch, Number]
"""Rises with every attempt of a job, also where a leader does not know all that those before it began."""


class Shape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a person asked for, alike on every node.

    Attributes
    ----------
    nodes, least_nodes : int
        How many train, and with how many at least after a loss that no spare makes up for.
    spares : int
        How many more may wait.
    ranks : int
        On each node.
    restarts : int
        How often an attempt in which a rank failed is followed by another before a newer checkpoint is there.
    grow : str
        When fewer than `nodes` take in more: at a whole checkpoint once that is worth a restart, at the next one, or
        with the next restart alone.
    """

    nodes: Annotated[int, msgspec.Meta(ge=1, le=MOST_NODES)]
    least_nodes: Annotated[int, msgspec.Meta(ge=1, le=MOST_NODES)]
    spares: Count = 0
    ranks: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 1
    restarts: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 3
    grow: Grow = "worth"

    def enough_without(self, heard: int) -> bool:
        """Whether an attempt could run on nodes beside the `heard` ones.

        Who leads no more sends its nodes away by this, and who leads next waits for as long as that takes.

        Examples
        --------
        >>> shape = Shape(nodes=2, least_nodes=2, spares=2)
        >>> shape.enough_without(2), shape.enough_without(3)
        (True, False)
        """
        return self.nodes + self.spares - heard >= self.least_nodes

    def __str__(self) -> str:
        """The options of `trainwarden launch` that say this."""
        return (
            f"--nnodes {self.nodes} --min-nodes {self.least_nodes} --spares {self.spares} --nproc {self.ranks} "
            f"--max-restarts {self.restarts} --grow {self.grow}"
        )


class Patience(msgspec.Struct, frozen=True, kw_only=True):
    """How long a leader waits for whom, in seconds.

    Attributes
    ----------
    lost_s : float
        A node that is silent for so long is lost.
    isolated_s : float
        A node that hears of nobody for so long stops its ranks itself.
    join_s : float
        For nodes that are missing, before the job runs with fewer.
    give_up_s : float
        For `Shape.least_nodes`, before the job is given up; and for anybody, before a node gives up.
    poll_s : float
        Between two reports of a node, in a job of few nodes.
    back_off_s : float
        Between the second failure of ranks without a newer checkpoint and the attempt after it; twice as long with each
        further one. Meanwhile detection may say which node it is.
    """

    lost_s: float = 5.0
    isolated_s: float = 12.0
    join_s: float = 30.0
    give_up_s: float = 600.0  # torchrun's time-out for joining (elastic/rendezvous/dynamic_rendezvous.py)
    poll_s: float = 0.25
    back_off_s: float = 5.0

    def next_s(self, nodes: int) -> float:
        """How long each of so many nodes is to wait between two reports, in seconds."""
        return max(self.poll_s, nodes / REPORTS_PER_S)

    def lost_after_s(self, nodes: int) -> float:
        """After how long a silent one of so many nodes is lost, in seconds: some reports may be lost on the way."""
        return max(self.lost_s, 8 * self.next_s(nodes))

    def pause_s(self, failures: int) -> float:
        """For how long nothing begins after so many failures in vain, in seconds.

        Examples
        --------
        >>> [Patience().pause_s(failures) for failures in (0, 1, 2, 3, 4, 99)]
        [0.0, 0.0, 5.0, 10.0, 20.0, 60.0]
        """
        return 0.0 if failures < 2 else min(self.back_off_s * 2.0 ** min(failures - 2, 30), MOST_PAUSE_S)


class Attempt(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One start of all ranks.

    Attributes
    ----------
    epoch : int
        Of the leader that began it.
    number : int
        From 1.
    roster : tuple of str
        The processes of the nodes that take part, in the order of their node ranks.
    master, port : str, int
        Where the ranks meet: the first node's.
    failures : int
        How many attempts before it ended by a rank that failed.
    outlived : int
        So many of these were before the job had got further: the attempt began from a newer checkpoint than the last.
    checkpoint, step : str, int, optional
        What it goes on from: an entry of the folder of checkpoints, and its step.
    """

    epoch: Epoch
    number: Number
    roster: Annotated[tuple[Name, ...], msgspec.Meta(min_length=1, max_length=MOST_NODES)]
    master: Name
    port: Annotated[int, msgspec.Meta(ge=1, le=65_535)]
    failures: Annotated[int, msgspec.Meta(ge=0, le=2**31)] = 0
    outlived: Annotated[int, msgspec.Meta(ge=0, le=2**31)] = 0
    checkpoint: Annotated[str, msgspec.Meta(max_length=4096)] | None = None
    step: Annotated[int, msgspec.Meta(ge=0, le=2**53)] | None = None

    @property
    def id(self) -> AttemptId:
        """By which attempts are told apart and ordered."""
        return self.epoch, self.number

    @property
    def in_vain(self) -> int:
        """How many attempts ended by a rank that failed since the job has got further."""
        return max(0, self.failures - self.outlived)


class Over(msgspec.Struct, frozen=True):
    """That the job is over: the exit code of every launcher, and why, where it is not that all went well."""

    code: ExitCode
    why: Sentence = ""


class Report(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What is true on a node.

    Attributes
    ----------
    life : str
        The launcher's process on the node, unlike any before it there.
    node_rank : int, optional
        Its place among the nodes, where a person has named one.
    host, port : str, int
        Where its first rank could be met.
    alive : int
        Ranks that run.
    ran : tuple of int, optional
        The attempt whose ranks run here, or ran last; what follows is of that one.
    state : str
        ``idle``: none ran yet. ``stopped``: they were stopped before their end. ``failed``: one did, with `code`.
    first_step : int, optional
        The lowest first step of its ranks, once each has finished one.
    age_s : float, optional
        How long ago those that run were started.
    start_s : float, optional
        How long its ranks took from their start to the first step of all, where that was seen last.
    newest : Attempt, optional
        The newest attempt that was heard of, whoever takes part.
    obeyed_epoch, obeyed_holder : int, str
        The leader that is obeyed here, or was last.
    ledger : Ledger, optional
        The newest that was heard of.
    trial : TrialSaid, optional
        How the newest measurement between two attempts has ended here.
    over : Over, optional
        The job is over: a leader has said so, or a person wishes it here.
    """

    job: Name
    life: Name
    node: Name
    shape: Shape
    node_rank: Annotated[int, msgspec.Meta(ge=0, lt=2 * MOST_NODES)] | None = None
    host: Name
    port: Annotated[int, msgspec.Meta(ge=1, le=65_535)]
    alive: Annotated[int, msgspec.Meta(ge=0, le=1024)] = 0
    ran: AttemptId | None = None
    state: Literal["idle", "running", "done", "failed", "stopped"] = "idle"
    code: ExitCode | None = None
    first_step: Annotated[int, msgspec.Meta(ge=0, le=2**53)] | None = None
    age_s: Seconds | None = None
    start_s: Seconds | None = None
    newest: Attempt | None = None
    obeyed_epoch: SeenEpoch = 0
    obeyed_holder: Annotated[str, msgspec.Meta(max_length=256)] = ""
    ledger: Ledger | None = None
    trial: TrialSaid | None = None
    over: Over | None = None


class Order(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is wanted of a node from now on, whatever was before.

    Attributes
    ----------
    holder, epoch, left_s : str, int, float
        The leader's lease; none of the rest counts where it leads no more (`leads` is false).
    alone : bool
        With `leads` false: so many are not heard that another leader could begin an attempt with them.
    attempt : Attempt, optional
        The newest one.
    run : bool
        Its ranks are to run, on the nodes of its roster; no others anywhere.
    ledger : Ledger, optional
        To be kept and reported.
    trial : Trial, optional
        What is to be measured while no ranks run.
    over : Over, optional
        The job is over: end what runs, say so once more, and go.
    next_s : float
        When to report again, if nothing changes.
    """

    holder: Name
    epoch: Epoch
    leads: bool = True
    alone: bool = False
    left_s: Annotated[float, msgspec.Meta(ge=0.0, le=3600.0)] = 0.0
    attempt: Attempt | None = None
    run: bool = False
    ledger: Ledger | None = None
    trial: Trial | None = None
    over: Over | None = None
    next_s: Annotated[float, msgspec.Meta(gt=0.0, le=60.0)] = 0.25


def believable(report: Report) -> bool:
    """Whether its epochs are such as a job reaches; see `leases.words.MOST_EPOCH`."""
    newest = 0 if report.newest is None else report.newest.epoch
    ledger = 0 if report.ledger is None else report.ledger.epoch
    return max(newest, ledger, report.obeyed_epoch, report.ran[0] if report.ran else 0) <= MOST_EPOCH


def order_of(node: str) -> list[tuple[str, int]]:
    """A key under which names that differ in a number come in its order.

    Examples
    --------
    >>> sorted(["n10", "n2"], key=order_of)
    ['n2', 'n10']
    """
    return [(text, int(digits)) for text, digits in re.findall(r"([^0-9]*)([0-9]{1,18})", f"{node}0")]


def place_of(report: Report) -> tuple[float, list[tuple[str, int]], str]:
    """A key by which nodes are ordered: those with a `node_rank` by that, then the others by their names."""
    named = inf if report.node_rank is None else float(report.node_rank)
    return named, order_of(report.node), report.life


def node_of(life: str) -> str:
    """The node of a launcher's process, where nothing is heard of it."""
    return life.rpartition("/")[0] or life
