"""Format: what dcgm-exporter, node_exporter and other exporters answer, one scrape or many in a file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import numpy as np
import pandas as pd

from trainwarden.errors import DataError
from trainwarden.formats import names
from trainwarden.formats.building import metric_table
from trainwarden.formats.host.mounts import with_shares
from trainwarden.formats.protocol import NEVER, SURE, Found
from trainwarden.formats.series import Series, labelled, labels_of
from trainwarden.formats.source import Source
from trainwarden.formats.stamps import time_s_of
from trainwarden.recorded.rows import epoch_factor

EVERY_S: Final = 15.0  # between scrapes that carry no time: Prometheus' usual interval
MAX_SAMPLES: Final = 50_000_000
_SAMPLE: Final = re.compile(
    r"([A-Za-z_:][A-Za-z0-9_:]{0,200})"
    r'(?:\{((?:[^"{}]{0,200}"(?:[^"\\]|\\.){0,1000}"){0,80}[^"{}]{0,20})\})?'
    r"\s{1,4}([-+]?[0-9.eE+-]{1,40}|[-+]?Inf|NaN)"
    r"(?:\s{1,4}([-+]?[0-9.]{1,24}))?(?: # \{.{0,400}\} [^\n]{1,80})?\s{0,4}$"
)
_HELP: Final = re.compile(r"(?m)^# (?:HELP|TYPE) [A-Za-z_:][A-Za-z0-9_:]* ")
_COMMENT: Final = re.compile(
    r"(?i)[#=\->\s]{0,12}(?:scraped?|time|timestamp|date|at)?[ :=]{0,4}([0-9a-z :./,+-]{8,40}?)[ =#-]{0,12}$"
)
_IN_NAME: Final = re.compile(r"(?<![0-9])(1[0-9]{9}(?:[0-9]{3})?)(?![0-9])|([0-9]{8})[T_-]?([0-9]{6})")


_FULLEST: Final = ("host_filesystem_used_ratio", "host_filesystem_inodes_used_ratio")


class _Sample(NamedTuple):
    scrape: int
    time_s: float | None
    name: str
    labels: str
    value: float


class Exposition:
    """Prometheus' text format and OpenMetrics."""

    name = "exporter text"

    def sniff(self, name: str, head: str) -> float:
        """By ``# HELP`` and ``# TYPE``, or samples of names that exporters have."""
        del name
        # Comments are left out first: node_exporter begins with more than 60 of them where its samples have been cut.
        lines = [line for line in head.split("\n") if line.strip() and not line.startswith("#")][:60]
        fit = sum(_SAMPLE.match(line) is not None for line in lines[:-1] or lines)
        if _HELP.search(head) and fit:
            return SURE
        return SURE if lines and fit >= 0.8 * len(lines) and ("DCGM_" in head or "node_" in head) else NEVER

    def read(self, source: Source, columns: Mapping[str, str]) -> Found:
        """See `trainwarden.formats.protocol.Format`."""
        del columns
        text = source.text()
        samples = list(_samples(text, source.name))
        found = Found(rows=len(samples))
        times, note = _times(samples, source)
        if note:
            found.notes.append(note)
        frame = _frame(samples, times)
        if frame is None:
            unknown = sorted({one.name for one in samples})
            raise DataError(
                f"{source.name}: none of its {len(unknown)} metrics is one of ours ({', '.join(unknown[:5])}; "
                f"the nearest of ours: {', '.join(names.nearest(unknown)) or 'none'})"
            )
        if (table := metric_table(frame)) is not None:
            found.metrics.append(table)
        return found


def _samples(text: str, name: str) -> Iterator[_Sample]:
    """Samples with the scrape that they are of: a series that comes again begins the next one."""
    scrape, count = 0, 0
    seen: set[tuple[str, str]] = set()
    said_s: float | None = None
    for line in text.split("\n"):
        match = _SAMPLE.match(line)
        if match is None:
            if line.strip() and not _HELP.match(line) and (stamp := _COMMENT.match(line)) is not None:
                time_s = time_s_of(stamp[1].strip())
                said_s = time_s if np.isfinite(time_s) and time_s > 1e8 else said_s
            continue
        key = (match[1], match[2] or "")
        if key in seen and not match[4]:
            scrape, seen = scrape + 1, set()
        seen.add(key)
        own_s = float(match[4]) if match[4] else said_s
        if match[4] and own_s is not None:
            own_s *= epoch_factor(np.array([own_s]))[0]
        count += 1
        if count > MAX_SAMPLES:
            raise DataError(f"{name} holds more than {MAX_SAMPLES:,} samples")
        yield _Sample(scrape, own_s, *key, float(match[3]))


