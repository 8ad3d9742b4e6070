"""What the exporters of a fleet said in a range of time, as arrays: a row for each device, a column a step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from trainwarden.catalogue import ALIASES, CATALOGUE
from trainwarden.prometheus.exporters import REASONS, Who, factor, is_percent, model_of, who
from trainwarden.prometheus.lanes import Lane
from trainwarden.prometheus.values import possible, states_of, without_blanks

Floats = npt.NDArray[np.float64]
Cells = npt.NDArray[np.float32]
MAX_ROWS: Final = 262_144  # of one family, as in the memory of a live job


@dataclass(frozen=True, slots=True)
class FamilyRange:
    """One family of devices.

    Attributes
    ----------
    per : str
        The catalogue's: ``gpu``, ``nic``, ``host``.
    names : tuple of str, length d
    rows : tuple of Who, length r
    groups : tuple, length r
        Value of the label that parts the fleet into jobs; None where a series has none.
    models : tuple of str, length r
        What the exporter calls the kind of device; empty if it says nothing.
    values : float array [r, d, n]
        Counters as growth per second; NaN = not measured.
    column_s : float array [n]
        When the column's samples were there.
    first_s, last_s : float arrays [r]
        Stamps of a row's first sample of anything, and of the device's last one (under whatever label it is told of).
    every_s : float array [r]
        Time between two samples of a row's series.
    interval_s : float
        The same of most rows.
    """

    per: str
    names: tuple[str, ...]
    rows: tuple[Who, ...]
    groups: tuple[str | None, ...]
    models: tuple[str, ...]
    values: Cells
    column_s: Floats
    first_s: Floats
    last_s: Floats
    every_s: Floats
    interval_s: float

    def of(self, name: str) -> Cells | None:
        """Values of one metric [r, n]."""
        return self.values[:, self.names.index(name)] if name in self.names else None

    def part(self, places: Sequence[int]) -> FamilyRange:
        """The rows at `places` alone."""
        chosen = np.array(places, dtype=np.int64)
        return replace(
            self,
            rows=tuple(self.rows[place] for place in places),
            groups=tuple(self.groups[place] for place in places),
            models=tuple(self.models[place] for place in places),
            values=self.values[chosen], first_s=self.first_s[chosen], last_s=self.last_s[chosen],
            every_s=self.every_s[chosen],
        )  # fmt: skip

    @property
    def measured(self) -> int:
        """How many rows and columns hold anything."""
        return int(np.isfinite(self.values).any(axis=1).sum())


@dataclass(slots=True)
class FamilyGrid:
    """A `FamilyRange` while it is read.

    Parameters
    ----------
    per : str
    start_s, step_s : float
    columns : int
    interval_s : float
    nodes : mapping
        Names of hosts, see `trainwarden.prometheus.exporters.who`.
    by : str, optional
        Label that parts the fleet into jobs.
    """

    per: str
    start_s: float
    step_s: float
    columns: int
    interval_s: float
    nodes: dict[str, str]
    by: str | None = None
    refused: int = 0
    _rows: dict[tuple[Who, str | None], int] = field(default_factory=dict)
    _nodes: list[str] = field(default_factory=list)
    _models: list[str] = field(default_factory=list)
    _first_s: list[float] = field(default_factory=list)
    _last_s: list[float] = field(default_factory=list)
    _every_s: list[float] = field(default_factory=list)
    _cells: dict[str, Cells] = field(default_factory=dict)  # gauges, and growth of counters
    _spans: dict[str, Cells] = field(default_factory=dict)  # the time in which counters grew so much
    _percent: dict[str, set[str]] = field(default_factory=dict)  # nodes whose ratios are percents, by metric

    @property
    def size(self) -> int:
        """Rows so far."""
        return len(self._models)

    def key(self, lane: Lane) -> tuple[Who, str | None] | None:
        """Whose row a series belongs to, and of which job; None if it is about nothing that is watched."""
        one = who(lane.labels, self.per, self.nodes)
        if one is None or self.by is None:
            return one and (one, None)
        return one, lane.labels.get(self.by) or lane.labels.get(f"exported_{self.by}")

    def lay(self, alias: str, lanes: Iterable[Lane]) -> int:
        """Put the samples of one exporter's metric into their cells; how many there were."""
        name = ALIASES[alias]
        counter, scale, samples = CATALOGUE[name].kind == "counter", factor(alias), 0
        for lane in lanes:
            row = self._row(lane)
            if row is None:
                continue
            values = without_blanks(lane.values)
            samples += values.size
            if counter:
                self._grow(name, row, lane, possible(name, values * scale))
                continue
            values = values * scale
            largest = np.nanmax(values, initial=0.0)
            if is_percent(alias, float(largest)):
                self._percent.setdefault(name, set()).add(self._nodes[row])
            elif not alias.endswith("_UTIL_RATIO"):
                values = possible(name, values)
            self._put(name, row, lane, values)
        return samples

    def finished(self) -> FamilyRange:
        """Everything that was laid, gaps of one sample filled."""
        rows = tuple(one for one, _ in self._rows)
        for name, nodes in self._percent.items():
            told = [place for place, one in enumerate(rows[: len(self._cells[name])]) if one.node in nodes]
            self._cells[name][told] *= np.float32(0.01)
        if REASONS in self._cells:
            for name, states in states_of(self._cells[REASONS].astype(np.float64)).items():
                self._cells.setdefault(name, states.astype(np.float32))
        names = tuple(self._cells)
        values = np.full((self.size, len(names), self.columns), np.nan, dtype=np.float32)
        for place, name in enumerate(names):
            part = self._cells.pop(name)[: self.size]
            if name in self._spans:
                with np.errstate(invalid="ignore", divide="ignore"):
                    part = part / self._spans.pop(name)[: self.size]
            else:
                part = possible(name, part.astype(np.float64)).astype(np.float32)
                _hold(part, int(np.ceil(1.5 * self.interval_s / self.step_s)) - 1)
            values[: len(part), place] = part
        return FamilyRange(
            per=self.per, names=names, rows=rows, groups=tuple(group for _, group in self._rows),
            models=tuple(self._models), values=values, interval_s=self.interval_s,
            column_s=np.asarray(self.start_s + self.step_s * np.arange(1, self.columns + 1), dtype=np.float64),
            first_s=np.array(self._first_s), last_s=self._last_of_devices(),
            every_s=np.nan_to_num(self._every_s, posinf=self.interval_s),
        )  # fmt: skip

    def _last_of_devices(self) -> Floats:
        best: dict[Who, float] = {}
        for (one, _), stamp_s in zip(self._rows, self._last_s, strict=True):
            best[one] = max(best.get(one, stamp_s), stamp_s)
        return np.array([best[one] for one, _ in self._rows])

    # -- internals -------------------------------------------------------------------------------------------

    def _row(self, lane: Lane) -> int | None:
        key = self.key(lane)
        inside = lane.times_s[lane.times_s > lane.since_s]
        if key is None or not inside.size:
            return None
        row = self._rows.get(key)
        if row is None:
            if self.size >= MAX_ROWS:
                self.refused += 1
                return None
            row = self._rows[key] = self.size
            self._nodes.append(key[0].node)
            self._models.append("")
            self._first_s.append(np.inf)
            self._last_s.append(-np.inf)
            self._every_s.append(np.inf)
        self._models[row] = self._models[row] or model_of(lane.labels)
        self._first_s[row] = min(self._first_s[row], float(inside[0]))
        self._last_s[row] = max(self._last_s[row], float(inside[-1]))
        if inside.size > 1:
            self._every_s[row] = min(self._every_s[row], float(inside[-1] - inside[0]) / (inside.size - 1))
        return row

    def _array(self, kind: dict[str, Cells], name: str, fill: float) -> Cells:
        array = kind.get(name)
        if array is None or len(array) < self.size:
            wider = np.full((max(self.size, 64, self.size + self.size // 4), self.columns), fill, dtype=np.float32)
            if array is not None:
                wider[: len(array)] = array
            array = kind[name] = wider
        return array

    def _columns(self, times_s: Floats) -> npt.NDArray[np.int64]:
        return np.clip(np.ceil((times_s - self.start_s) / self.step_s).astype(np.int64) - 1, 0, self.columns - 1)

    def _put(self, name: str, row: int, lane: Lane, values: Floats) -> None:
        """The last sample of each column."""
        wanted = (lane.times_s > lane.since_s) & np.isfinite(values)
        self._array(self._cells, name, np.nan)[row, self._columns(lane.times_s[wanted])] = values[wanted]

    def _grow(self, name: str, row: int, lane: Lane, values: Floats) -> None:
        """The growth between samples, in the column of the later one; nothing is known over a reset."""
        known = np.isfinite(values)
        times_s, values = lane.times_s[known], values[known]
        growth, span_s = np.diff(values), np.diff(times_s)
        right = (growth >= 0.0) & (times_s[1:] > lane.since_s)
        columns = self._columns(times_s[1:][right])
        cells, spans = self._array(self._cells, name, np.nan), self._array(self._spans, name, 0.0)
        cells[row, columns] = np.nan_to_num(cells[row, columns])
        np.add.at(cells[row], columns, growth[right].astype(np.float32))
        np.add.at(spans[row], columns, span_s[right].astype(np.float32))


def _hold(cells: Cells, columns: int) -> None:
    """Fill what is missing behind a known cell [r, n], so many columns far."""
    for _ in range(columns):
        gap = np.isnan(cells[:, 1:]) & np.isfinite(cells[:, :-1])
        np.copyto(cells[:, 1:], cells[:, :-1].copy(), where=gap)
