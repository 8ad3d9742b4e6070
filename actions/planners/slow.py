"""From an incident's evidence of a slow rank to the split of micro-batches that loses least.

Ranks as the data-parallel replicas that a number of micro-batches is given to, and how long each takes.

A replica holds the model once, over the ranks of its tensor, context and pipeline parallel groups, and is as slow as
its slowest: ranks of a stage wait for each other in every micro-batch, and a micro-batch passes through one stage after
the other. So ``m`` micro-batches take ``sum_p s_p + (m - 1) max_p s_p`` with ``s_p`` the slowest rank of stage ``p``
(as in `trainwarden.actions.planners.placement`; Narayanan et al., Megatron-LM, 2021, section 2.2: one forward, one
backward).
"""

from __future__ import annotations

import heapq
import statistics
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

import msgspec

from trainwarden.actions.planners.microbatches import Counts, even, solve
from trainwarden.actions.planners.transfers import Transfers
from trainwarden.errors import DataError
from trainwarden.parallelism.layout import Layout

CLOSE: Final = 60  # halvings: a double has 53 bits


class Replica(msgspec.Struct, frozen=True):
    """`fill_s + m * micro_batch_s` seconds for ``m`` micro-batches, on these ranks."""

    ranks: tuple[int, ...]
    micro_batch_s: float
    fill_s: float = 0.0

    def after_s(self, micro_batches: int) -> float:
        """Seconds of so many micro-batches."""
        return self.fill_s + micro_batches * self.micro_batch_s


def refusal(layout: Layout | None, ranks: int) -> str | None:
    """Why replicas of a job of so many ranks cannot be given unequal numbers of micro-batches; None if they can.

    Examples
    --------
    >>> refusal(Layout(world_size=4, sizes={"tp": 2}, sources=("settings",)), 4)
    'the layout of the ranks is not known whole: tp 2; context and data and pipeline not known; from settings'
    """
    if layout is None:
        return None
    if layout.uneven:
        return f"unequal micro-batches would be wrong here: {'; '.join(layout.uneven)}"
    if not layout.whole:
        return f"the layout of the ranks is not known whole: {layout.summary()}"
    if layout.world_size != ranks:
        return f"the layout is one of {layout.world_size} ranks, and {ranks} were measured"
    return None


def replicas(layout: Layout | None, micro_batch_s: Sequence[float]) -> tuple[Replica, ...]:
    """The replicas of a job, each as slow as its slowest rank; without a layout each rank is one.

    Parameters
    ----------
    layout : Layout or None
        A whole one of as many ranks.
    micro_batch_s : sequence of float, shape (ranks,)
        Seconds that each rank computes for one micro-batch.

    Examples
    --------
    >>> layout = Layout(world_size=4, sizes={"tp": 1, "cp": 1, "dp": 2, "pp": 2})
    >>> replicas(layout, [0.25, 0.5, 0.25, 0.25])
    (Replica(ranks=(0, 2), micro_batch_s=0.25, fill_s=0.25), Replica(ranks=(1, 3), micro_batch_s=0.5, fill_s=0.25))
    """
    if layout is None:
        return tuple(Replica((rank,), seconds) for rank, seconds in enumerate(micro_batch_s))
    stages, found = layout.stages(), []
    for ranks in layout.replicas():
        slowest: dict[int, float] = {}
        for rank in ranks:
            slowest[stages[rank]] = max(slowest.get(stages[rank], 0.0), micro_batch_s[rank])
        most_s = max(slowest.values())
        found.append(Replica(ranks, most_s, sum(slowest.values()) - most_s))
    return tuple(found)


def split(found: Sequence[Replica], total: int) -> Counts:
    """Micro-batches of each replica, at least one, that end soonest: exact.

    Raises
    ------
    DataError
        If there is no such split.

    Examples
    --------
    >>> split([Replica((0,), 1.0, 3.0), Replica((1,), 2.0, 3.0)], 6)
    (4, 2)
    """
    if not any(one.fill_s for one in found):
        return solve([one.micro_batch_s for one in found], total)
    if total < len(found):
        raise DataError(f"{total} micro-batches cannot give each of {len(found)} groups at least one")
    low_s, high_s = 0.0, max(one.after_s(total) for one in found)
    for _ in range(CLOSE):  # until just before all could be done
        middle_s = (low_s + high_s) / 2.0
        enough = sum(_within(one, middle_s) for one in found) >= total
        low_s, high_s = (low_s, middle_s) if enough else (middle_s, high_s)
    counts = [_within(one, low_s) for one in found]
    soonest = [(one.after_s(count + 1), place) for place, (one, count) in enumerate(zip(found, counts, strict=True))]
    heapq.heapify(soonest)
    for _ in range(total - sum(counts)):
        place = soonest[0][1]
        counts[place] += 1
        heapq.heapreplace(soonest, (found[place].after_s(counts[place] + 1), place))
    return tuple(counts)


def _within(one: Replica, seconds: float) -> int:
    """Micro-batches that a replica can do within `seconds`; one in any case."""
    return max(1, int((seconds - one.fill_s) / one.micro_batch_s))


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
