"""Format: samples as databases of metrics export them: promtool, VictoriaMetrics, InfluxDB, CloudWatch."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from trainwarden.errors import DataError
from trainwarden.formats import names
from trainwarden.formats.exporters.cloud_health import CloudSeries, cloud_verdicts, found_with, is_of_cloud, owner_in
from trainwarden.formats.exporters.step_samples import StepSample, is_of_steps, with_steps
from trainwarden.formats.host.mounts import is_sealed
from trainwarden.formats.protocol import NEVER, SURE, Found
from trainwarden.formats.series import labelled, labels_of
from trainwarden.formats.source import Source
from trainwarden.formats.stamps import time_s_of
from trainwarden.formats.verdicts import Verdict

_NUMBER: Final = r"[-+]?[0-9.]{1,40}(?:[eE][-+]?[0-9]{1,4})?|NaN|[-+]?Inf"
_DUMP: Final = re.compile(rf'(\{{__name__="[^\n]{{1,4000}}\}}) ({_NUMBER}) ([0-9]{{13}})$')
# measurement,tag=value field=1i,other=2 nanoseconds; a blank or comma within a name is escaped.
_INFLUX: Final = re.compile(
    r"([A-Za-z_][A-Za-z0-9_.-]{0,100})((?:,[A-Za-z0-9_.-]{1,80}=(?:\\.|[^,\\ ]){1,200}){0,40}) "
    r"([A-Za-z0-9_.-]{1,80}=[^\n]{1,4000}) ([0-9]{10,19})$"
)
_FIELD: Final = re.compile(r"([A-Za-z0-9_.-]{1,80})=([-+0-9.eE]{1,40})i?(?=,|$)")
_TAG: Final = re.compile(r",([A-Za-z0-9_.-]{1,80})=((?:\\.|[^,\\ ]){1,200})")
# promtool query: a series and its samples, each on a line of its own or behind the series.
_QUERIED: Final = re.compile(r"([A-Za-z_:][A-Za-z0-9_:]{0,200}\{[^\n]{0,4000}\}) =>(?: ([^\n]{1,80}))?$")
_POINT: Final = re.compile(rf"({_NUMBER}) @\[([0-9.]{{1,24}})\]$")
_HOSTS: Final = ("host", "hostname", "host.name", "node", "instance", "instance_id", "instanceid", "vm", "host_name",
                 "k8s.node.name", "kube_node")  # fmt: skip
_GPUS: Final = ("index", "gpu", "gpu_index", "gpu_number", "gpu_id", "gpu.index", "hw.id", "deviceid", "device_id",
                "gpu_device", "device")  # fmt: skip


# telegraf's inputs about the host itself (plugins/inputs/cpu, disk, mem, swap): a field means nothing without its own.
_HOST_INPUTS: Final = ("cpu", "disk", "mem", "swap")
_ALL_CORES: Final = "cpu-total"
_STATISTICS: Final = ("Average", "Maximum", "Minimum", "Sum")  # of CloudWatch, the first that was asked for


class _Sample(NamedTuple):
    time_s: float
    name: str
    labels: Mapping[str, str]
    value: float
    measured: bool = False  # by a program that sends each value once, where a scrape reads the last one again


class _InfluxSeries(msgspec.Struct):
    columns: list[str]
    values: list[list[Any]] = []
    name: str = ""
    tags: dict[str, str] = {}


class _InfluxResult(msgspec.Struct):
    series: list[_InfluxSeries] = []


class _InfluxAnswer(msgspec.Struct):
    results: list[_InfluxResult]


class SampleLines:
    """One sample or one series a line, or CloudWatch's answer; the name and labels say whose it is."""

    name = "sample lines"

    def sniff(self, name: str, head: str) -> float:
        """By the form of the first line."""
        del name
        first = next((line for line in head.split("\n") if line.strip()), "").strip()
        bare = first.replace(" ", "")
        series = bare.startswith('{"metric":{') and '"values":[' in bare
        answer = first.startswith("{") and _is_cloudwatch(head)
        answer |= first.startswith("{") and _is_influx(head)
        telegraf = first.startswith("{") and all(f'"{key}"' in head[:4_000] for key in ("fields", "tags", "timestamp"))
        queried = _QUERIED.match(first) is not None
        return SURE if series or answer or telegraf or queried or _DUMP.match(first) or _INFLUX.match(first) else NEVER

    def read(self, source: Source, columns: Mapping[str, str]) -> Found:
        """See `trainwarden.formats.protocol.Format`."""
        del columns
        rows: list[tuple[float, str | None, str | None, str, float]] = []
        unknown: set[str] = set()
        steps: list[StepSample] = []
        verdicts: list[Verdict] = []
        if source.head.lstrip().startswith("{") and _is_cloudwatch(source.head):
            verdicts = list(cloud_verdicts(_of_cloud(source.text(), source.name)))
        for sample in _samples(source.text(), source.name):
            heading = names.metric_of(sample.name)
            if heading is None:
                if sample.measured and is_of_steps(sample.name):
                    owner = (sample.labels.get("Hostname", ""), sample.labels.get("rank", ""))
                    steps.append(StepSample(sample.time_s, *owner, sample.name, sample.value))
                else:
                    unknown.add(sample.name)
                continue
            told = labelled(heading, sample.labels)
            if told.metric is None:
                continue
            rows.append((sample.time_s, told.node, told.device, heading.name, sample.value * heading.factor))
        return with_steps(steps, lambda: found_with(source, verdicts, rows, unknown), bool(rows or verdicts))


