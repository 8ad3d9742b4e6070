"""Change points of iteration time on recorded runs and injected fail-slows, against the plain methods.

Protocol: a report matches a true change if it begins between 10 iterations before and 30 after it (sampled series: 10
samples), each once; of a staircase or a drift, also until 30 after it has passed 10 %. A job is right if nothing is
false and nothing missed; a relief need not be reported, but is no false report. Reports that begin within the first 20
samples or within an ignored stretch count neither way. Labels are the truth; of Megatron, whose labels leave spells
out, a second set counts what the rule of `lasting` sees besides, told or missed. Intervals are 95 % bootstrap intervals
over runs (nanogpt: over records).

Run: ``python -m tests.benchmarks.detection.changes`` (minutes); names of methods after it are all that is run, as rows
of a table in place of JSON: ``python -m tests.benchmarks.detection.changes ours suggest``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from tests.benchmarks.detection.change_baselines import OFFLINE, Report, methods, ours
from tests.benchmarks.detection.change_series import START, Floats, Series, Split, TrueChange, recorded
from tests.benchmarks.detection.change_synthetic import residuals, synthetic
from tests.benchmarks.detection.tables import text
from tests.places import shared_data

PER_CLASS: Final = 200
SLOW_METHODS: Final = {"rbeast": 24, "bocd": 40, "bocd_verified": 40, "pelt": 24}  # series of each set they get
LONGEST: Final = 2500  # rows of a series that slow methods get
DRAWS: Final = 1000
CLEAR: Final = 1.2
BY_RULE: Final = "megatron/by_rule"
LASTING: Final = 10  # Falcon's verification: at least 10 % and at least ten iterations
CLEARLY: Final = 0.9  # of the twenty, so that a checkpoint hides no change


@dataclass(slots=True)
class Outcome:
    """What one method made of one run; `lasting` of the false reports are where the times do change, see `lasting`."""

    group: str
    iterations: int
    found: list[tuple[TrueChange, Report]] = field(default_factory=list)
    missed: list[TrueChange] = field(default_factory=list)
    false: list[Report] = field(default_factory=list)
    lasting: int = 0

    @property
    def right(self) -> bool:
        """Nothing false, nothing missed but perhaps a relief."""
        return not self.false and all(change.kind == "relief" for change in self.missed)


def match(run: Series, reports: Sequence[Report]) -> Outcome:
    """Pair reports with true changes, in order, each once; of several the first of the change's direction.

    Examples
    --------
    >>> change = TrueChange(100, 100, 1.5, "step")
    >>> run = Series("a", "x", "a", np.arange(200), np.ones(200), (change,))
    >>> outcome = match(run, [Report(101, 104, 1.5), Report(150, 153, 1.2)])
    >>> len(outcome.found), len(outcome.missed), len(outcome.false), outcome.right
    (1, 0, 1, False)
    """
    outcome, left = Outcome(run.group, len(run.durations)), list(reports)
    early, late = run.reach
    for change in run.changes:
        hits = [report for report in left if change.at - early <= report.onset <= change.by + late]
        hit = min(hits, key=lambda report, up=change.ratio > 1.0: (report.ratio > 1.0) != up, default=None)
        if hit is None:
            outcome.missed.append(change)
        else:
            left.remove(hit)
            outcome.found.append((change, hit))
    for report in left:
        ignored = report.onset < START or any(first <= report.onset <= last for first, last in run.ignores)
        if not ignored:
            outcome.false.append(report)
            outcome.lasting += lasting(run.durations, report.onset) != 0.0
    return outcome


def lasting(durations: Floats, at: int) -> float:
    """The rule by which a change counts, labelled or not: its log ratio where it holds for a change at `at`, else 0.

    The medians of the ten times before and from `at` differ by 10 % (Falcon 4.2: at least 10 %, at least ten
    iterations), and nine in ten of them lie on their own side of the middle: a change, not two draws of a noise.

    Examples
    --------
    >>> [round(lasting(np.repeat([1.0, after], 20), 20), 3) for after in (1.2, 1.05, 0.8)]
    [0.182, 0.0, -0.223]
    """
    if min(at, len(durations) - at) < LASTING:
        return 0.0
    log = np.log(durations[at - LASTING : at + LASTING])
    before, after = float(np.median(log[:LASTING])), float(np.median(log[LASTING:]))
    beyond = (log > (before + after) / 2.0) == (after > before)
    clearly = np.mean(np.r_[~beyond[:LASTING], beyond[LASTING:]]) >= CLEARLY
    return after - before if abs(after - before) >= np.log(1.1) and clearly else 0.0


def by_rule(run: Series) -> Series:
    """`run` with the changes that the rule sees and no label names; one to faster is a relief.

    Of neighbouring places the one whose sides lie farthest apart is the change. A report that no change covers stays
    false, and a change that no report covers is missed.

    Examples
    --------
    >>> spell = Series("a", "x", "a", np.arange(90), np.r_[np.ones(40), np.full(15, 1.5), np.ones(35)])
    >>> [(change.at, round(change.ratio, 2), change.kind) for change in by_rule(spell).changes]
    [(40, 1.5, 'step'), (55, 0.67, 'relief')]
    """
    ratios = np.array([lasting(run.durations, at) for at in range(len(run.durations))])
    early, late = run.reach
    known = [(change.at - early, change.by + late) for change in run.changes] + list(run.ignores)
    ratios[:START] = 0.0
    for first, last in known:
        ratios[max(0, first) : last + 1] = 0.0
    log, places = np.log(run.durations), np.flatnonzero(ratios)
    apart = [abs(log[at : at + LASTING].mean() - log[at - LASTING : at].mean()) for at in places]
    near = np.split(np.arange(places.size), np.flatnonzero(np.diff(places) > 1) + 1)
    seen = [places[max(part, key=apart.__getitem__)] for part in near if part.size]
    more = [
        TrueChange(int(at), int(at), float(np.exp(ratios[at])), "step" if ratios[at] > 0.0 else "relief") for at in seen
    ]
    return replace(run, changes=tuple(sorted([*run.changes, *more], key=lambda change: change.at)))


def metrics(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """All figures of one method on one set; None where there is nothing to measure."""
    onsets = [pair for outcome in outcomes for pair in outcome.found if pair[0].kind != "relief"]
    reliefs = [pair for outcome in outcomes for pair in outcome.found if pair[0].kind == "relief"]
    missed = [change for outcome in outcomes for change in outcome.missed]
    lost = sum(change.kind != "relief" for change in missed)
    clear = [pair for pair in onsets if max(pair[0].ratio, 1 / pair[0].ratio) >= CLEAR and pair[0].kind != "drift"]
    clear = [pair for pair in clear if pair[0].kind != "staircase"]
    slow = [pair for pair in onsets if pair[0].kind in {"drift", "staircase"}]
    healthy = [outcome for outcome in outcomes if not outcome.found and not outcome.missed]
    steps = [abs(np.log(report.ratio / change.ratio)) for change, report in [*clear, *reliefs]]
    return {
        "jobs": len(outcomes),
        "iterations": sum(outcome.iterations for outcome in outcomes),
        "changes": len(onsets) + lost,
        "job_accuracy": float(np.mean([outcome.right for outcome in outcomes])),
        "fpr": float(np.mean([bool(outcome.false) for outcome in healthy])) if healthy else None,
        "fnr": lost / (len(onsets) + lost) if onsets or lost else None,
        "recall": len(onsets) / (len(onsets) + lost) if onsets or lost else None,
        "precision": _precision(outcomes),
        "false": sum(len(outcome.false) for outcome in outcomes),
        "false_lasting": sum(outcome.lasting for outcome in outcomes),
        "false_per_1000": _false_rate(outcomes),
        "delay_median": _quantile([report.reported - change.at for change, report in clear], 50),
        "delay_p90": _quantile([report.reported - change.at for change, report in clear], 90),
        "after_passing_median": _quantile([report.reported - change.by for change, report in slow], 50),
        "after_passing_p90": _quantile([report.reported - change.by for change, report in slow], 90),
        "relief_found": len(reliefs),
        "relief_missed": len(missed) - lost,
        "relief_delay_median": _quantile([report.reported - change.at for change, report in reliefs], 50),
        "ratio_error_median": _quantile(steps, 50),
    } | _intervals(outcomes)


def _precision(outcomes: Sequence[Outcome]) -> float | None:
    """Share of the reports that are of a true change, a relief among them."""
    right, false = (
        sum(len(part) for part in parts) for parts in zip(*((o.found, o.false) for o in outcomes), strict=True)
    )
    return right / (right + false) if right + false else None


def _false_rate(outcomes: Sequence[Outcome]) -> float:
    return 1000.0 * sum(len(one.false) for one in outcomes) / max(1, sum(one.iterations for one in outcomes))


def _quantile(values: Sequence[float], percent: float) -> float | None:
    return float(np.percentile(values, percent)) if values else None


def _intervals(outcomes: Sequence[Outcome]) -> dict[str, list[float]]:
    """95 % bootstrap intervals; what is drawn are groups."""
    groups: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault(outcome.group, []).append(outcome)
    table = np.array(
        [
            (
                sum(o.right for o in group),
                len(group),
                sum(len(o.false) for o in group),
                sum(o.iterations for o in group),
            )
            for group in groups.values()
        ],
        dtype=np.float64,
    )
    drawn = table[np.random.default_rng(0).integers(len(table), size=(DRAWS, len(table)))].sum(axis=1)
    ends = (2.5, 97.5)
    return {
        "job_accuracy_ci": [float(end) for end in np.percentile(drawn[:, 0] / drawn[:, 1], ends)],
        "false_per_1000_ci": [float(end) for end in np.percentile(1000.0 * drawn[:, 2] / drawn[:, 3], ends)],
    }


def sets(split: Split = "report", per_class: int = PER_CLASS) -> dict[str, list[Series]]:
    """The series of one half by data set; synthetic ones by class too."""
    data = shared_data()
    runs = [run for run in recorded(data) if run.split == split] if data is not None else []
    named: dict[str, list[Series]] = {}
    for run in [*runs, *synthetic(split, per_class, residuals(runs))]:
        named.setdefault(run.dataset, []).append(run)
        if run.what:
            named.setdefault(f"{run.dataset}/{run.what}", []).append(run)
    if "megatron" in named:  # its labels leave spells out: both ways of counting are shown
        named[BY_RULE] = [by_rule(run) for run in named["megatron"]]
    return named


def rows(
    split: Split = "report", per_class: int = PER_CLASS, wanted: Collection[str] | None = None
) -> list[dict[str, Any]]:
    """One row per method and data set: ``{"table": "changes", "row": method, "set": data set, metric: value}``.

    `wanted` are the methods, all by default.
    """
    out: list[dict[str, Any]] = []
    if shared_data() is None:
        out.append({"table": "changes", "row": "ours", "set": "recorded", "skipped": "no shared data on this machine"})
    known = {name: method for name, method in methods().items() if wanted is None or name in wanted}
    out += [
        {"table": "changes", "row": name, "set": "all", "skipped": "package not installed"}
        for name in OFFLINE
        if name not in methods()
    ]
    for name, runs in sets(split, per_class).items():
        results = {"ours": [match(run, found) for run, found in zip(runs, ours(runs), strict=True)]}
        for method, find in known.items():
            few = _subset(runs, SLOW_METHODS.get(method))
            results[method] = [match(run, find(run.durations)) for run in few]
        for method, outcomes in results.items():
            row = {"table": "changes", "row": method, "set": name, "offline": method in OFFLINE}
            out.append(row | metrics(outcomes))
    return out


def _subset(runs: Sequence[Series], most: int | None) -> list[Series]:
    """Evenly chosen runs, cut to `LONGEST` rows, for methods that would take hours."""
    if most is None:
        return list(runs)
    chosen = [runs[place] for place in sorted(set(np.linspace(0, len(runs) - 1, min(most, len(runs))).astype(int)))]
    return [run if len(run.durations) <= LONGEST else _cut(run) for run in chosen]


def _cut(run: Series) -> Series:
    changes = tuple(change for change in run.changes if change.by < LONGEST - 40)
    return Series(
        run.name, run.dataset, run.group, run.steps[:LONGEST], run.durations[:LONGEST], changes, run.ignores, run.reach,
        run.what, run.split,
    )  # fmt: skip


if __name__ == "__main__":
    print(text(rows(wanted=sys.argv[1:])) if sys.argv[1:] else json.dumps(rows(), indent=1))
