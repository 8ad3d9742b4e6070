"""Roles as they stand in a recorded job's ``job.toml``, from where detection and training read them."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from trainwarden.detectors.job.samples import Entity
from trainwarden.errors import DataError
from trainwarden.hook import ranks_text
from trainwarden.trainer_offline.archive.atomic import disk, whole_file


def ranks_by_role(entities: Sequence[Entity], labels: npt.NDArray[np.int64]) -> dict[str, list[int]]:
    """Ranks of ``role0``, ``role1``, ..., in order.

    Raises
    ------
    DataError
        If an entity has no rank, or devices of one rank have two roles: detection asks for the role of a rank.

    Examples
    --------
    >>> ranks_by_role([Entity(rank=1), Entity(rank=0), Entity(rank=2)], np.array([0, 0, 1]))
    {'role0': [0, 1], 'role1': [2]}
    """
    found: dict[int, str] = {}
    for entity, label in zip(entities, labels.tolist(), strict=True):
        if entity.rank is None:
            raise DataError("who has no rank cannot have a role in job.toml")
        role = f"role{label}"
        if found.setdefault(entity.rank, role) != role:
            raise DataError(f"devices of rank {entity.rank} have several roles")
    names = sorted(set(found.values()), key=lambda name: (len(name), name))
    return {name: sorted(rank for rank, role in found.items() if role == name) for name in names}


def write_roles(folder: Path, roles: Mapping[str, Sequence[int]]) -> Path:
    """Add the table ``roles`` to the job's ``job.toml``, which else stays as it is; the file.

    Raises
    ------
    DataError
        If it has roles already (a person may have named them), or cannot be read or written.
    """
    path = folder / "job.toml"
    with disk(folder):
        text = path.read_text(encoding="utf-8") if path.exists() else ""
    if "roles" in tomllib.loads(text):  # whoever has read the job has parsed it
        raise DataError(f"{path} has roles already; take them out first")
    lines = [f'{role} = "{ranks_text(list(ranks))}"' for role, ranks in roles.items()]
    text = "\n".join([*([text.rstrip("\n"), ""] if text else []), "[roles]", *lines, ""])
    with disk(folder), whole_file(path) as file:
        file.write(text.encode())
    return path
