"""What the calls of one step tell of communicators and pairs of ranks: their speed, and how much they carry."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from trainwarden.detectors.calls.functions import FUNCTIONS, bus_factor

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Links:
    """How long a byte took in the shortest durations, for each communicator (or pair), function and size of call.

    Attributes
    ----------
    comm, function, bucket, source, target : int arrays
        `bucket` is log2 of the bytes; `source` and `target` are the columns of a pair, -1 of a whole communicator.
    slowness : float array
        Median of the calls' log seconds per byte.
    """

    comm: Ints
    function: Ints
    bucket: Ints
    source: Ints
    target: Ints
    slowness: Floats

    @classmethod
    def none(cls) -> Links:
        """No link at all."""
        empty = np.zeros(0, dtype=np.int64)
        return cls(empty, empty, empty, empty, empty, np.zeros(0))


@dataclass(frozen=True, slots=True)
class TrafficTable:
    """What passed each communicator, or pair of ranks in one direction, in one step.

    Attributes
    ----------
    comm, source, target : int arrays
        `source` and `target` are the columns of a pair, -1 of a whole communicator.
    calls : float array
        How many calls, of each rank.
    bus_bytes, transfer_s : float arrays
        Bytes on the busiest link of a rank, as nccl-tests count them, and for how long; of each rank.
    """

    comm: Ints
    source: Ints
    target: Ints
    calls: Floats
    bus_bytes: Floats
    transfer_s: Floats

    @classmethod
    def none(cls) -> Self:
        """Nothing was carried."""
        empty = np.zeros(0, dtype=np.int64)
        return cls(empty, empty, empty, np.zeros(0), np.zeros(0), np.zeros(0))

    @classmethod
    def of_groups(cls, comm: Ints, function: Ints, call_bytes: Ints, took_s: Floats, *, sizes: Ints) -> Self:
        """Of collectives: a row for each rank in each call, with the shortest duration of the call."""
        there, place = np.unique(comm, return_inverse=True)
        ranks = np.maximum(sizes[there], 1)
        factor = np.array([[bus_factor(code, int(size)) for code in range(FUNCTIONS)] for size in np.unique(ranks)])
        each = factor[np.searchsorted(np.unique(ranks), ranks)[place], function] * call_bytes
        alone = np.full(there.size, -1)
        return cls(there, alone, alone, *(np.bincount(place, one) / ranks for one in (None, each, took_s)))

    @classmethod
    def of_pairs(cls, comm: Ints, source: Ints, target: Ints, call_bytes: Ints, *, took_s: Floats) -> Self:
        """Of point-to-point calls: a row for each message."""
        _, first, place = np.unique((comm << 34) | (source << 17) | target, return_index=True, return_inverse=True)
        sums = (np.bincount(place, one) for one in (None, call_bytes, took_s))
        return cls(comm[first], source[first], target[first], *(one.astype(np.float64) for one in sums))

    @classmethod
    def merged(cls, parts: Sequence[TrafficTable]) -> TrafficTable:
        """All of `parts`."""
        names = cls.__slots__
        return (
            cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in names)) if parts else cls.none()
        )


@dataclass(frozen=True, slots=True)
class StepTraffic:
    """A sampled step as it is kept: its `loads`, how long it took, and how long each rank was in kernels [ranks]."""

    step: int
    period_s: float
    kernel_s: Floats
    loads: TrafficTable
