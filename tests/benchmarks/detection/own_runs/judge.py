"""Judging captured runs: by the live path with models of their own start, by trained models, member by member."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from tests.benchmarks.detection.own_runs.live import judged as through
from tests.benchmarks.detection.own_runs.members import rows as member_rows
from tests.benchmarks.detection.own_runs.outcomes import Judged, by_kind, judged, row
from tests.benchmarks.detection.own_runs.plan import HALVES, Half
from tests.benchmarks.detection.own_runs.reading import Captured, captured
from tests.benchmarks.detection.own_runs.trained import trained
from tests.places import ROOT
from trainwarden.records import IncidentRecord

Say = Callable[[str], None]
Rows = list[dict[str, Any]]
PAGE: Final = ROOT / "tests" / "benchmarks" / "detection" / "tables.md"
BEGIN, END = "<!-- own runs: made by `own_runs judge --write` -->\n", "<!-- end of own runs -->\n"
PARTS: Final = ("day_one", "trained", "members")
NOTE: Final = (
    "[a, b]: bounds at 95 % each (Poisson for counts, Wilson for shares). Rules were chosen on the choosing half; "
    "docs/benchmarks.md says how often the other one was looked at."
)


@dataclass(slots=True)
class Tables:
    """What `judge` shows."""

    outcomes: Rows
    kinds: Rows
    gate: Rows
    members: Rows

    def markdown(self) -> str:
        """All of them."""
        parts = (
            ("incidents", self.outcomes), ("faults with the right rank, by kind", self.kinds),
            ("what the gate of `train` said", self.gate),
            ("members alone, healthy runs of scripts not learnt from", self.members),
        )  # fmt: skip
        shown = [
            f"## Runs of our own, one sample a second: {title}\n\n{_table(rows)}\n" for title, rows in parts if rows
        ]
        return "\n".join([*shown, f"{NOTE}\n"])


def judge(folder: Path, parts: Sequence[str] = PARTS, say: Say = print, kept: Path | None = None) -> Tables:
    """All tables of the runs in `folder`; what was found on day one is read from `kept` where it lies there."""
    runs = list(captured(folder))
    tables = Tables([], [], [], [])
    if "day_one" in parts:
        for half in HALVES:
            _add(tables, f"day one, {half}", [day_one(run, say, kept) for run in of_half(runs, half)])
    if "trained" in parts:
        _trained(runs, tables, say)
    if "members" in parts:
        tables.members = member_rows([run for run in runs if not run.faults], say)
    return tables


def day_one(run: Captured, say: Say = lambda line: None, kept: Path | None = None) -> Judged:
    """A run by the live path, without anything that was learnt elsewhere."""
    begun_s = time.process_time()
    path = None if kept is None else kept / f"{run.name}.json"
    if path is not None and path.exists():
        incidents = msgspec.json.decode(path.read_bytes(), type=list[IncidentRecord])
    else:
        incidents = through(run)
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(msgspec.json.encode(incidents))
    found = judged(run, incidents)
    _tell(found, time.process_time() - begun_s, say)
    return found


def of_half(runs: Sequence[Captured], half: Half) -> list[Captured]:
    """The runs of one half."""
    return [run for run in runs if run.half == half]


def write(text: str, page: Path = PAGE) -> None:
    """Put the tables into the page, in place of those that were there."""
    old = page.read_text(encoding="utf-8")
    kept = old.partition(BEGIN)[0].rstrip("\n") + "\n\n" + BEGIN + text + END + old.partition(END)[2]
    page.write_text(kept, encoding="utf-8")


def _healthy(runs: Sequence[Captured], half: Half) -> list[Captured]:
    return [run for run in of_half(runs, half) if not run.faults]


def _trained(runs: Sequence[Captured], tables: Tables, say: Say) -> None:
    """By models of the healthy choosing runs, and of all choosing runs with their faults told; what the gate says."""
    for name, learnt in (
        ("healthy runs", _healthy(runs, "choose")), ("with faults annotated", of_half(runs, "choose")),
    ):  # fmt: skip
        models = trained(learnt)
        tables.gate += models.rows(name)
        if models.bundle is None:
            say(f"train, {name}: the gate lets nothing serve")
        else:
            report = []
            for run in of_half(runs, "report"):
                report.append(judged(run, through(run, models.bundle)))
                _tell(report[-1], 0.0, say)
            _add(tables, f"trained, {name}: report", report)


def _add(tables: Tables, name: str, found: Sequence[Judged]) -> None:
    tables.outcomes.append(row(name, found))
    tables.kinds.append(by_kind(name, found))


def _tell(one: Judged, took_s: float, say: Say) -> None:
    """One run in words."""
    first_s = one.run.span_s[0]
    say(f"{one.run.name}: {one.run.healthy_s / 60.0:.1f} healthy minutes, {took_s:.0f} s")
    for outcome in one.outcomes:
        said = "missed" if outcome.delay_s is None else f"{outcome.delay_s:.0f} s, rank {outcome.rank}, {outcome.kind}"
        say(f"    {outcome.fault.kind} of rank {outcome.fault.rank}: {said}")
    for incident in one.false:
        who = ", ".join(suspect.device or f"rank {suspect.rank}" for suspect in incident.suspects[:3])
        say(f"    FALSE {incident.kind} at {incident.opened_at_s - first_s:.0f} s, {who}: {incident.reason[:200]}")


def _table(rows: Rows) -> str:
    heads = list(rows[0])
    lines = [heads, ["---"] * len(heads), *([str(one.get(head, "")) for head in heads] for one in rows)]
    return "\n".join("| " + " | ".join(cell.replace("|", "/") for cell in line) + " |" for line in lines)
