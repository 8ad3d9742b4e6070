"""An incident in numbers: small charts of the suspect's metrics beside its peers', the job's loss and throughput."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from trainwarden.catalogue import lookup
from trainwarden.dashboards.page.charts import HEIGHT, WIDTH, Array, Series, Span, band_path, line_path
from trainwarden.dashboards.page.lines import ReadLogs
from trainwarden.detectors.logs.loss_lines import printed
from trainwarden.protocols import Message
from trainwarden.records import IncidentRecord, LogRecord, MetricsRecord, Suspect

RANGES_S: Final = (300.0, 900.0, 3_600.0)  # before the onset, of which a person can choose
AFTER_S: Final = 120.0  # of the end of the incident
MOST_RECORDS: Final = 40_000
MOST_POINTS: Final = 1_000_000  # of all metrics together: 16 MB
MOST_BLAMED: Final = 6
AS_LIKELY: Final = 0.8  # of the first suspect's score, from which on another is drawn with it
COLUMNS: Final = 120
BAND: Final = (10.0, 90.0)  # percentiles of the peers
PER_COLUMN: Final = 1.5  # samples that a column is wide at least
LOSS: Final = "loss"
# What a person looks at first, whatever was blamed; of each line the first that was measured.
USUAL: Final = (
    ("gpu_sm_clock_hertz",), ("gpu_temperature_celsius",), ("gpu_power_watts",),
    ("rank_cpu_ratio", "host_cpu_utilization_ratio"), ("rank_run_queue_wait_ratio", "host_cpu_pressure_seconds"),
    ("gpu_memory_used_bytes", "rank_anonymous_memory_bytes"), ("host_memory_available_bytes",),
    ("nic_rdma_transmit_bytes", "gpu_nvlink_transmit_bytes_per_second", "nic_transmit_bytes"),
)  # fmt: skip
_UNITS: Final = {
    "hertz": "Hz", "bytes": "B", "bytes_per_second": "B/s", "watts": "W", "celsius": "\u00b0C", "seconds": "s",
    "joules": "J",
}  # fmt: skip
_SIZES: Final = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))

Bools = npt.NDArray[np.bool_]
Entity = tuple[str, str, int | None]
"""Node, device and rank that values are of."""


@dataclass(slots=True)
class Points:
    """Samples of one quantity by whose they are."""

    times_s: dict[Entity, list[float]] = field(default_factory=dict)
    values: dict[Entity, list[float]] = field(default_factory=dict)

    def add(self, whose: Entity, time_s: float, value: float) -> None:
        """One more sample."""
        self.times_s.setdefault(whose, []).append(time_s)
        self.values.setdefault(whose, []).append(value)


def wanted_span(incident: IncidentRecord, before_s: float, now_s: float) -> Span:
    """From when to when an incident is drawn."""
    onset_s = incident.opened_at_s if incident.onset_s is None else incident.onset_s
    ended_s = incident.closed_at_s if incident.closed_at_s is not None else now_s
    until_s = min(max(ended_s, incident.opened_at_s) + AFTER_S, max(now_s, incident.opened_at_s))
    return Span(onset_s - before_s, min(until_s, onset_s + max(RANGES_S)))


def panels(
    incident: IncidentRecord, span: Span, read: ReadLogs, read_logs: ReadLogs, pace: Series | None
) -> dict[str, Any]:
    """What the template of an incident's numbers is given.

    Parameters
    ----------
    read, read_logs : callable
        Messages of metrics and of logs from a moment on.
    pace : Series or None
        Durations of the job's iterations.

    Raises
    ------
    BusUnavailable
        If the bus is away.
    """
    names = [*incident.metrics[:MOST_BLAMED], *(name for line in USUAL for name in line)]
    found, cut = _samples(incident.job, set(names), span, read(span.from_s))
    chosen = list(dict.fromkeys(name for name in incident.metrics[:MOST_BLAMED] if name in found))
    chosen += [name for line in USUAL if (name := next((one for one in line if one in found), "")) not in {"", *chosen}]
    drawn = [one for name in chosen if (one := _panel(name, found[name], incident, span)) is not None]
    return {
        "job": [
            one for one in (_loss(incident, span, read_logs), _throughput(pace, incident, span)) if one is not None
        ],
        "panels": drawn,
        "suspect": _named(_likely(incident.suspects)),
        "span": span,
        "cut": cut,
    }


def _samples(job: str, names: set[str], span: Span, messages: Iterable[Message]) -> tuple[dict[str, Points], bool]:
    """Samples of `names` by metric, and whether there were more than are read."""
    found: dict[str, Points] = {}
    points = 0
    for number, message in enumerate(messages):
        if number >= MOST_RECORDS or points >= MOST_POINTS:
            return found, True
        record = message.record
        if not isinstance(record, MetricsRecord) or record.job != job or not _within(span, record.time_s):
            continue
        for name, values in zip(record.names, record.values, strict=False):
            if name not in names:
                continue
            of = found.setdefault(name, Points())
            for place, value in enumerate(values[: len(record.devices)]):
                if value is not None:
                    rank = record.ranks[place] if place < len(record.ranks) else None
                    of.add((record.node, record.devices[place], rank), record.time_s, value)
                    points += 1
    return found, False


def _within(span: Span, time_s: float) -> bool:
    return span.from_s <= time_s <= span.until_s


def _panel(name: str, points: Points, incident: IncidentRecord, span: Span) -> dict[str, Any] | None:
    """One metric: the suspect's line over the band of its peers."""
    metric = lookup(name)
    unit, per = (metric.unit, metric.per) if metric is not None else ("", "gpu")
    if metric is not None and metric.kind == "counter":
        points, unit = _rates(points), f"{unit}_per_second" if unit == "bytes" else f"{unit}/s"
    entities = [whose for whose, values in points.values.items() if values]
    if not entities:
        return None
    rows = _binned(points, entities, span)
    suspects = _likely(incident.suspects)
    mine = np.array([_is_suspect(whose, per, suspects) for whose in entities])
    own = _quiet(np.nanmedian, rows[mine]) if mine.any() else None
    others = rows[~mine] if not mine.all() else None
    title = (name, metric.meaning if metric is not None else "")
    return _drawn(title, unit, own, others, incident=incident, span=span)


