"""Who is slow, across ranks, on real and constructed series: our detector beside simple rules, one pass, no future.

A report matches a true spell of the same rank that it overlaps, once; it counts as found from 10 rows before the spell
begins to 10 after it ends. Intervals are 95 % bootstrap intervals over cases.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tests.benchmarks.detection.peer_cases import Case, Spell, cases
from tests.places import shared_data
from trainwarden.detectors.job.common_mode import quiet_median
from trainwarden.detectors.job.state import JobState
from trainwarden.detectors.peers.peer_deviation import PeerDeviation
from trainwarden.detectors.peers.roles import roles
from trainwarden.records import IterationRecord

Floats = npt.NDArray[np.float64]
MARGIN: Final = 10  # rows before a spell begins and after it ends within which a report of it may be made
DTW_WINDOW, DTW_EVERY, DTW_BAND, DTW_RANKS = 40, 20, 5, 16
SKIPPED: Final = "the shared data are not there: set TRAINWARDEN_SHARED or put them beside the checkout"


@dataclass(frozen=True, slots=True)
class Report:
    """What a method said; rows of the case, `last` None while it lasted to the end."""

    rank: int
    first: int
    reported: int
    last: int | None
    ratio: float
    basis: str = "self"


Method = Callable[[Case], list[Report]]


def records(case: Case, block: int) -> list[list[IterationRecord]]:
    """The case as an agent would send it: every rank's rows, in blocks of so many rows."""
    names = roles(case.ids, case.parallel or {})
    lanes = {"duration_s": case.duration_s, "compute_s": case.compute_s, "wait_s": case.wait_s}
    out = []
    for start in range(0, len(case.steps), block):
        rows = range(start, min(start + block, len(case.steps)))
        part = []
        for column, rank in enumerate(case.ids):
            known = [row for row in rows if np.isfinite(case.duration_s[row, column])]
            values = {
                name: tuple(None if math.isnan(lane[row, column]) else float(lane[row, column]) for row in known)
                for name, lane in lanes.items() if lane is not None
            }  # fmt: skip
            steps = tuple(int(case.steps[row]) for row in known)
            ends = tuple(1e6 + case.row_s * row for row in known)
            if known:
                part.append(
                    IterationRecord(
                        job="job", node=f"node{rank}", rank=rank, incarnation=f"{rank}-0", steps=steps, end_s=ends,
                        role=names[column], **values,  # type: ignore[arg-type]
                    )
                )  # fmt: skip
        out.append(part)
    return out


def ours(case: Case, block: int = 8) -> list[Report]:
    """The product's own path: records into the job's state, windows out, one update for each."""
    state, detector = JobState("job"), PeerDeviation(PeerDeviation.Config())
    for number, part in enumerate(records(case, block)):
        for record in part:
            state.feed(record)
        detector.update(state.window(1e6 + case.row_s * block * (number + 1)))
    row = {int(step): place for place, step in enumerate(case.steps)}
    column = {rank: place for place, rank in enumerate(case.ids)}
    return [
        Report(
            column[one.rank], row[one.from_step], row[one.reported_step],
            None if one.to_step is None else row[one.to_step], one.ratio, one.basis,
        )
        for one in detector.episodes
    ]  # fmt: skip


def work_s(case: Case) -> Floats:
    """What the simple rules compare: compute time, else what is left of the duration without waits."""
    if case.compute_s is not None:
        return case.compute_s
    return case.duration_s if case.wait_s is None else np.maximum(case.duration_s - case.wait_s, 1e-6)


def robust_z(limit: float) -> Method:
    """A rank is slow where it lies `limit` robust deviations above the ranks' median; 3 such rows in a row alarm."""

    def method(case: Case) -> list[Report]:
        logs = np.log(work_s(case))
        middle = quiet_median(logs.T)[:, None]
        spread = 1.4826 * quiet_median(np.abs(logs - middle).T)[:, None]
        with np.errstate(invalid="ignore"):
            return _episodes((logs - middle) > limit * np.maximum(spread, 1e-3), np.exp(logs - middle), 3)

    return method


