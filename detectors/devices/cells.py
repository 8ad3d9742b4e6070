"""What a comparison of peers keeps for each metric of each entity, and with whom an entity is compared."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from trainwarden.detectors.job.samples import Entity


def compared_as(family: str, entity: Entity, role: str) -> str:
    """Who is compared with whom: entities of one role; ports, disks and mounts of one name besides.

    Examples
    --------
    >>> compared_as("gpu", Entity("n", "0"), "tp0"), compared_as("nic", Entity("n", "mlx5_0"), "")
    ('tp0', ' mlx5_0')
    """
    return f"{role} {entity.device}" if family == "nic" or family.startswith("host:") else role


def kind_of(name: str) -> type[np.generic]:
    """Rounds are kept as bits, all else as numbers."""
    return np.uint32 if name in {"high", "low"} else np.float64


def empty(name: str, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """Cells of which nothing is known."""
    unknown = np.nan if name in {"away_s", "middle", "now"} else 0
    return np.full(shape, unknown, dtype=kind_of(name))