def _times(samples: list[_Sample], source: Source) -> tuple[list[float], str]:
    """The time of each sample, and what was assumed."""
    if all(one.time_s is not None for one in samples):
        return [float(one.time_s or 0.0) for one in samples], ""
    start_s, note = named_s(source.path.name), ""
    if start_s is None:
        start_s, note = source.path.stat().st_mtime, "no time written: that of the file's last change"
    scrapes = max((one.scrape for one in samples), default=0)
    if scrapes:
        start_s, note = start_s - scrapes * EVERY_S, f"no times: {scrapes + 1} scrapes taken for {EVERY_S:.0f} s apart"
    return [start_s + one.scrape * EVERY_S if one.time_s is None else one.time_s for one in samples], note


def named_s(name: str) -> float | None:
    """A time in a file's name.

    Examples
    --------
    >>> named_s("dcgm_1790000000.prom"), named_s("scrape-20260921T145320.txt"), named_s("gpu.prom")
    (1790000000.0, 1790002400.0, None)
    """
    match = _IN_NAME.search(name)
    if match is None:
        return None
    if match[1]:
        value = float(match[1])
        return value * epoch_factor(np.array([value]))[0]
    clock = match[3]
    time_s = time_s_of(f"{match[2]} {clock[:2]}:{clock[2:4]}:{clock[4:]}")
    return time_s if np.isfinite(time_s) else None


def _frame(samples: list[_Sample], times: list[float]) -> pd.DataFrame | None:
    told: dict[tuple[str, str], Series | None] = {}
    indices, own = _indices(samples), _own_node(samples)
    rows = []
    blocks: dict[tuple[float, str | None, str | None, str], float] = {}
    for one, time_s in zip(samples, times, strict=True):
        key = (one.name, one.labels)
        if key not in told:
            heading = names.metric_of(one.name) or names.block_of(one.name)
            told[key] = None if heading is None else labelled(heading, _with_index(labels_of(one.labels), indices))
        series = told[key]
        if series is None or series.metric is None:
            continue
        whose = (time_s, series.node or own, series.device, series.metric.name)
        if names.block_of(one.name) is not None:
            blocks[whose] = blocks.get(whose, 0.0) + one.value
        else:
            rows.append((*whose, one.value * series.metric.factor))
    return long_frame([*((*whose, value) for whose, value in blocks.items()), *rows])


def _indices(samples: list[_Sample]) -> dict[str, str]:
    """The index of each GPU by its UUID, as a series ``..._info`` has both (nvidia_gpu_exporter)."""
    infos = [labels_of(labels) for labels in {one.labels for one in samples if one.name.endswith("_info")}]
    return {labels["uuid"]: labels["index"] for labels in infos if "uuid" in labels and "index" in labels}


def _own_node(samples: list[_Sample]) -> str | None:
    """The host that node_exporter is on, which its other series do not name; None where it names several."""
    infos = [labels_of(labels) for labels in {one.labels for one in samples if one.name == "node_uname_info"}]
    names_of = {labels.get("nodename", "") for labels in infos if "instance" not in labels}
    return next(iter(names_of)) or None if len(names_of) == 1 else None


def _with_index(labels: dict[str, str], indices: Mapping[str, str]) -> dict[str, str]:
    index = indices.get(labels.get("uuid", ""))
    return labels if index is None or "gpu" in labels else {**labels, "gpu": index}


def long_frame(rows: list[tuple[float, str | None, str | None, str, float]]) -> pd.DataFrame | None:
    """Rows of time, node, device, metric and value as one column for each metric."""
    if not rows:
        return None
    long = pd.DataFrame(rows, columns=["time_s", "node", "device", "metric", "value"])
    long = long.fillna({"node": "", "device": ""})
    of_many = long["metric"].isin(_FULLEST)  # of several file systems of a host the fullest one counts
    if of_many.any():
        long = pd.concat([long[~of_many], long[of_many].sort_values("value", kind="stable", na_position="first")])
    wide = long.pivot_table(index=["time_s", "node", "device"], columns="metric", values="value", aggfunc="last")
    return with_shares(wide.reset_index().rename_axis(columns=None))


def found_of(
    source: Source, rows: list[tuple[float, str | None, str | None, str, float]], unknown: set[str], remedy: str = ""
) -> Found:
    """What rows of series hold, with the series that are of no metric of ours.

    Raises
    ------
    DataError
        If there is no row; with `remedy`.
    """
    left_out = ", ".join(sorted(unknown)[:5])
    frame = long_frame(rows)
    if frame is None:
        raise DataError(f"{source.name}: no series is of a metric of ours ({left_out or 'there is none'}){remedy}")
    found = Found(rows=len(rows))
    if (table := metric_table(frame)) is not None:
        found.metrics.append(table)
    if unknown:
        found.notes.append(f"metrics that are not ours left out: {left_out}")
    return found
