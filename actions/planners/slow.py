"""From an incident's evidence of a slow rank to the split of micro-batches that loses least."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec

from actions.planners.microbatches import finish_s, solve
from trainwarden.errors import DataError

Seconds = Annotated[float, msgspec.Meta(gt=0.0)]


class Slowness(msgspec.Struct, frozen=True, kw_only=True):
    """What detection measured of a slow job.

    `basis` says where the times come from, `accelerator` what the ranks compute on behind the host's back, if anything.
    `compute_s` and `micro_batches` are by the place of the rank in `ranks`; compute time is that of a whole iteration,
    as it is with the present split. `slow_iterations` counts since onset.
    """

    healthy_iteration_s: Seconds | None = None
    iteration_s: Seconds | None = None
    slow_iterations: int = 0
    ranks: tuple[int, ...] = ()
    compute_s: tuple[Seconds | None, ...] = ()
    micro_batches: tuple[int | None, ...] | None = None
    basis: str = ""
    accelerator: str = ""


class Split(msgspec.Struct, frozen=True, kw_only=True):
    """A new split by rank, beside the present one."""

    micro_batches: tuple[int, ...]
    before: tuple[int, ...]
    micro_batch_s: tuple[float, ...]
    compute_s: float
    predicted_compute_s: float

    @property
    def gain_ratio(self) -> float:
        """Share of the longest compute time that the new split saves."""
        return 1.0 - self.predicted_compute_s / self.compute_s


def read(evidence: Mapping[str, Any]) -> Slowness | None:
    """The evidence as far as it is about slowness; None if it is malformed."""
    try:
        return msgspec.convert(evidence, Slowness, strict=False)
    except msgspec.ValidationError:
        return None


def micro_batch_s(slowness: Slowness, in_force: Sequence[int]) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Present counts and seconds per micro-batch, both by rank.

    Parameters
    ----------
    in_force : sequence of int
        The launcher's counts by rank, for evidence without any; empty if it has none either.

    Raises
    ------
    DataError
        If something is not known of every rank; one sentence says what.

    Examples
    --------
    >>> micro_batch_s(Slowness(ranks=(1, 0), compute_s=(1.0, 0.5), micro_batches=(4, 4)), ())
    ((4, 4), (0.125, 0.25))
    """
    size = len(slowness.ranks)
    if slowness.accelerator and slowness.basis == "host":
        raise DataError(f"what the host sees of ranks that compute on {slowness.accelerator[:40]} is not their work")
    if size < 2 or sorted(slowness.ranks) != list(range(size)) or len(slowness.compute_s) != size:
        raise DataError("compute times are not known of every rank")
    order = sorted(range(size), key=slowness.ranks.__getitem__)
    given = slowness.micro_batches
    raw = [given[i] for i in order] if given is not None and len(given) == size else list(in_force)
    counts = tuple(count for count in raw if count is not None and count >= 1)
    if len(counts) != size:
        raise DataError("the present number of micro-batches is not known of every rank")
    seconds: list[float] = []
    for place, count in zip(order, counts, strict=True):
        compute = slowness.compute_s[place]
        if compute is None:
            raise DataError(f"the compute time of rank {slowness.ranks[place]} is not known")
        seconds.append(compute / count)
    return counts, tuple(seconds)


def best_split(slowness: Slowness, in_force: Sequence[int]) -> Split:
    """The exact best split for what was measured.

    Raises
    ------
    DataError
        If something needed is not known.
    """
    before, seconds = micro_batch_s(slowness, in_force)
    after = solve(seconds, sum(before))
    return Split(
        micro_batches=after,
        before=before,
        micro_batch_s=seconds,
        compute_s=finish_s(seconds, before),
        predicted_compute_s=finish_s(seconds, after),
    )


def relieved(slowness: Slowness, in_force: Sequence[int], ratio: float) -> bool:
    """Whether every rank is again within `ratio` of the median rank per micro-batch; False if that is not known."""
    try:
        _, seconds = micro_batch_s(slowness, in_force)
    except DataError:
        return False
    return max(seconds) <= ratio * statistics.median(seconds)
