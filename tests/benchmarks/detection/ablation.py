"""What each mechanism of the change points earns: the same series judged with one of them left out at a time.

Judged on the half that mechanisms and numbers were chosen on (`tune`), by the protocol of
`tests.benchmarks.detection.changes`: what is seen here must not be tuned against the half that is reported. With
``--numbers`` every number of the configuration is halved and doubled in turn instead; with ``--steps`` small steps are
put into noise, with both ways of proposing them and with either. What these series hold too seldom is in
`tests.benchmarks.detection.field_cases`: the share of each class that is right is a column, and counts in no other.

Run: ``python -m tests.benchmarks.detection.ablation`` (minutes with ``--synthetic 40 --every 4``).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from tests.benchmarks.detection.change_baselines import ours
from tests.benchmarks.detection.change_series import REACH, Series
from tests.benchmarks.detection.changes import PER_CLASS, Outcome, match, metrics, sets
from tests.benchmarks.detection.field_cases import CLASSES, field_cases
from trainwarden.detectors.pace.shifts.level_shifts import LevelShifts, ShiftConfig
from trainwarden.detectors.pace.shifts.shift import MECHANISMS, Mechanism

RECORDED: Final = ("nanogpt", "megatron", "mlperf")
SETS: Final = (*RECORDED, "synthetic")
NEAR: Final = 3
FIELD: Final = "field"
FIELD_CASES: Final = 40  # of each class
AS_IT_IS: Final = "(as it is)"
_WAYS: Final[tuple[tuple[Mechanism, ...], ...]] = ((), ("bayes",), ("watch",))
Row = dict[str, Any]


def series(per_class: int = PER_CLASS, every: int = 1) -> dict[str, list[Series]]:
    """The series of the tuning half by data set; of recorded runs that repeat one another only every so many."""
    named = sets("tune", per_class)
    known = {name: named[name][:: every if name == "nanogpt" else 1] for name in SETS if name in named}
    return known | {FIELD: field_cases(FIELD_CASES)}


def mechanisms() -> Iterator[tuple[str, ShiftConfig]]:
    """The configuration as it is, and without each mechanism."""
    yield AS_IT_IS, ShiftConfig()
    for name in MECHANISMS:
        yield f"without {name}", ShiftConfig(leave_out=(name,))


def numbers() -> Iterator[tuple[str, ShiftConfig]]:
    """The configuration as it is, and with each number halved and doubled, as far as its bounds allow it.

    Examples
    --------
    >>> labels = [label for label, _ in numbers()]
    >>> labels[1], "onsets.doubt = 18" in labels, "verification.separate = 1.9" in labels
    ('minimum_ratio = 1.05', True, False)
    """
    yield AS_IT_IS, ShiftConfig()
    plain: dict[str, Any] = msgspec.to_builtins(ShiftConfig())
    for part, name in _places(plain):
        inside = plain if part is None else plain[part]
        for factor in (0.5, 2.0):
            value = _scaled(name, inside[name], factor)
            changed = {**inside, name: value}
            try:
                config = msgspec.convert(changed if part is None else {**plain, part: changed}, ShiftConfig)
            except msgspec.ValidationError:
                continue
            yield f"{'' if part is None else f'{part}.'}{name} = {value:g}", config


def _places(plain: dict[str, Any]) -> list[tuple[str | None, str]]:
    own: list[tuple[str | None, str]] = [(None, name) for name, one in plain.items() if isinstance(one, int | float)]
    return own + [(part, name) for part, one in plain.items() if isinstance(one, dict) for name in one]


def _scaled(name: str, value: float, factor: float) -> float:
    """Half or double; of a ratio above 1, what it is above 1."""
    if isinstance(value, int):
        return round(value * factor)
    return 1.0 + (value - 1.0) * factor if name.endswith("_ratio") and value > 1.0 else value * factor


def judged(label: str, config: ShiftConfig, runs: dict[str, list[Series]]) -> Row:
    """One row: figures over all series but the field's, and the share of jobs that is right in each set.

    Of the field's also of each class; of recorded runs also their own delay, which few of them decide.
    """
    known: dict[str, list[Outcome]] = {}
    row: Row = {"row": label}
    for name, part in runs.items():
        outcomes = [match(run, found) for run, found in zip(part, ours(part, config), strict=True)]
        row[name] = _share(outcomes)
        if name == FIELD:
            of = [run.what for run in part]
            row |= {what: _share([o for o, one in zip(outcomes, of, strict=True) if one == what]) for what in CLASSES}
        else:
            known[name] = outcomes
    recorded = [outcome for name in RECORDED for outcome in known.get(name, [])]
    everything = [outcome for outcomes in known.values() for outcome in outcomes]
    row["recorded_p90"] = metrics(recorded)["delay_p90"] if recorded else None
    row["onsets_off"] = _onsets_off(everything)
    return row | metrics(everything)


def _onsets_off(outcomes: Sequence[Outcome]) -> float:
    """The share of the changes told that came at once whose onset is named more than `NEAR` rows from where it is."""
    found = [pair for outcome in outcomes for pair in outcome.found if pair[0].at == pair[0].by]
    return float(np.mean([abs(report.onset - change.at) > NEAR for change, report in found])) if found else 0.0


def _share(outcomes: Sequence[Outcome]) -> float:
    return float(np.mean([outcome.right for outcome in outcomes]))


def table(rows: Sequence[Row]) -> str:
    """The rows as people read them; percentages are of jobs that are right."""
    names = [name for name in (*SETS, *CLASSES) if name in rows[0]]
    figures = ["false/1,000", "missed", "delay", "p90", "recorded p90", "drift", "drift p90", "onsets off"]
    head = ["", "jobs right", *names, *figures]
    lines = [head, *(_cells(row, names) for row in rows)]
    widths = [max(len(line[place]) for line in lines) for place in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if place == 0 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _cells(row: Row, names: Sequence[str]) -> list[str]:
    delays = ("delay_median", "delay_p90", "recorded_p90", "after_passing_median", "after_passing_p90")
    return [
        row["row"], *(f"{100 * row[name]:.1f} %" for name in ("job_accuracy", *names)), f"{row['false_per_1000']:.4f}",
        f"{100 * (row['fnr'] or 0.0):.1f} %", *(_shown(row[name]) for name in delays),
        f"{100 * row['onsets_off']:.2f} %",
    ]  # fmt: skip


def _shown(value: float | None) -> str:
    return "" if value is None else f"{value:g}"


def steps() -> str:
    """What either way of proposing is worth for a step after 200 rows: how many are told soon, and after how many rows.

    Of 300 series of normal noise for each size and width.
    """
    lines = ["step noise without told within_12_rows median_rows p90_rows"]
    for ratio, width in product((1.11, 1.13, 1.16, 1.25), (0.01, 0.03, 0.05)):
        values = np.random.default_rng(7).normal(0.0, width, (320, 300))
        values[200:] += np.log(ratio)
        for leave_out in _WAYS:
            shifts, told = LevelShifts(ShiftConfig(leave_out=leave_out)), {}
            for seq, row in enumerate(values):
                for shift in shifts.update(seq, row):
                    if shift.slower and abs(shift.onset - 200) <= REACH[1]:
                        told.setdefault(shift.series, shift.reported - 200)
            rows = np.array([*told.values()])
            figures = f"{rows.size} {(rows <= 12).sum()} {np.median(rows):g} {np.percentile(rows, 90):g}"
            lines.append(f"{ratio} {width} {'+'.join(leave_out) or '-'} {figures}")
    return "\n".join(lines)


def main(words: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.detection.ablation", description=__doc__)
    parser.add_argument("--synthetic", type=int, default=PER_CLASS, help="synthetic series of each of six classes")
    parser.add_argument("--every", type=int, default=1, help="take one in so many of the nanogpt runs, which are alike")
    parser.add_argument("--numbers", action="store_true", help="halve and double every number instead")
    parser.add_argument("--json", type=Path, help="file for all figures")
    parser.add_argument("--steps", action="store_true", help="put small steps into noise instead")
    asked = parser.parse_args(words)
    if asked.steps:
        print(steps())
        return
    variants = list(numbers() if asked.numbers else mechanisms())
    runs = series(asked.synthetic, asked.every)
    rows: list[Row] = []
    begun_s = time.monotonic()
    for place, (label, config) in enumerate(variants, 1):
        rows.append(judged(label, config, runs))
        right, lasted_s = 100 * rows[-1]["job_accuracy"], time.monotonic() - begun_s
        print(f"{place}/{len(variants)}, {lasted_s:.0f} s: {label}: {right:.1f} % right", file=sys.stderr, flush=True)
        if asked.json is not None:
            asked.json.write_text(json.dumps(rows, indent=1))
    print(table(rows))


if __name__ == "__main__":
    main()
