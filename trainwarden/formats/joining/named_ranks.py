"""Ranks that only the names of files tell, with the steps of one rank each."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from trainwarden.recorded.job import IterationTable, LogTable

# Not a rank within a node, and not that of a matrix (LoRA).
_RANK: Final = re.compile(
    r"(?i)(?<![a-z0-9])(?<!local[_ -])(?<!lora[_ -])(?<!low[_ -])rank[ _:#-]{0,2}([0-9]{1,6})(?![0-9])"
)
LEAST_RANKS: Final = 2


def rank_in(name: str) -> int | None:
    """The rank that a name tells in so many words.

    Examples
    --------
    >>> rank_in("runs/rank5/step_time.csv"), rank_in("rank_12.jsonl"), rank_in("local_rank0.csv"), rank_in("run-5.csv")
    (5, 12, None, None)
    """
    found = {int(one) for one in _RANK.findall(name)}
    return found.pop() if len(found) == 1 else None


def with_ranks(tables: Sequence[tuple[str, IterationTable]]) -> list[tuple[str, IterationTable]]:
    """Tables of steps that name no rank, each with that of its file where files are of different ranks."""
    told = [rank_in(name) if table.ranks == (None,) else None for name, table in tables]
    if not _are_ranks({one for one in told if one is not None}):
        return list(tables)
    return [(name, table if rank is None else replace(table, ranks=(rank,)))
            for (name, table), rank in zip(tables, told, strict=True)]  # fmt: skip


def losses_with_ranks(logs: Iterable[LogTable], tables: Sequence[tuple[str, IterationTable]]) -> list[LogTable]:
    """Losses of files whose steps are of one rank, as that rank's."""
    of_file = {name: table.ranks[0] for name, table in tables if len(table.ranks) == 1}
    return [replace(log, ranks=(of_file[log.file],) * len(log.ranks))
            if not any(one is not None for one in log.ranks) and of_file.get(log.file) is not None else log
            for log in logs]  # fmt: skip


def _are_ranks(numbers: set[int]) -> bool:
    """Whether numbers count ranks: some size of a model is tried with 8, 16 and 32."""
    return len(numbers) >= LEAST_RANKS and (0 in numbers or max(numbers) - min(numbers) == len(numbers) - 1)
