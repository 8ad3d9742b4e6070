"""Charts as numbers and SVG paths: iteration time, ranks x time, votes.

Charts are `WIDTH` wide whatever they are shown at: words stand beside them, not in them. What is unknown is a gap.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from trainwarden.dashboards.overview.pace import Pace, mean_of
from trainwarden.records import VerdictRecord

WIDTH: Final = 1_000.0
HEIGHT: Final = 100.0
MOST_ROWS: Final = 512  # of a heat map; above that the slowest of a group stands for it
MOST_COLUMNS: Final = 240  # of votes
MOST_DETECTORS: Final = 24
PER_COLUMN: Final = 1.5  # iterations that a column is wide at least, so that long ones leave no stripes
DOUBLINGS: Final = 2.0  # a heat map goes from a quarter of the median to four times it
NOW_S: Final = 30.0
SLOWEST: Final = 6

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Span:
    """From when to when a chart goes."""

    from_s: float
    until_s: float

    def x(self, time_s: float) -> float | None:
        """Place of a moment; None outside."""
        if not self.from_s <= time_s <= self.until_s or self.until_s <= self.from_s:
            return None
        return round(WIDTH * (time_s - self.from_s) / (self.until_s - self.from_s), 1)


@dataclass(frozen=True, slots=True)
class Series:
    """Sums and counts of a quantity, ranks x bins, oldest bin first, as `Pace` had them."""

    ranks: Sequence[int]
    sums: Array
    counts: Array
    bin_s: float
    until_s: float

    @classmethod
    def of(cls, pace: Pace, quantity: str) -> Series | None:
        """What is known of `quantity`; None if nothing is. The lock of the overview must be held."""
        until_s = pace.until_s
        sums, counts = pace.sums(quantity)
        if until_s is None or not counts.any():
            return None
        ranks = pace.ranks[: len(sums)]
        if ranks != sorted(ranks):
            order = np.argsort(ranks)
            ranks, sums, counts = sorted(ranks), sums[order], counts[order]
        return cls(ranks, sums, counts, pace.bin_s, until_s)

    def wide(self) -> Series:
        """The same in columns that an iteration fits into, from the first known one on."""
        first = int(self.counts.any(axis=0).argmax())
        per = max(1, math.ceil(PER_COLUMN * self.sums.sum() / self.counts.sum() / self.bin_s - 0.5))
        columns = -(-(self.sums.shape[1] - first) // per)
        room = ((0, 0), (max(0, columns * per - self.sums.shape[1]), 0))
        sums, counts = (np.pad(one, room)[:, -columns * per :] for one in (self.sums, self.counts))
        shape = (len(self.ranks), columns, per)
        grouped = (sums.reshape(shape).sum(axis=2), counts.reshape(shape).sum(axis=2))
        return Series(self.ranks, *grouped, bin_s=self.bin_s * per, until_s=self.until_s)

    @property
    def span(self) -> Span:
        """From when to when it goes."""
        return Span(self.until_s - self.sums.shape[1] * self.bin_s, self.until_s)


def iteration_chart(series: Series, healthy_s: float | None, marks: Sequence[tuple[float, str, str]]) -> dict[str, Any]:
    """Iteration time over time: median over ranks.

    Parameters
    ----------
    marks : sequence of (time_s, class, words)
        What happened when.
    """
    series = series.wide()
    values = _median(mean_of(series.sums, series.counts))
    known = values[~np.isnan(values)]
    top = _round_up(1.1 * max(float(np.percentile(known, 99.0)), healthy_s or 0.0, 1e-9))
    span, columns = series.span, len(values)
    y = HEIGHT * (1.0 - np.minimum(values, top) / top)
    x = WIDTH * (np.arange(columns) + 0.5) / columns
    placed = [(span.x(time_s), kind, words, time_s) for time_s, kind, words in marks]
    return {
        "path": line_path(x, y),
        "healthy_y": None if healthy_s is None else round(HEIGHT * (1.0 - healthy_s / top), 2),
        "healthy_s": healthy_s,
        "top_s": top,
        "span": span,
        "marks": [{"x": at, "kind": kind, "words": words, "at_s": time_s} for at, kind, words, time_s in placed if at],
        "newest_s": float(known[-1]),
        "median_s": float(np.median(known)),
        "longest_s": float(known.max()),
        "readout": {
            "from_s": span.from_s,
            "column_s": series.bin_s,
            "healthy_s": healthy_s,
            "values": [None if math.isnan(one) else round(one, 5) for one in values.tolist()],
        },
    }


def heat_map(series: Series) -> dict[str, Any]:
    """Seconds by rank and column of time relative to the median of all ranks in that column, as bytes.

    0 is unknown; 1 to 255 go from a quarter of the median to four times it, 128 is the median. Of two ranks the median
    lies between them, so that neither would stand out: there the faster one is what the other is compared with.
    """
    newest = max(1, math.ceil(NOW_S / series.bin_s))
    slowest = _slowest(series, newest)
    series = series.wide()
    means = mean_of(series.sums, series.counts)
    ratios = means / _usual(means)
    per = -(-len(ratios) // MOST_ROWS)
    room = np.full((-len(ratios) % per, ratios.shape[1]), np.nan)
    rows = np.fmax.reduce(np.concatenate((ratios, room)).reshape(-1, per, ratios.shape[1]), axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        shades = np.clip(np.rint(128.0 + 127.0 / DOUBLINGS * np.log2(rows)), 1.0, 255.0)
    cells = np.where(np.isnan(rows), 0.0, shades).astype(np.uint8)
    labels = [f"{group[0]}" if len(group) == 1 else f"{group[0]}-{group[-1]}" for group in _groups(series.ranks, per)]
    return {
        "ranks": len(series.ranks),
        "per_row": per,
        "first": labels[0],
        "last": labels[-1],
        "span": series.span,
        "slowest": slowest,
        "against": "the faster rank" if len(series.ranks) == 2 else "the median rank",
        "cells": {
            "rows": len(cells),
            "columns": cells.shape[1],
            "labels": labels,
            "against": "the faster rank" if len(series.ranks) == 2 else "the median",
            "from_s": series.span.from_s,
            "column_s": series.bin_s,
            "values": base64.b64encode(cells.tobytes()).decode(),
        },
    }


def _slowest(series: Series, newest: int) -> list[dict[str, Any]]:
    """The ranks that now stand out most, and how they did over all the time that is shown."""
    now = mean_of(series.sums[:, -newest:].sum(axis=1), series.counts[:, -newest:].sum(axis=1))
    whole = mean_of(series.sums.sum(axis=1), series.counts.sum(axis=1))
    usual_now, usual = _usual(now[:, None])[0], _usual(whole[:, None])[0]
    order = np.argsort(-np.where(np.isnan(now), whole / usual - 1e6, now / usual_now), kind="stable")
    return [
        {
            "rank": series.ranks[row],
            "now_s": _known(now[row]),
            "now": _known(now[row] / usual_now),
            "whole_s": _known(whole[row]),
            "whole": _known(whole[row] / usual),
        }
        for row in order[:SLOWEST]
        if not np.isnan(whole[row])
    ]


def votes_chart(verdicts: Sequence[VerdictRecord], span: Span | None) -> dict[str, Any] | None:
    """Scores over time, one strip for each detector that voted; None if none did."""
    if not verdicts:
        return None
    told = [one.time_s for one in verdicts]
    span = span or Span(told[0] - 1.0, max(told[-1], told[0]))
    placed = [(x, one) for one in verdicts if (x := span.x(one.time_s)) is not None]
    spacing_s = float(np.median(np.diff(told))) if len(told) > 1 else 1.0
    columns = int(min(MOST_COLUMNS, max(1.0, (span.until_s - span.from_s) / max(PER_COLUMN * spacing_s, 1e-3))))
    shown = [(min(columns - 1, int(x / WIDTH * columns)), one) for x, one in placed]
    names = sorted({name for _, one in shown for name, vote in one.votes.items() if vote.opinion != "abstain"})
    rows = [_strip(name, shown, columns) for name in names[:MOST_DETECTORS]]
    newest = verdicts[-1]
    return {"span": span, "rows": rows, "silent": _silent(newest, names), "windows": len(shown), "rule": newest.rule}


def _strip(name: str, verdicts: Iterable[tuple[int, VerdictRecord]], columns: int) -> dict[str, Any]:
    bars: dict[int, tuple[float, bool]] = {}
    times = highest = 0.0
    newest, why = None, ""
    for column, verdict in verdicts:
        vote = verdict.votes.get(name)
        if vote is None or vote.opinion == "abstain":
            continue
        anomalous = vote.opinion == "anomalous"
        known = bars.get(column, (0.0, False))
        bars[column] = (max(known[0], vote.score), known[1] or anomalous)
        newest, highest, times = vote, max(highest, vote.score), times + anomalous
        if anomalous:
            why = vote.reason
    return {
        "name": name,
        "provisional": newest is not None and newest.provisional,
        "normal": _bars({at: score for at, (score, bad) in bars.items() if not bad}, columns),
        "anomalous": _bars({at: score for at, (score, bad) in bars.items() if bad}, columns),
        "newest": None if newest is None else newest.score,
        "highest": highest,
        "times": int(times),
        "why": why,
    }


def _bars(bars: dict[int, float], columns: int) -> str:
    """Bars that stand on the ground, neighbours of one height as one."""
    path: list[str] = []
    end, height = -1, -1.0
    for at, score in sorted(bars.items()):
        tall = round(4.0 + 96.0 * score)
        if at == end and tall == height:
            path[-1] = f"H{WIDTH * (at + 1) / columns:.1f}V100Z"
        else:
            path += [f"M{WIDTH * at / columns:.1f} 100V{100 - tall}", f"H{WIDTH * (at + 1) / columns:.1f}V100Z"]
        end, height = at + 1, tall
    return "".join(path)


def _silent(newest: VerdictRecord, heard: Sequence[str]) -> list[tuple[str, str]]:
    """Who did not vote, and why: those of one reason together."""
    by_reason: dict[str, list[str]] = {}
    for name, vote in sorted(newest.votes.items()):
        if name not in heard:
            by_reason.setdefault(vote.reason or "no reason given", []).append(name)
    return [(", ".join(names), reason) for reason, names in by_reason.items()]


def line_path(x: Array, y: Array) -> str:
    """A path with a gap wherever `y` is unknown."""
    path, pen = [], False
    for at, height in zip(x.tolist(), y.tolist(), strict=True):
        if math.isnan(height):
            pen = False
            continue
        path.append(f"{'L' if pen else 'M'}{at:.1f} {height:.2f}")
        if not pen:
            path.append(f"h{0.01}")  # one point alone is seen as a dot
        pen = True
    return "".join(path)


def band_path(x: Array, low: Array, high: Array) -> str:
    """An area between two heights, in pieces where they are unknown.

    Examples
    --------
    >>> band_path(np.array([0.0, 1.0]), np.array([9.0, 8.0]), np.array([2.0, 3.0]))
    'M0.0 2.00L1.0 3.00L1.0 8.00L0.0 9.00Z'
    """
    known = ~(np.isnan(low) | np.isnan(high))
    edges = np.flatnonzero(np.diff(np.concatenate(([False], known, [False])).astype(np.int8)))
    path = []
    for first, end in edges.reshape(-1, 2).tolist():
        top = [f"{at:.1f} {y:.2f}" for at, y in zip(x[first:end], high[first:end], strict=True)]
        bottom = [f"{at:.1f} {y:.2f}" for at, y in zip(x[first:end], low[first:end], strict=True)]
        path.append("M" + "L".join([*top, *reversed(bottom)]) + "Z")
    return "".join(path)


def _median(values: Array) -> Array:
    """Median over ranks by column; NaN where nothing is known."""
    out = np.full(values.shape[1], np.nan)
    unknown = np.isnan(values).sum(axis=0)
    whole, part = unknown == 0, (unknown > 0) & (unknown < len(values))
    if whole.any():
        out[whole] = np.median(values[:, whole], axis=0)
    if part.any():  # many times slower, and rarely much
        out[part] = np.nanmedian(values[:, part], axis=0)
    return out


def _usual(values: Array) -> Array:
    """What each of the ranks is compared with, by column: the median, of two the faster."""
    return np.fmin(values[0], values[1]) if len(values) == 2 else _median(values)


def _round_up(value: float) -> float:
    """The end of a scale that can be read.

    Examples
    --------
    >>> _round_up(2.73), _round_up(0.41)
    (3.0, 0.5)
    """
    size = 10.0 ** math.floor(math.log10(value))
    ends = (1.0, 1.2, 1.6, 2.0, 2.4, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 20.0)
    return next(end * size for end in ends if end * size >= value)


def _groups(ranks: Sequence[int], per: int) -> list[Sequence[int]]:
    return [ranks[place : place + per] for place in range(0, len(ranks), per)]


def _known(value: float) -> float | None:
    return None if math.isnan(value) else float(value)
