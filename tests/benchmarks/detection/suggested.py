"""What `annotate suggest` finds of labelled events: changes of level alone, and with stretches unlike the rest.

An event is found if a suggestion touches it (margin five samples): a change by its moment, a stretch by all of it.
A suggestion is right if it touches an event. By chance is what as many of the same length come to at random places. The
labelled part of each recording is looked at, as a job of its own; its training part is normal.

Run: ``python -m tests.benchmarks.detection.suggested report`` (minutes; ``choose`` is the other half).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from tests.benchmarks.detection.measures import MARGIN_SAMPLES, segments
from tests.benchmarks.detection.servers import DATASETS, Flags, Floats, ServerCase, listed, load
from trainwarden.trainer_offline.suggest.series import Series
from trainwarden.trainer_offline.suggest.suggestions import Suggestion, suggestions
from trainwarden.trainer_offline.suggest.unlike import unlike_suggestions

MOST_CHANGES: Final = 20  # as the command shows of a job
MOST_STRETCHES: Final = 10
DRAWS: Final = 200
Spans = list[tuple[int, int]]


@dataclass(slots=True)
class Count:
    """Events and how many were found; suggestions and how many are right; the same by chance."""

    events: int = 0
    found: int = 0
    made: int = 0
    right: int = 0
    chance_found: float = 0.0
    chance_right: float = 0.0

    def add(self, labels: Flags, spans: Spans) -> None:
        """One machine more."""
        events = segments(labels)
        found, right = _touched(events, np.array(spans, np.int64).reshape(-1, 2))
        self.events, self.made = self.events + len(events), self.made + len(spans)
        self.found, self.right = self.found + found, self.right + right
        rng = np.random.default_rng(0)
        for _ in range(DRAWS if spans else 0):
            lengths = np.array([last - first for first, last in spans])
            first = rng.integers(0, np.maximum(1, labels.size - lengths))
            by_chance = _touched(events, np.stack([first, first + lengths], axis=1))
            self.chance_found += by_chance[0] / DRAWS
            self.chance_right += by_chance[1] / DRAWS

    def row(self) -> str:
        """Cells of a table."""
        precision = [f"{part / self.made:.2f}" if self.made else "" for part in (self.right, self.chance_right)]
        recall = [f"{part / self.events:.2f}" for part in (self.found, self.chance_found)]
        return (
            f"{self.found} of {self.events} | {recall[0]} | {recall[1]} | {self.made} | {precision[0]} | {precision[1]}"
        )


def _touched(events: np.ndarray, spans: np.ndarray) -> tuple[int, int]:
    """How many events are touched, and how many spans touch one."""
    hits = (spans[:, None, 0] <= events[None, :, 1] + MARGIN_SAMPLES) & (
        spans[:, None, 1] >= events[None, :, 0] - MARGIN_SAMPLES
    )
    return int(hits.any(axis=0).sum()), int(hits.any(axis=1).sum())


def made(case: ServerCase, rows: Floats) -> tuple[list[Suggestion], list[Suggestion]]:
    """Changes and stretches as the command shows them, without a bound on how many."""
    times_s = np.arange(len(rows), dtype=np.float64)
    series = [Series(name, "", times_s, rows[:, column]) for column, name in enumerate(case.names)]
    changes = sorted(suggestions(case.name, iter(series)), key=lambda one: -len(one.shifts))
    return changes, unlike_suggestions(case.name, series, changes[:MOST_CHANGES])


def spans(found: Sequence[Suggestion], samples: int) -> Spans:
    """Samples from, to: of a change its moment."""
    out = []
    for one in found:
        end = one.from_s if one.unlike is None else samples - 1 if one.to_s is None else one.to_s - 1
        out.append((int(one.from_s), int(end)))
    return out


def main(half: str) -> None:
    """Print the table of one half."""
    print("| | events found | recall | by chance | suggestions | precision | by chance |")
    for dataset in DATASETS:
        names = [name for name, of in listed(dataset) if of == half]
        counts = {name: Count() for name in ("changes", "stretches", "both")}
        normal, days, whole, marked = 0, 0.0, 0, 0
        for name in names:
            case = load(dataset, name)
            changes, stretches = made(case, case.test)
            shown = spans(changes[:MOST_CHANGES], len(case.test)), spans(stretches[:MOST_STRETCHES], len(case.test))
            for key, part in zip(counts, (shown[0], shown[1], [*shown[0], *shown[1]]), strict=True):
                counts[key].add(case.labels, part)
            whole, marked = whole + len(case.test), marked + sum(last - first + 1 for first, last in shown[1])
            if dataset != "nab":
                normal += len(made(case, case.train)[1][:MOST_STRETCHES])
                days += len(case.train) / case.per_day
        for key, count in counts.items():
            print(f"| {dataset} {half}, {len(names)} machines: {key} | {count.row()} |", flush=True)
        print(
            f"  stretches cover {marked / whole:.1%} of the time"
            + (f"; {normal} in {days:.0f} normal days" if days else "")
        )


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "report")
