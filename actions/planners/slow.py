"""From an incident's evidence of a slow rank to the split of micro-batches that loses least."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec

from trainwarden.actions.planners.microbatches import even
from trainwarden.actions.planners.replicas import Replica, refusal, replicas, split
from trainwarden.actions.planners.transfers import Transfers
from trainwarden.errors import DataError
from trainwarden.parallelism.layout import Layout

Seconds = Annotated[float, msgspec.Meta(gt=0.0)]


class Slowness(msgspec.Struct, frozen=True, kw_only=True):
    """What detection measured of a slow job.

    `basis` says where the times come from, `accelerator` what the ranks compute on behind the host's back, if anything.
    `compute_s` and `micro_batches` are by the place of the rank in `ranks`; compute time is that of a whole iteration,
    as it is with the present split. `slow_iterations` counts since onset. `layout` is that of the job's ranks, as far
    as anybody has told; where nobody has, each rank is a data-parallel replica. `transfers` are those between nodes.
    """

    healthy_iteration_s: Seconds | None = None
    iteration_s: Seconds | None = None
    slow_iterations: int = 0
    ranks: tuple[int, ...] = ()
    compute_s: tuple[Seconds | None, ...] = ()
    micro_batches: tuple[int | None, ...] | None = None
    basis: str = ""
    accelerator: str = ""
    layout: Layout | None = None
    transfers: Transfers | None = None


class Split(msgspec.Struct, frozen=True, kw_only=True):
    """A new split by rank, beside the present one; all ranks of a replica have the same number.

    `micro_batch_s` is by rank, `compute_s` and `predicted_compute_s` are of the last replica to be done, `replicas` how
    many there are.
    """

    micro_batches: tuple[int, ...]
    before: tuple[int, ...]
    micro_batch_s: tuple[float, ...]
    compute_s: float
    predicted_compute_s: float
    replicas: int

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
        If something needed is not known, or the job's layout allows no uneven split; one sentence says what.

    Examples
    --------
    >>> measured = Slowness(ranks=(0, 1, 2, 3), compute_s=(4.0, 4.0, 8.0, 4.0), micro_batches=(4, 4, 4, 4))
    >>> best_split(measured, ()).micro_batches
    (4, 5, 2, 5)
    >>> pairs = Layout(world_size=4, sizes={"tp": 2, "cp": 1, "dp": 2, "pp": 1})
    >>> best_split(msgspec.structs.replace(measured, layout=pairs), ()).micro_batches
    (5, 5, 3, 3)
    """
    before, seconds = micro_batch_s(slowness, in_force)
    if (why_not := refusal(slowness.layout, len(before))) is not None:
        raise DataError(why_not)
    found = replicas(slowness.layout, seconds)
    present = _of_replicas(found, before)
    after = split(found, sum(present))
    return Split(
        micro_batches=_by_rank(found, after),
        before=before,
        micro_batch_s=seconds,
        compute_s=_last_s(found, present),
        predicted_compute_s=_last_s(found, after),
        replicas=len(found),
    )


def even_split(slowness: Slowness, in_force: Sequence[int]) -> tuple[int, ...]:
    """The even split by rank of what is in force.

    Raises
    ------
    DataError
        If the ranks of a replica do not run the same number, or who they are is not known any more.
    """
    if (why_not := refusal(slowness.layout, len(in_force))) is not None:
        raise DataError(why_not)
    found = replicas(slowness.layout, [1.0] * len(in_force))
    return _by_rank(found, even(len(found), sum(_of_replicas(found, in_force))))


def relieved(slowness: Slowness, in_force: Sequence[int], ratio: float) -> bool:
    """Whether every rank is again within `ratio` of the median rank per micro-batch; False if that is not known.

    Where there are pipeline stages, of the median rank of its stage.
    """
    try:
        _, seconds = micro_batch_s(slowness, in_force)
    except DataError:
        return False
    layout = slowness.layout
    stages = layout.stages() if layout is not None and refusal(layout, len(seconds)) is None else (0,) * len(seconds)
    of_stage: dict[int, list[float]] = {}
    for stage, time_s in zip(stages, seconds, strict=True):
        of_stage.setdefault(stage, []).append(time_s)
    return all(max(times_s) <= ratio * statistics.median(times_s) for times_s in of_stage.values())


def _of_replicas(found: Sequence[Replica], by_rank: Sequence[int]) -> tuple[int, ...]:
    """The number that each replica runs, which is that of all its ranks."""
    for one in found:
        if len({by_rank[rank] for rank in one.ranks}) > 1:
            counts = ", ".join(f"{by_rank[rank]} on rank {rank}" for rank in one.ranks[:4])
            raise DataError(f"ranks of one data-parallel replica run unequal numbers of micro-batches: {counts}")
    return tuple(by_rank[one.ranks[0]] for one in found)


def _by_rank(found: Sequence[Replica], counts: Sequence[int]) -> tuple[int, ...]:
    of_rank = {rank: count for one, count in zip(found, counts, strict=True) for rank in one.ranks}
    return tuple(of_rank[rank] for rank in range(len(of_rank)))


def _last_s(found: Sequence[Replica], counts: Sequence[int]) -> float:
    return max(one.after_s(count) for one, count in zip(found, counts, strict=True))