def _samples(text: str, file: str) -> Iterator[_Sample]:
    if text.lstrip().startswith("{") and _is_cloudwatch(text[:4_000]):
        yield from _of_cloudwatch(text, file)
        return
    if text.lstrip().startswith("{") and _is_influx(text[:4_000]):
        yield from _of_influx_answer(text, file)
        return
    queried = ""
    for line in text.split("\n"):
        if line.startswith('{"metric":'):
            yield from _of_victoria(line)
        elif line.startswith("{") and '"fields"' in line:
            yield from _of_telegraf(line)
        elif series := _QUERIED.match(line):
            queried = series[1]
            yield from _of_promtool(queried, series[2] or "")
        elif queried and line.endswith("]"):
            yield from _of_promtool(queried, line.strip())
        elif match := _DUMP.match(line):
            labels = labels_of(match[1])
            yield _Sample(int(match[3]) / 1e3, labels.get("__name__", ""), labels, float(match[2]))
        elif match := _INFLUX.match(line):
            yield from _of_influx(match)


def _of_influx(match: re.Match[str]) -> Iterator[_Sample]:
    """A sample for each field; telegraf's inputs name fields as their program does, with underscores for dots."""
    tags = {key: re.sub(r"\\(.)", r"\1", value) for key, value in _TAG.findall(match[2])}
    labels = tag_labels(tags)
    time_s = time_s_of(match[4])
    if is_part_of_host(tags):
        return
    for key, value in _FIELD.findall(match[3]):
        try:
            yield _Sample(time_s, spelled(key, match[1]), labels, float(value), measured=True)
        except ValueError:
            continue


def tag_labels(tags: Mapping[str, str]) -> dict[str, str]:
    """Labels of an exporter for the tags of telegraf."""
    host = next((tags[key] for key in _HOSTS if key in tags), "")
    gpu = next((tags[key] for key in _GPUS if key in tags), "")
    more = {
        name: tags[key] for name, key in (("UUID", "uuid"), ("rank", "rank"), ("rank", "global_rank")) if key in tags
    }
    return {"Hostname": host, "gpu": gpu, **more}


def _of_telegraf(line: str) -> Iterator[_Sample]:
    """telegraf's JSON: a metric a line, or a batch of them."""
    try:
        whole: dict[str, Any] = msgspec.json.decode(line)
        for one in whole.get("metrics", [whole]):
            tags = {str(key): str(value) for key, value in one["tags"].items()}
            if is_part_of_host(tags):
                continue
            labels, measurement = tag_labels(tags), str(one.get("name", ""))
            time_s = time_s_of(str(one["timestamp"]))
            fields = list(one["fields"].items())
            for key, value in fields:
                if isinstance(value, int | float):
                    yield _Sample(time_s, spelled(str(key), measurement), labels, float(value), measured=True)
    except (msgspec.DecodeError, KeyError, AttributeError, TypeError, OverflowError, RecursionError):
        return  # a line that is cut short


def _of_promtool(series: str, text: str) -> Iterator[_Sample]:
    if point := _POINT.match(text):
        labels = labels_of(series.partition("{")[2])
        yield _Sample(time_s_of(point[2]), series.partition("{")[0], labels, float(point[1]))


def is_part_of_host(tags: Mapping[str, str]) -> bool:
    """Whether a sample of telegraf's is of one core, or of a file system that nothing is written to.

    Examples
    --------
    >>> is_part_of_host({"cpu": "cpu3"}), is_part_of_host({"cpu": "cpu-total"}), is_part_of_host({"fstype": "squashfs"})
    (True, False, True)
    """
    return tags.get("cpu", _ALL_CORES) != _ALL_CORES or is_sealed("", tags.get("fstype", ""))


