"""Which ranks are alike: the pipeline stage of a rank, and medians over the others of its role."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from trainwarden.detectors.job.common_mode import Floats

Codes = npt.NDArray[np.intp]


def roles(
    ranks: Sequence[int], parallel: Mapping[str, int], named: Mapping[int, str] = MappingProxyType({})
) -> tuple[str, ...]:
    """Role of each rank as named, else from a job's parallel sizes, in Megatron's order: tensor, then data, pipeline.

    Parameters
    ----------
    ranks : sequence of int
        Global ranks.
    parallel : mapping
        ``tp``, ``cp``, ``dp``, ``pp`` as in a recorded folder's `job.toml`; missing ones are 1.
    named : mapping of int to str
        Roles that a person has given single ranks.

    Returns
    -------
    tuple of str
        ``stage0``, ``stage1``... or empty strings where all ranks are of one kind. If the sizes do not cover the ranks
        (an axis is not declared), the ranks are cut into `pp` equal parts.

    Examples
    --------
    >>> roles(range(8), {"tp": 1, "dp": 2, "pp": 4})
    ('stage0', 'stage0', 'stage1', 'stage1', 'stage2', 'stage2', 'stage3', 'stage3')
    >>> roles((0, 1), {"dp": 2})
    ('', '')
    >>> roles((0, 1), {}, {1: "loader"})
    ('', 'loader')
    """
    stages = max(1, parallel.get("pp", 1))
    world = max(ranks, default=-1) + 1
    if stages == 1 or not world:
        return tuple(named.get(rank, "") for rank in ranks)
    per_stage = math.prod(max(1, parallel.get(axis, 1)) for axis in ("tp", "cp", "dp"))
    if per_stage * stages < world:
        per_stage = -(-world // stages)
    return tuple(named.get(rank, f"stage{rank // per_stage}") for rank in ranks)


def median_of_peers(values: Floats, codes: Codes) -> tuple[Floats, Floats]:
    """For each rank the median over the others of its role, and each role's own median; NaN where there is no other.

    Parameters
    ----------
    values : float [ranks]
        NaN = unknown.
    codes : int [ranks]
        Role of each rank, counted from 0.

    Returns
    -------
    of_others : float [ranks]
    of_roles : float [roles]

    Examples
    --------
    >>> others, levels = median_of_peers(np.array([1.0, 2.0, 9.0, 5.0]), np.array([0, 0, 0, 1]))
    >>> others.tolist(), levels.tolist()
    ([5.5, 5.0, 1.5, nan], [2.0, 5.0])
    """
    if not values.size:
        return np.full(0, np.nan), np.full(0, np.nan)
    order = np.lexsort((values, codes))  # NaN sorts last within its role
    finite = np.isfinite(values)
    size = np.bincount(codes)
    known = np.bincount(codes, weights=finite).astype(np.intp)
    start = np.cumsum(size) - size
    place = np.empty_like(order)
    place[order] = np.arange(values.size) - start[codes[order]]
    ordered = np.append(values[order], np.nan)
    others = known[codes] - finite
    low, high = np.maximum(others - 1, 0) // 2, others // 2
    # Without the element at `place`, everything above it moves down by one.
    low, high = low + (low >= place), high + (high >= place)
    top = values.size
    middle = (ordered[np.minimum(start[codes] + low, top)] + ordered[np.minimum(start[codes] + high, top)]) / 2.0
    low, high = np.maximum(known - 1, 0) // 2, known // 2
    level = (ordered[np.minimum(start + low, top)] + ordered[np.minimum(start + high, top)]) / 2.0
    return np.where(others > 0, middle, np.nan), np.where(known > 0, level, np.nan)
