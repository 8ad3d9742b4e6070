"""What incidents come to: which faults were found, how soon, with whom accused, and what was false."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from tests.benchmarks.detection.own_runs.reading import AFTER_S, Captured, Fault
from trainwarden.records import IncidentRecord
from trainwarden.trainer_offline.fit.bounds import count_bounds, share_bounds

FLEET: Final = 256
DAY_S: Final = 86_400.0
SLOW: Final = frozenset({"slow_compute", "slow_job", "metric_anomaly"})
RIGHT_KINDS: Final[Mapping[str, frozenset[str]]] = {
    "starved": SLOW | {"host_contention"},
    "stopped": SLOW | {"hang"},
    "leak": frozenset({"metric_anomaly", "host_contention", "memory_leak"}),
    "threads": SLOW | {"host_contention"},
    "data_stall": SLOW | {"slow_data", "storage"},
    "log_storm": frozenset({"log_storm"}),
    "disk": frozenset({"metric_anomaly", "storage"}),
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """One fault: when an incident opened after its beginning, and whether rank and kind were right."""

    run: str
    fault: Fault
    delay_s: float | None = None
    rank: bool = False
    kind: bool = False


@dataclass(frozen=True, slots=True)
class Judged:
    """One run under one way of judging."""

    run: Captured
    outcomes: tuple[Outcome, ...]
    false: tuple[IncidentRecord, ...]


def judged(run: Captured, incidents: Iterable[IncidentRecord]) -> Judged:
    """An incident belongs to the fault within which, or within `AFTER_S` of whose end, it opened; others are false."""
    incidents = list(incidents)
    of = {fault: [one for one in incidents if _within(one, fault)] for fault in run.faults}
    false = [one for one in incidents if not any(one in found for found in of.values())]
    return Judged(run, tuple(_outcome(run.name, *pair) for pair in of.items()), tuple(false))


def _within(one: IncidentRecord, fault: Fault) -> bool:
    return fault.from_s <= one.opened_at_s < fault.to_s + AFTER_S


def _outcome(run: str, fault: Fault, found: Sequence[IncidentRecord]) -> Outcome:
    if not found:
        return Outcome(run, fault)
    named = [one for one in found if accuses(one, fault.rank)]
    first = min((named or found), key=lambda one: one.opened_at_s)
    kind = any(one.kind in RIGHT_KINDS[fault.kind] for one in named or found)
    return Outcome(run, fault, first.opened_at_s - fault.from_s, bool(named), kind)


def accuses(one: IncidentRecord, rank: int) -> bool:
    """Whether the incident's first suspect is this rank, or its process."""
    return bool(one.suspects) and (one.suspects[0].rank == rank or one.suspects[0].device == f"rank-{rank}")


def row(name: str, all_judged: Sequence[Judged]) -> dict[str, Any]:
    """One row of the table."""
    hours = sum(one.run.healthy_s for one in all_judged) / 3_600.0
    rank_days = sum(one.run.healthy_s * one.run.ranks for one in all_judged) / DAY_S
    false = sum(len(one.false) for one in all_judged)
    outcomes = [outcome for one in all_judged for outcome in one.outcomes]
    found = [one for one in outcomes if one.delay_s is not None]
    named = [one for one in found if one.rank]
    low, high = count_bounds(false)
    return {
        "row": name,
        "runs": len(all_judged),
        "healthy job-hours": round(hours, 2),
        "healthy rank-hours": round(24.0 * rank_days, 1),
        "false": false,
        "false a job-hour": _bounded(false, low, high, hours),
        "false a day of 256 ranks": _bounded(false, low, high, rank_days / FLEET),
        "faults": len(outcomes),
        "found": _share(len(found), len(outcomes)),
        "right rank": _share(len(named), len(outcomes)),
        "right kind of those found": _share(sum(one.kind for one in found), len(found)),
        "delay, median s": round(median(one.delay_s or 0.0 for one in named), 1) if named else "",
    }


def by_kind(name: str, all_judged: Sequence[Judged]) -> dict[str, Any]:
    """How many of each kind of fault were found with the right rank, as one row."""
    outcomes = [outcome for one in all_judged for outcome in one.outcomes]
    cells: dict[str, Any] = {"row": name}
    for kind in RIGHT_KINDS:
        own = [one for one in outcomes if one.fault.kind == kind]
        delays = [one.delay_s for one in own if one.rank and one.delay_s is not None]
        seen = sum(one.delay_s is not None for one in own)
        cells[kind] = f"{len(delays)} of {len(own)}" + (f" (seen {seen})" if seen > len(delays) else "")
        cells[kind] += f", {median(delays):.0f} s" if delays else ""
    return cells


def _bounded(seen: int, low: float, high: float, of: float) -> str:
    return f"{seen / of:.3g} [{low / of:.3g}, {high / of:.3g}]" if of else ""


def _share(found: int, of: int) -> str:
    low, high = share_bounds(found, of)
    return f"{found} [{low:.2f}, {high:.2f}]" if of else ""