def spelled(key: str, measurement: str = "") -> str:
    """The name that the program itself has for a field, where a rule of the agent's has replaced its dots."""
    if measurement in _HOST_INPUTS:
        return f"{measurement}_{key}"
    if names.metric_of(key) is not None:
        return key
    for place in (index for index, char in enumerate(key) if char == "_"):
        dotted = f"{key[:place]}.{key[place + 1 :].replace('_', '.')}"
        for spelling in (dotted, f"{key[:place]}.{key[place + 1 :]}"):
            if names.metric_of(spelling) is not None:
                return spelling
    return key


def _of_victoria(line: str) -> Iterator[_Sample]:
    try:
        one: dict[str, Any] = msgspec.json.decode(line)
        labels = {str(key): str(value) for key, value in one["metric"].items()}
        pairs = list(zip(one["timestamps"], one["values"], strict=True))
    except (msgspec.DecodeError, KeyError, AttributeError, TypeError, ValueError):
        return  # a line that is cut short
    for time_ms, value in pairs:
        if isinstance(value, int | float) and isinstance(time_ms, int | float):
            yield _Sample(float(time_ms) / 1e3, labels.get("__name__", ""), labels, float(value))


def _is_cloudwatch(head: str) -> bool:
    """Whether an answer is that of `get-metric-data` or of `get-metric-statistics`."""
    return '"MetricDataResults"' in head or ('"Label"' in head and '"Datapoints"' in head)


def _of_cloud(text: str, file: str) -> Iterator[CloudSeries]:
    """Series of resources, by labels that name the metric and may name the resource too."""
    for label, times, values in _answered(text, file):
        words = label.split()
        metric = next((word for word in words if is_of_cloud(word)), "".join(words))
        yield CloudSeries(metric, owner_in(label) or owner_in(file), times, values)


def _answered(text: str, file: str) -> Iterator[tuple[str, list[Any], list[Any]]]:
    """Label, times and values of each series of CloudWatch's answer."""
    try:
        answer: dict[str, Any] = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise DataError(f"{file} is not the JSON that it looks like: {error}") from error
    if isinstance(points := answer.get("Datapoints"), list):
        told = [one for one in points if isinstance(one, dict)]
        values = [next((one[key] for key in _STATISTICS if key in one), None) for one in told]
        yield str(answer.get("Label", "")), [str(one.get("Timestamp", "")) for one in told], values
    for series in answer.get("MetricDataResults") or []:
        if isinstance(series, dict):
            times = [str(stamp) for stamp in series.get("Timestamps") or []]
            yield str(series.get("Label", "")), times, list(series.get("Values") or [])[: len(times)]


def _of_cloudwatch(text: str, file: str) -> Iterator[_Sample]:
    """Series by their labels: the metric's name, the instance, the index of the GPU."""
    for label, stamps, values in _answered(text, file):
        words = label.removeprefix("nvidia_smi_").split()
        gpu = next((word for word in words if word.isdecimal()), "")
        host = next((word for word in words if word.startswith("i-")), "")
        labels = {"Hostname": host, "gpu": gpu} if gpu else {"Hostname": host}
        # The metric's name stands first, or behind what else a search's labels tell apart.
        spelt = [spelled(word.removeprefix("nvidia_smi_")) for word in words]
        name = next((word for word in spelt if names.metric_of(word) is not None), spelt[0] if spelt else "")
        for stamp, value in zip(stamps, values, strict=False):
            if isinstance(value, int | float):
                yield _Sample(time_s_of(stamp), name, labels, float(value))


def _is_influx(head: str) -> bool:
    """Whether it is the JSON of InfluxDB's `/query`, or of `influx -format json`."""
    return all(mark in head[:4_000] for mark in ('"results"', '"series"', '"columns"'))


def _of_influx_answer(text: str, file: str) -> Iterator[_Sample]:
    """Series with tags, each a table whose first column is the time."""
    try:
        answer = msgspec.json.decode(text, type=_InfluxAnswer)
    except (msgspec.DecodeError, RecursionError) as error:
        raise DataError(f"{file} is not the JSON that it looks like: {error}") from error
    for series in (series for result in answer.results for series in result.series):
        labels = tag_labels(series.tags)
        columns = {
            place: spelled(column, series.name) for place, column in enumerate(series.columns) if column != "time"
        }
        if "time" not in series.columns or is_part_of_host(series.tags):
            continue
        when = series.columns.index("time")
        for row in series.values:
            if len(row) != len(series.columns):
                continue
            time_s = time_s_of(str(row[when]))
            for place, name in columns.items():
                if isinstance(row[place], int | float) and math.isfinite(time_s):
                    yield _Sample(time_s, name, labels, float(row[place]), measured=True)