def _drawn(
    title: tuple[str, str], unit: str, own: Array | None, others: Array | None, *, incident: IncidentRecord, span: Span
) -> dict[str, Any] | None:
    name, meaning = title
    middle = None if others is None else _quiet(np.nanmedian, others)
    edges = [] if others is None else [_quiet(np.nanpercentile, others, q) for q in BAND]
    known = np.concatenate([one[~np.isnan(one)] for one in (own, middle, *edges) if one is not None])
    if not known.size:
        return None
    low, high = _scale(float(known.min()), float(known.max()))
    columns = len(own if own is not None else middle if middle is not None else ())
    x = WIDTH * (np.arange(columns) + 0.5) / columns

    def y(values: Array) -> Array:
        return HEIGHT * (1.0 - (values - low) / (high - low))

    during = _during(incident, span, columns)
    return {
        "name": name, "blamed": name in incident.metrics, "meaning": meaning,
        "low": said(low, unit), "high": said(high, unit),
        "own": None if own is None else line_path(x, y(own)),
        "peers": None if middle is None else line_path(x, y(middle)),
        "band": None if not edges or others is None or len(others) < 2 else band_path(x, y(edges[0]), y(edges[1])),
        "mark": _mark(incident, span), "numbers": _numbers(own, middle, during, unit),
    }  # fmt: skip


def _numbers(own: Array | None, peers: Array | None, during: Bools, unit: str) -> list[tuple[str, str, str]]:
    """Who, its median before the incident, and during it."""
    shown = []
    for who, values in (("suspect", own), ("peers", peers)):
        if values is not None:
            before, since = (said(_median(values[part]), unit) for part in (~during, during))
            shown.append((who, before, since))
    return shown


def _during(incident: IncidentRecord, span: Span, columns: int) -> Bools:
    middles = span.from_s + (span.until_s - span.from_s) * (np.arange(columns) + 0.5) / columns
    return np.asarray((middles >= _onset_s(incident)) & (middles <= (incident.closed_at_s or math.inf)))


def _mark(incident: IncidentRecord, span: Span) -> dict[str, float]:
    """Where the incident lies in a chart."""
    from_x = span.x(max(span.from_s, _onset_s(incident))) or 0.0
    until_x = span.x(min(span.until_s, incident.closed_at_s or span.until_s))
    return {"x": from_x, "width": max(2.0, (WIDTH if until_x is None else until_x) - from_x)}


def _loss(incident: IncidentRecord, span: Span, read_logs: ReadLogs) -> dict[str, Any] | None:
    """The loss that the job has printed; None if it has printed none."""
    points = Points()
    for number, message in enumerate(read_logs(span.from_s)):
        record = message.record
        if number >= MOST_RECORDS:
            break
        if not isinstance(record, LogRecord) or record.job != incident.job:
            continue
        for at_s, line in zip(record.times_s, record.lines, strict=False):
            losses = [value for what, value in printed(line) if what == LOSS and math.isfinite(value)]
            if losses and _within(span, at_s):
                points.add(("", LOSS, None), at_s, losses[0])
    if not points.values:
        return None
    rows = _binned(points, list(points.values), span)
    return _drawn((LOSS, "The loss, as the job prints it."), "", rows[0], None, incident=incident, span=span)


