"""Flight-recorder dumps that prove that nobody waits: of all ranks, and each collective of each group complete."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from trainwarden.formats.verdicts import Verdict, verdict_tables
from trainwarden.recorded.job import LogTable

LEAST_RANKS: Final = 2
_DONE: Final = "completed"


def complete_dumps(dumps: Mapping[int, Any], broken: Mapping[int, str]) -> tuple[list[LogTable], str]:
    """A pass for each rank and what it rests on; nothing where a call is pending, a rank missing or ahead."""
    if broken or len(dumps) < LEAST_RANKS:
        return [], ""
    members: set[int] = set()
    reached: dict[str, set[int]] = {}
    newest_ns = 0
    for raw in dumps.values():
        told = _whole(raw)
        if told is None:
            return [], ""
        own, groups, last_ns = told
        members |= own
        newest_ns = max(newest_ns, last_ns)
        for group, number in groups.items():
            reached.setdefault(group, set()).add(number)
    if members != set(dumps) or any(len(one) > 1 for one in reached.values()):
        return [], ""
    passes = [Verdict(f"rank{rank}", "", None, rank=rank) for rank in dumps]
    logs = verdict_tables("flight recorder", passes, newest_ns * 1e-9 if newest_ns else np.nan)
    said = "; ".join(f"{group} at {max(numbers)}" for group, numbers in sorted(reached.items())[:4])
    return logs, (
        f"dumps of all {len(dumps)} ranks: each collective is complete, and all ranks of a group reached the same one "
        f"({said}): nobody waited when they were written"
    )


def _whole(raw: object) -> tuple[set[int], dict[str, int], int] | None:
    """Members of the dump's groups, its last collective by group, and when; None where a call is not complete."""
    if not isinstance(raw, Mapping):
        return None
    entries, config = raw.get("entries"), raw.get("pg_config")
    if not isinstance(entries, list) or not entries or not isinstance(config, Mapping) or not config:
        return None
    last: dict[str, int] = {}
    newest_ns = 0
    for entry in entries:
        number = entry.get("collective_seq_id") if isinstance(entry, Mapping) else None
        if not isinstance(number, int) or entry.get("state") != _DONE or entry.get("is_p2p"):
            return None
        group = entry.get("process_group")
        name = " ".join(map(str, group)) if isinstance(group, list) else str(group)
        last[name] = max(last.get(name, 0), number)
        created = entry.get("time_created_ns")
        newest_ns = max(newest_ns, created if isinstance(created, int) else 0)
    ranks = [_ranks(one.get("ranks")) if isinstance(one, Mapping) else None for one in config.values()]
    status = raw.get("pg_status")
    if any(one is None for one in ranks) or not _ended(status):
        return None
    return {rank for one in ranks if one is not None for rank in one}, last, newest_ns


def _ended(status: object) -> bool:
    """Whether each group's last collective has ended that was enqueued; unknown is taken for yes."""
    if not isinstance(status, Mapping):
        return True
    pairs = [(one.get("last_enqueued_collective"), one.get("last_completed_collective"))
             for one in status.values() if isinstance(one, Mapping)]  # fmt: skip
    return all(enqueued == completed for enqueued, completed in pairs)


def _ranks(said: object) -> set[int] | None:
    """Members as a list or as its text."""
    if isinstance(said, str) and len(said) < 1_000_000:
        try:
            said = ast.literal_eval(said)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return None
    return set(said) if isinstance(said, list) and all(isinstance(one, int) for one in said) else None