def largest_mean(case: Case) -> list[Report]:
    """The rank with the largest mean time is the slow one, always."""
    mean = np.nanmean(work_s(case), axis=0)
    last = len(case.steps) - 1
    return [Report(int(mean.argmax()), 0, last, None, float(mean.max() / np.median(mean)), "peers")]


def always_off(case: Case) -> list[Report]:
    """Nobody is ever slow."""
    del case
    return []


def dtw_all_pairs(case: Case) -> list[Report]:
    """Mean of a rank's three nearest warped distances above 3 robust deviations, in overlapping windows (tslearn)."""
    from tslearn.metrics import cdist_dtw

    logs = np.log(work_s(case))
    logs = np.where(np.isfinite(logs), logs, quiet_median(logs))
    flags = np.zeros(logs.shape, dtype=np.bool_)
    for end in range(DTW_WINDOW, len(logs) + 1, DTW_EVERY):
        window = logs[end - DTW_WINDOW : end].T
        distances = cdist_dtw(window[:, :, None], global_constraint="sakoe_chiba", sakoe_chiba_radius=DTW_BAND)
        near = np.sort(distances, axis=1)[:, 1:4].mean(axis=1)
        spread = 1.4826 * np.median(np.abs(near - np.median(near)))
        slower = np.median(window, axis=1) > np.median(window)
        flags[end - DTW_EVERY : end] = (near > np.median(near) + 3.0 * max(spread, 1e-3)) & slower
    # A window is judged when it is complete.
    return [
        Report(one.rank, one.first, min(one.first + DTW_EVERY - 1, len(logs) - 1), one.last, one.ratio)
        for one in _episodes(flags, np.exp(logs - np.median(logs, axis=1, keepdims=True)), 1)
    ]


def _episodes(flags: npt.NDArray[np.bool_], ratios: Floats, least: int) -> list[Report]:
    """Runs of flagged rows of each rank, holes of less than 5 rows closed."""
    out = []
    for rank in range(flags.shape[1]):
        rows = np.flatnonzero(flags[:, rank])
        for run in np.split(rows, np.flatnonzero(np.diff(rows) >= 5) + 1) if rows.size else []:
            if len(run) >= least:
                last = None if run[-1] >= len(flags) - 5 else int(run[-1])
                ratio = float(np.nanmedian(ratios[run, rank]))
                out.append(Report(rank, int(run[0]), int(run[least - 1]), last, ratio))
    return out