def _throughput(pace: Series | None, incident: IncidentRecord, span: Span) -> dict[str, Any] | None:
    """Steps a second of the median rank; None where no step of that time is remembered."""
    if pace is None:
        return None
    with np.errstate(divide="ignore", invalid="ignore"):
        rates = _quiet(np.nanmedian, pace.counts / np.where(pace.counts > 0, pace.sums, np.nan))
    ends = pace.span.from_s + pace.bin_s * (np.arange(len(rates)) + 0.5)
    points = Points()
    for at_s, rate in zip(ends.tolist(), rates.tolist(), strict=True):
        if not math.isnan(rate) and _within(span, at_s):
            points.add(("", "", None), at_s, rate)
    if not points.values:
        return None
    rows = _binned(points, list(points.values), span)
    return _drawn(("throughput", "Steps a second."), "/s", rows[0], None, incident=incident, span=span)


def _rates(points: Points) -> Points:
    """Growth per second of counters; one that has begun anew is unknown there."""
    out = Points()
    for whose, values in points.values.items():
        times = points.times_s[whose]
        for at in range(1, len(values)):
            elapsed_s, grown = times[at] - times[at - 1], values[at] - values[at - 1]
            if elapsed_s > 0.0 and grown >= 0.0:
                out.add(whose, times[at], grown / elapsed_s)
    return out


def _binned(points: Points, entities: Sequence[Entity], span: Span) -> Array:
    """Means by entity and column of time, in columns that a sample or more falls into."""
    spacing_s = _median(np.concatenate([np.diff(np.sort(points.times_s[one])) for one in entities] or [np.zeros(0)]))
    lasts_s = span.until_s - span.from_s
    fit = COLUMNS if math.isnan(spacing_s) or spacing_s <= 0.0 else int(lasts_s / (PER_COLUMN * spacing_s))
    columns = max(2, min(COLUMNS, fit))
    out = np.full((len(entities), columns), np.nan)
    for row, whose in enumerate(entities):
        times = np.asarray(points.times_s[whose])
        at = np.clip(((times - span.from_s) / lasts_s * columns).astype(int), 0, columns - 1)
        counts = np.bincount(at, minlength=columns)
        sums = np.bincount(at, weights=points.values[whose], minlength=columns)
        out[row, counts > 0] = sums[counts > 0] / counts[counts > 0]
    return out


def _is_suspect(whose: Entity, per: str, suspects: Sequence[Suspect]) -> bool:
    """Whether values of what is one `per` of a node are a suspect's: its rank's, its device's, or its node's."""
    node, device, rank = whose
    for one in suspects:
        if per in ("gpu", "rank") and None not in (one.rank, rank):
            is_it = rank == one.rank
        elif per in ("gpu", "nic") and one.device is not None:
            is_it = device == one.device and one.node in (None, node)
        else:
            is_it = node == one.node and not (per in ("gpu", "rank") and one.rank is not None)
        if is_it:
            return True
    return False


def _likely(suspects: Sequence[Suspect]) -> list[Suspect]:
    """The first suspect, and those that are about as likely, as the ends of a link are."""
    return [one for one in suspects if one.score >= AS_LIKELY * suspects[0].score]


def _named(suspects: Sequence[Suspect]) -> str | None:
    for one in suspects[:1]:
        whose = f"rank {one.rank}" if one.rank is not None else one.device or one.node
        return whose if len(suspects) == 1 else f"{whose} and other suspects"
    return None


def _onset_s(incident: IncidentRecord) -> float:
    return incident.opened_at_s if incident.onset_s is None else incident.onset_s


def _scale(low: float, high: float) -> tuple[float, float]:
    """Ends of an axis: from zero unless all lies far above it."""
    if 0.0 <= low < 0.6 * high:
        low = 0.0
    room = 0.08 * (high - low) or 0.1 * abs(high) or 1.0
    return (low if low == 0.0 else low - room), high + room


def said(value: float, unit: str) -> str:
    """A value with its unit, three digits of it.

    Examples
    --------
    >>> said(1.41e9, "hertz"), said(0.5, "ratio"), said(8.0 * 2**30, "bytes"), said(float("nan"), "watts")
    ('1.41 GHz', '50 %', '8.59 GB', '–')
    """
    if math.isnan(value):
        return "\u2013"
    if unit == "ratio":
        return f"{value * 100.0:.3g} %"
    size, prefix = next(((size, name) for size, name in _SIZES if abs(value) >= size), (1.0, ""))
    shown = _UNITS.get(unit, "" if unit in ("count", "state", "version") else unit)
    return f"{value / size:.3g} {prefix}{shown}".strip()


def _median(values: Array) -> float:
    known = values[~np.isnan(values)]
    return float(np.median(known)) if known.size else math.nan


def _quiet(of: Any, rows: Array, *more: Any) -> Array:
    """`of` by column; unknown where nothing is known."""
    out = np.full(rows.shape[1], np.nan)
    some = ~np.isnan(rows).all(axis=0)
    if some.any():
        out[some] = of(rows[:, some], *more, axis=0)
    return out
