"""Format: series as services of metrics answer them in JSON: a name, labels, and times with values of each."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import numpy as np
import pandas as pd

from trainwarden.errors import DataError
from trainwarden.formats import names
from trainwarden.formats.exporters.cloud_health import CloudSeries, cloud_verdicts, found_with, is_of_cloud, owner_in
from trainwarden.formats.exporters.sample_lines import tag_labels
from trainwarden.formats.interpret import interpreted, tags_of
from trainwarden.formats.protocol import NEVER, SURE, Found
from trainwarden.formats.series import labelled, series_of
from trainwarden.formats.source import Source
from trainwarden.formats.stamps import Times
from trainwarden.formats.table import Table, in_unit
from trainwarden.formats.trackers.records import answers_of

# Keys that only this service's answer has, all of them near its start.
_MARKS: Final = (
    ('"pointlist"', '"scope"'), ('"frames"', '"schema"', '"fields"'), ('"target"', '"datapoints"'),
    ('"timeseries"', '"timeStamp"'), ('"resourceMetrics"',), ('"points"', '"interval"', '"endTime"'),
)  # fmt: skip
_SCALARS: Final = re.compile(
    r'\s{0,8}\{\s{0,8}"[^"]{1,200}"\s{0,4}:\s{0,4}\{\s{0,8}"[^"]{1,200}"\s{0,4}:\s{0,4}\{[^\[\]]{0,400}"[xy]"\s{0,4}:\s{0,4}\['
)
_RESOURCES: Final = (
    "vm",
    "instance_name",
    "instance_id",
    "host",
    "filesystem_name",
    "FileSystemId",
    "VolumeId",
    "InstanceId",
)
_MACHINE: Final = re.compile(r"/virtualMachines/([^/]{1,80})/", re.IGNORECASE)
_MEANS: Final = ("average", "avg", "maximum", "total", "minimum", "count")  # Azure's, the first that is there


MAX_CELLS: Final = 10_000_000


class _Series(NamedTuple):
    name: str
    tags: Mapping[str, str]
    times: Sequence[Any]
    values: Sequence[Any]


class ServiceJson:
    """Answers of Datadog, Grafana, Graphite, Azure Monitor, Cloud Monitoring and OTLP; ClearML's scalars."""

    name = "service json"

    def sniff(self, name: str, head: str) -> float:
        """By the keys of each."""
        del name
        start = head[:20_000]
        if start.lstrip()[:1] not in ("{", "["):
            return NEVER
        marked = any(all(mark in start for mark in marks) for marks in _MARKS)
        return SURE if marked or _SCALARS.match(start) else NEVER

    def read(self, source: Source, columns: Mapping[str, str]) -> Found:
        """See `trainwarden.formats.protocol.Format`."""
        if _SCALARS.match(source.head):
            return _scalars(source, columns)
        rows: list[tuple[float, str | None, str | None, str, float]] = []
        unknown: set[str] = set()
        of_cloud: list[CloudSeries] = []
        for series in _series(source):
            if is_of_cloud(series.name):
                owner = next((series.tags[key] for key in _RESOURCES if series.tags.get(key)), "")
                of_cloud.append(CloudSeries(series.name, owner or owner_in(source.name), series.times, series.values))
                continue
            told = _told(series)
            if told is None:
                unknown.add(series.name)
                continue
            heading, node, device = told
            values = np.array([np.nan if one is None else _number(one) for one in series.values], np.float64)
            values = in_unit(values, "", heading)
            times_s = Times(list(series.times)).values_s
            rows += [(time_s, node, device, heading.name, value)
                     for time_s, value in zip(times_s.tolist(), values.tolist(), strict=False)]  # fmt: skip
        return found_with(source, list(cloud_verdicts(of_cloud)), rows, unknown)


def _told(series: _Series) -> tuple[names.Heading, str | None, str | None] | None:
    """Metric, node and device of a series, by its labels or by its name alone."""
    by_name = series_of(series.name)
    heading = by_name.metric
    if heading is None:
        return None
    labels = {str(key).lower(): str(value) for key, value in series.tags.items()}
    told = labelled(heading, {**labels, **{key: one for key, one in tag_labels(labels).items() if one}})
    return heading, told.node or by_name.node, told.device or by_name.device


def _number(value: Any) -> float:
    try:
        return float(value)
    except (OverflowError, TypeError, ValueError):
        return float("nan")


def _series(source: Source) -> Iterator[_Series]:
    for whole in answers_of(source):
        for one in whole if isinstance(whole, list) else [whole]:
            if not isinstance(one, dict):
                continue
            with _of_its_form(source.name):
                for read in (_datadog, _frames, _graphite, _azure, _google, _otlp):
                    yield from read(one)


