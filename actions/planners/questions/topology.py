"""Which GPU each rank of a job should lie on, given how fast its GPUs and links are today."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Annotated, ClassVar

import msgspec
import numpy as np

from trainwarden.actions.planners.placement import Layout, iteration_s
from trainwarden.actions.planners.placement_search import search
from trainwarden.errors import DataError

MAX_RANKS = 65_536
MAX_NODES = 4096  # links between all of them are 128 MB
_PAIR = re.compile(r"([0-9]{1,7})-([0-9]{1,7})", re.ASCII)

Size = Annotated[int, msgspec.Meta(ge=1, le=MAX_RANKS)]
Gpu = Annotated[int, msgspec.Meta(ge=0, le=10_000_000)]
Rate = Annotated[float, msgspec.Meta(ge=1e-6, le=1e9)]  # from a bit in a quarter of an hour to beyond any bus
Bytes = Annotated[float, msgspec.Meta(ge=0.0, le=1e18)]
MicroBatchSeconds = Annotated[float, msgspec.Meta(gt=0.0, le=1e9)]


class Exchanged(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bytes that a rank exchanges in an iteration: in its tensor- and data-parallel group, and with the next stage."""

    tp: Bytes = 0.0
    dp: Bytes = 0.0
    pp: Bytes = 0.0


class TopologyQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A job's layout, where its ranks lie, and what was measured.

    GPU g is on node ``g // gpus_per_node``. `placement` has the GPU of each rank, tensor fastest, then data, then
    pipeline. `gbps` (gigabits a second) by pair of nodes as ``"A-B"``, ``"A-A"`` within a node; other pairs have
    `default_gbps`, and within other nodes transfers take no time.
    """

    tp: Size
    dp: Size
    pp: Size
    gpus_per_node: Size
    placement: Annotated[list[Gpu], msgspec.Meta(min_length=1, max_length=MAX_RANKS)]
    compute_s: dict[Gpu, MicroBatchSeconds]
    default_gbps: Rate
    micro_batches: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
    gbps: dict[str, Rate] = {}
    bytes: Exchanged = Exchanged()
    predict_only: bool = False


class Predicted(msgspec.Struct, frozen=True, omit_defaults=True):
    """Seconds of an iteration."""

    before: float
    after: float | None = None


class Move(msgspec.Struct, frozen=True, rename={"source": "from", "target": "to"}):
    """A rank that goes from one GPU to another."""

    rank: int
    source: int
    target: int


class TopologyAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The GPU of each rank, what that changes, and whether no placement on these GPUs is better.

    Of a question with `predict_only` only `predicted_s.before`.
    """

    predicted_s: Predicted
    placement: tuple[int, ...] | None = None
    moves: tuple[Move, ...] | None = None
    exact: bool | None = None


class Topology:
    """Moves ranks among their GPUs so that slow links carry little and stragglers share few pipeline stages.

    References
    ----------
    Wu et al., "Falcon" (2024), section 5.3 and appendix 9.2.

    Examples
    --------
    >>> answer = Topology().answer(msgspec.json.decode(Topology.example, type=TopologyQuestion))
    >>> answer.placement, answer.exact
    ((0, 3, 2, 1), True)
    """

    question: ClassVar = TopologyQuestion
    example: ClassVar = (
        '{"tp": 1, "dp": 2, "pp": 2, "gpus_per_node": 1, "placement": [0, 1, 2, 3], "micro_batches": 8,'
        ' "compute_s": {"0": 0.1, "1": 0.1, "2": 0.1, "3": 0.1}, "default_gbps": 200, "gbps": {"2-3": 20},'
        ' "bytes": {"tp": 0, "dp": 4e9, "pp": 1e8}}'
    )

    def answer(self, question: TopologyQuestion) -> TopologyAnswer:
        """See `Planner.answer`."""
        gpus = sorted(question.placement)
        layout = _layout(question, gpus)
        today = np.searchsorted(gpus, question.placement)
        if question.predict_only:
            return TopologyAnswer(Predicted(float(iteration_s(layout, today[None])[0])))
        found = search(layout, today)
        placement = [gpus[place] for place in found.placement.tolist()]
        moves = (
            Move(rank, source, target)
            for rank, (source, target) in enumerate(zip(question.placement, placement, strict=True))
            if source != target
        )
        return TopologyAnswer(Predicted(found.before_s, found.after_s), tuple(placement), tuple(moves), found.exact)

    def line(self, answer: TopologyAnswer) -> str:
        """See `Planner.line`."""
        predicted = answer.predicted_s
        if predicted.after is None or answer.moves is None:
            return f"an iteration takes {predicted.before:.4f} s"
        moves = [f"rank {move.rank}: GPU {move.source} -> {move.target}" for move in answer.moves]
        how = "no placement is better" if answer.exact else "local search"
        return "\n".join([*(moves or ["stay"]), f"{predicted.before:.4f} s -> {predicted.after:.4f} s  ({how})"])


def _layout(question: TopologyQuestion, gpus: list[int]) -> Layout:
    """The question in arrays, checked."""
    ranks = question.tp * question.dp * question.pp
    if len(gpus) != ranks:
        raise DataError(f"tp x dp x pp is {ranks} ranks, but placement has {len(gpus)}")
    twice = next((one for one, other in pairwise(gpus) if one == other), None)
    if twice is not None:
        raise DataError(f"GPU {twice} has two ranks in placement")
    unknown = next((gpu for gpu in gpus if gpu not in question.compute_s), None)
    if unknown is not None:
        raise DataError(f"compute_s has no time of GPU {unknown}")
    nodes, node = np.unique(np.array(gpus) // question.gpus_per_node, return_inverse=True)
    if len(nodes) > MAX_NODES:
        raise DataError(f"placement is on {len(nodes)} nodes; up to {MAX_NODES} can be planned for")
    byte_s = np.full((len(nodes), len(nodes)), 8e-9 / question.default_gbps)  # bits of a byte, giga
    np.fill_diagonal(byte_s, 0.0)
    place = {number: at for at, number in enumerate(nodes.tolist())}
    measured: dict[tuple[int, int], float] = {}
    for pair, gbps in question.gbps.items():
        match = _PAIR.fullmatch(pair)
        if match is None:
            raise DataError(f"gbps: '{pair[:80]}' is no pair of node numbers like 0-1")
        one, other = sorted((int(match[1]), int(match[2])))
        measured[one, other] = min(gbps, measured.get((one, other), gbps))  # of both directions the slower
        if one in place and other in place:
            byte_s[place[one], place[other]] = byte_s[place[other], place[one]] = 8e-9 / measured[one, other]
    return Layout(
        tp=question.tp,
        dp=question.dp,
        pp=question.pp,
        micro_batches=question.micro_batches,
        compute_s=np.array([question.compute_s[gpu] for gpu in gpus]),
        node=node.reshape(-1),
        byte_s=byte_s,
        tp_bytes=question.bytes.tp,
        dp_bytes=question.bytes.dp,
        pp_bytes=question.bytes.pp,
    )
