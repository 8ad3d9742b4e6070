"""How many micro-batches each data-parallel group takes, and how its loss is weighted then."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from trainwarden.actions.planners.microbatches import finish_s, solve
from trainwarden.errors import DataError

Rank = Annotated[int, msgspec.Meta(ge=0, le=10_000_000)]


class MicrobatchesQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Seconds of one micro-batch by data-parallel group, and the micro-batches of the global batch.

    `groups` are the ranks of each group, where a group (a model replica) is more than one rank.
    """

    micro_batch_s: list[float]
    total: int
    groups: list[Annotated[list[Rank], msgspec.Meta(min_length=1)]] | None = None


class MicrobatchesAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """Counts and loss weights by group, when the last group is done, and the counts by rank where groups were named."""

    micro_batches: tuple[int, ...]
    iteration_s: float
    weights: tuple[float, ...]
    by_rank: dict[int, int] | None = None


class Microbatches:
    """`trainwarden.actions.planners.microbatches.solve`, and the weights that go with it.

    A group averages its loss over its own micro-batches, and the reduction averages over groups; with weight
    ``D m_i / M`` on the loss of group i the mean over groups is again that over all micro-batches.

    Examples
    --------
    >>> Microbatches().answer(MicrobatchesQuestion([1.0, 1.0, 2.0], 12))
    MicrobatchesAnswer(micro_batches=(5, 5, 2), iteration_s=5.0, weights=(1.25, 1.25, 0.5), by_rank=None)
    """

    question: ClassVar = MicrobatchesQuestion
    example: ClassVar = '{"micro_batch_s": [1.0, 1.0, 2.0], "total": 12, "groups": [[0, 1], [2, 3], [4, 5]]}'

    def answer(self, question: MicrobatchesQuestion) -> MicrobatchesAnswer:
        """See `Planner.answer`."""
        groups = question.groups
        if groups is not None:
            _check(groups, len(question.micro_batch_s))
        counts = solve(question.micro_batch_s, question.total)
        scale = len(counts) / question.total
        by_group = zip(groups or (), counts, strict=groups is not None)
        return MicrobatchesAnswer(
            micro_batches=counts,
            iteration_s=finish_s(question.micro_batch_s, counts),
            weights=tuple(count * scale for count in counts),
            by_rank={rank: count for ranks, count in by_group for rank in ranks} or None,
        )

    def line(self, answer: MicrobatchesAnswer) -> str:
        """See `Planner.line`."""
        return f"{' '.join(map(str, answer.micro_batches))}  (slowest group {answer.iteration_s:.4f} s)"


def _check(groups: list[list[int]], expected: int) -> None:
    if len(groups) != expected:
        raise DataError(f"{len(groups)} groups are named, but micro_batch_s has times of {expected}")
    seen: set[int] = set()
    for rank in (rank for ranks in groups for rank in ranks):
        if rank in seen:
            raise DataError(f"rank {rank} is named twice in groups")
        seen.add(rank)
