"""Process groups as their frameworks name them, and their ranks as short text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

# Read on 2026-11-22 in Megatron-LM of 2026-08-22 (megatron/core/parallel_state.py) and torchtitan of 2026-08-21
# (distributed/parallel_dims.py; torch names the groups of a device mesh ``mesh_`` and the axis).
KINDS: Final[Mapping[str, str]] = {
    "TENSOR_MODEL_PARALLEL_GROUP": "tp",
    "CONTEXT_PARALLEL_GROUP": "cp",
    "DATA_PARALLEL_GROUP": "dp",
    "PIPELINE_MODEL_PARALLEL_GROUP": "pp",
    "EXPERT_MODEL_PARALLEL_GROUP": "ep",
    "mesh_tp": "tp",
    "mesh_cp": "cp",
    "mesh_dp": "dp",
    "mesh_dp_replicate": "replicate",
    "mesh_dp_shard": "shard",
    "mesh_fsdp": "fsdp",
    "mesh_pp": "pp",
    "mesh_ep": "ep",
}
MOST_RANKS: Final = 1_000_000  # of one text, as `trainwarden.records.Rank` can tell apart
_RANGE: Final = re.compile(r"^(\d{1,6})(?:-(\d{1,6})(?::(\d{1,6}))?)?$")
_TEXT: Final = re.compile(r"^[0-9,:-]{1,4096}$")
_KNOWN: Final = frozenset(KINDS.values())


class Spaced(NamedTuple):
    """Evenly spaced ranks."""

    first: int
    step: int
    size: int


def spaced_of(text: str) -> Spaced | None:
    """The ranks of a text of `trainwarden.hook.ranks_text`'s where they are evenly spaced, else None.

    Examples
    --------
    >>> spaced_of("1-17:8"), spaced_of("0,1,5"), spaced_of("7")
    (Spaced(first=1, step=8, size=3), None, Spaced(first=7, step=1, size=1))
    """
    found = _RANGE.match(text)
    if found is None:
        return None
    first, last, step = int(found[1]), int(found[2] or found[1]), int(found[3] or 1)
    if step < 1 or last < first or (last - first) % step:
        return None
    return Spaced(first, step, (last - first) // step + 1)


def ranks_of(text: str) -> list[int]:
    """The ranks of a text of `trainwarden.hook.ranks_text`'s, or of several joined by commas.

    Raises
    ------
    ValueError
        If it is none; one clause.

    Examples
    --------
    >>> ranks_of("0-3, 8, 1-17:8")
    [0, 1, 2, 3, 8, 1, 9, 17]
    """
    found: list[int] = []
    for part in text.split(","):
        spaced = spaced_of(part.strip())
        if spaced is None:
            raise ValueError(f"'{part.strip()[:80]}' is neither a rank nor a range of ranks like 0-7")
        if len(found) + spaced.size > MOST_RANKS:
            raise ValueError(f"names more than {MOST_RANKS:,} ranks")
        found += range(spaced.first, spaced.first + spaced.step * spaced.size, spaced.step)
    return found


def by_kind(named: Iterable[tuple[str, str]]) -> str:
    """The groups of a rank whose names we know, as ``kind=ranks`` by ``;``; of two of a kind the first.

    Examples
    --------
    >>> by_kind([("RING", "0-7"), ("mesh_tp", "0-1"), ("DATA_PARALLEL_GROUP", "0-2:2")])
    'dp=0-2:2;tp=0-1'
    """
    found: dict[str, str] = {}
    for name, ranks in named:
        if name in KINDS and _TEXT.match(ranks):
            found.setdefault(KINDS[name], ranks)
    return ";".join(f"{kind}={ranks}" for kind, ranks in sorted(found.items()))


def of_text(text: str) -> dict[str, str]:
    """Ranks by kind of group, still as text, from what `by_kind` made; what is no group of ours is left out.

    Examples
    --------
    >>> of_text("tp=0-1;x=9-;dp=0,2")
    {'tp': '0-1', 'dp': '0,2'}
    """
    parts = (part.partition("=") for part in text.split(";"))
    return {kind: ranks for kind, _, ranks in parts if kind in _KNOWN and ranks}