METHODS: Final[dict[str, Method]] = {
    "peer_deviation": ours,
    "robust_z_3": robust_z(3.0),
    "robust_z_5": robust_z(5.0),
    "dtw_all_pairs": dtw_all_pairs,
    "largest_mean": largest_mean,
    "always_off": always_off,
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a method did in one case: pairs of true spell and the report that found it, and the false reports."""

    case: Case
    found: tuple[tuple[Spell, Report], ...]
    missed: tuple[Spell, ...]
    false: tuple[Report, ...]
    ranked: tuple[int, ...]


def judged(case: Case, reports: Sequence[Report]) -> Outcome:
    """Match reports with the true spells of their rank; several reports of one spell are one and the rest false."""
    end = len(case.steps) - 1
    found, used = [], set()
    for spell in case.spells:
        for place, report in enumerate(reports):
            last = end if report.last is None else report.last
            overlaps = report.rank == spell.rank and report.first <= spell.last + MARGIN
            timely = last >= spell.first - MARGIN and report.first >= spell.first - MARGIN
            if place not in used and overlaps and timely:
                used.add(place)
                found.append((spell, report))
                break
    hit = {id(spell) for spell, _ in found}
    false = tuple(report for place, report in enumerate(reports) if place not in used)
    missed = tuple(spell for spell in case.spells if id(spell) not in hit and spell.scored)
    ranked = tuple(dict.fromkeys(one.rank for one in sorted(reports, key=lambda one: -one.ratio)))
    return Outcome(case, tuple(pair for pair in found if pair[0].scored), missed, false, ranked)


def summary(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """The numbers over some cases; what has no meaning there is left out."""
    found = [pair for one in outcomes for pair in one.found]
    missed, false = (sum(len(getattr(one, name)) for one in outcomes) for name in ("missed", "false"))
    out: dict[str, float] = {"cases": len(outcomes), "false": false}
    true = len(found) + missed
    if true:
        culprits = [{spell.rank for spell in one.case.spells if spell.scored} for one in outcomes]
        pairs = [(one, ranks) for one, ranks in zip(outcomes, culprits, strict=True) if ranks]
        out["recall"] = len(found) / true
        out["top_1"] = sum(bool(one.ranked) and one.ranked[0] in ranks for one, ranks in pairs) / len(pairs)
        out["top_k"] = sum(set(one.ranked[: len(ranks)]) == ranks for one, ranks in pairs) / len(pairs)
    if found or false:
        out["precision"] = len(found) / (len(found) + false)
    if found:
        out["delay_rows_median"] = float(np.median([report.reported - spell.first for spell, report in found]))
        clear = [report.reported - spell.first for spell, report in found if spell.ratio >= 1.3]
        out |= {"delay_rows_p90_clear": float(np.percentile(clear, 90))} if clear else {}
        out["onset_error_rows_median"] = float(np.median([abs(report.first - spell.first) for spell, report in found]))
        out["ratio_error_median"] = float(np.median([abs(report.ratio / spell.ratio - 1.0) for spell, report in found]))
    hours = sum(one.case.duration_s.size * one.case.row_s / 3600.0 for one in outcomes if not one.case.spells)
    if hours:
        alarms = sum(len(one.false) for one in outcomes if not one.case.spells)
        out["false_per_rank_hour"] = alarms / hours
    return out


def intervals(outcomes: Sequence[Outcome], names: Sequence[str], rounds: int = 200) -> dict[str, list[float]]:
    """95 % bootstrap intervals of some of the numbers, over cases."""
    random = np.random.default_rng(0)
    drawn: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(rounds if len(outcomes) > 1 else 0):
        again = summary([outcomes[place] for place in random.integers(0, len(outcomes), len(outcomes))])
        for name in names:
            if name in again:
                drawn[name].append(again[name])
    return {
        f"{name}_interval": [float(value) for value in np.percentile(values, [2.5, 97.5])]
        for name, values in drawn.items() if values
    }  # fmt: skip


def rows(split: str = "report", count: int = 300, methods: Sequence[str] = tuple(METHODS)) -> list[dict[str, Any]]:
    """One row for each method and data set: ``{"table": "peers", "row": method, "set": dataset, metric: value}``."""
    data: Path | None = shared_data()
    sets: dict[str, list[Case]] = {}
    for case in cases("tune" if split == "tune" else "report", data, count):
        sets.setdefault(case.dataset, []).append(case)
    out: list[dict[str, Any]] = []
    for dataset, members in sets.items():
        for name in methods:
            taken = members
            if name == "dtw_all_pairs":  # all pairs of many ranks take minutes
                taken = [case for case in members if len(case.ids) <= DTW_RANKS][:30] or members[:2]
            outcomes = [judged(case, METHODS[name](case)) for case in taken]
            row = {"table": "peers", "row": name, "set": dataset, **summary(outcomes)}
            out.append(row | intervals(outcomes, ("recall", "precision", "top_1")))
    if data is None:
        out.append({"table": "peers", "row": "real", "set": "alibaba, bytedance, smc", "skipped": SKIPPED})
    return out


if __name__ == "__main__":
    import json
    import sys

    for line in rows():
        sys.stdout.write(json.dumps(line) + "\n")