@contextmanager
def _of_its_form(name: str) -> Iterator[None]:
    try:
        yield
    except (AttributeError, IndexError, KeyError, StopIteration, TypeError, ValueError) as error:
        what = f"{type(error).__name__}: {str(error)[:120]}"
        raise DataError(f"{name} has not the form of its service ({what})") from error


def _datadog(one: dict[str, Any]) -> Iterator[_Series]:
    for series in one.get("series") or []:
        if "pointlist" in series:
            tags = tags_of(series.get("tag_set") or str(series.get("scope", "")).split(","))
            points = series["pointlist"]
            yield _Series(
                series.get("metric", ""), tags, [point[0] for point in points], [point[1] for point in points]
            )


def _frames(one: dict[str, Any]) -> Iterator[_Series]:
    """Grafana's data frames: columns of values, with labels."""
    results = one.get("results")
    answers = list(results.values()) if isinstance(results, dict) else [one]
    for frame in (frame for answer in answers for frame in answer.get("frames") or []):
        fields, values = frame["schema"]["fields"], frame["data"]["values"]
        place = next((place for place, field in enumerate(fields) if field.get("type") == "time"), None)
        if place is None or len(values) != len(fields):
            continue
        for number, field in enumerate(fields):
            if number != place and field.get("type", "number") == "number":
                labels = field.get("labels") or {}
                name = labels.get("__name__") or field.get("name", "")
                named = name if name.lower() != "value" else frame["schema"].get("name") or name
                yield _Series(named, labels, values[place], values[number])


def _graphite(one: dict[str, Any]) -> Iterator[_Series]:
    if "datapoints" in one:
        points = [point for point in one["datapoints"] if point[0] is not None]
        yield _Series(str(one.get("target", "")), one.get("tags") or {}, [point[1] for point in points],
                      [point[0] for point in points])  # fmt: skip


def _azure(one: dict[str, Any]) -> Iterator[_Series]:
    for metric in one.get("value") or []:
        for series in metric.get("timeseries") or []:
            tags = {word["name"]["value"]: word["value"] for word in series.get("metadatavalues") or []}
            if (machine := _MACHINE.search(str(metric.get("id", "")))) is not None:
                tags = {"vm": machine[1], **tags}
            points = [(point["timeStamp"], next((point[key] for key in _MEANS if point.get(key) is not None), None))
                      for point in series.get("data") or []]  # fmt: skip
            yield _Series(metric["name"]["value"], tags, [point[0] for point in points], [point[1] for point in points])


def _google(one: dict[str, Any]) -> Iterator[_Series]:
    for series in one.get("timeSeries") or ([one] if "points" in one and "metric" in one else []):
        tags = {**series.get("resource", {}).get("labels", {}), **series["metric"].get("labels", {})}
        points = series.get("points") or []
        values = [next(iter(point["value"].values()), None) for point in points]
        yield _Series(series["metric"]["type"], tags, [point["interval"]["endTime"] for point in points], values)


def _otlp(one: dict[str, Any]) -> Iterator[_Series]:
    """OpenTelemetry's protocol as its file exporter writes it."""
    for resource in one.get("resourceMetrics") or []:
        own = _attributes(resource.get("resource") or {})
        for metric in (metric for scope in resource.get("scopeMetrics") or [] for metric in scope.get("metrics") or []):
            for point in (metric.get("gauge") or metric.get("sum") or {}).get("dataPoints") or []:
                value = point.get("asDouble", point.get("asInt"))
                yield _Series(metric["name"], {**own, **_attributes(point)}, [point["timeUnixNano"]], [value])


def _attributes(of: Mapping[str, Any]) -> dict[str, str]:
    return {one["key"]: str(next(iter(one["value"].values()), "")) for one in of.get("attributes") or []}


def _scalars(source: Source, columns: Mapping[str, str]) -> Found:
    """ClearML's scalars: titles of series of x and y, where x counts iterations."""
    wide: dict[str, pd.Series[float]] = {}
    steps: set[float] = set()
    with _of_its_form(source.name):
        for title, name, series in ((title, name, series) for whole in answers_of(source)
                                    for title, all_of in whole.items() for name, series in all_of.items()):  # fmt: skip
            values = pd.Series([_number(one) for one in series["y"]], [_number(one) for one in series["x"]])
            word = title if name.lower() in ("train", "series", title) else f"{title}/{name}"
            wide.setdefault(word, values[~values.index.duplicated(keep="last")])
            steps.update(values.index)
            if len(steps) * len(wide) > MAX_CELLS:
                raise DataError(f"{source.name} holds more than {MAX_CELLS:,} steps of series: leave series out")
    frame = pd.DataFrame(wide).rename_axis("step").reset_index()
    lost = {word for word, values in wide.items() if values.isna().any()}
    cells = frame.astype(object)
    for word in lost:  # a loss that is no number is written so
        cells[word] = ["NaN" if np.isnan(value) else value for value in frame[word]]
    return interpreted(Table(source.name, cells, columns, range(1, len(frame) + 1)))
