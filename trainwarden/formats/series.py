"""Tables whose series are named in cells (long) or in the names of columns (wide): who and what a name means."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import pandas as pd

from trainwarden.catalogue import CATALOGUE
from trainwarden.formats import names
from trainwarden.formats.building import metric_table
from trainwarden.formats.cells import UNITS, Numbers
from trainwarden.formats.host.mounts import mount_of
from trainwarden.formats.protocol import Found
from trainwarden.formats.roles import Roles, device_name
from trainwarden.formats.steps import is_loss, losses_of, steps_from
from trainwarden.formats.table import COLUMNS_HELP, Table, column_values, in_unit, owners
from trainwarden.prometheus.exporters import who
from trainwarden.recorded.job import Floats, Ints

_LABELS: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_.]{0,80})\s{0,2}=~?\s{0,2}\"((?:[^\"\\]|\\.){0,400})\"")
_BARE_LABELS: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_.]{0,80})=([^,{}\"]{1,200})")
_BRACES: Final = re.compile(r"^\s{0,4}([A-Za-z_:][A-Za-z0-9_:.]{0,120})?\s{0,4}\{(.{0,2000})\}\s{0,4}$")
_GPU: Final = re.compile(r"(?i)(?<![a-z0-9])(?:gpu|cuda|nvidia|card|device)[ _.:/#\[-]{0,3}([0-9]{1,3})(?![0-9])\]?")
# A host that is called after its GPUs, before the GPU of it: "gpu-a02 GPU 3", "gpu01/cuda:0".
_GPU_HOST: Final = re.compile(
    r"(?i)\s{0,4}(gpu(?:[a-z-]{0,20}[0-9]{1,4}[a-z0-9.-]{0,60}))"
    r"(?=[ /:|,]{1,4}(?:gpu|cuda|card|nvidia)[ _.:#-]{0,3}[0-9])"
)
_PROBED: Final = 50  # cells of a column whose unit is looked at
_EDGE: Final = " _.:/-|,"
_CAMEL: Final = {
    "powerwatts": "gpu_power_watts", "enforcedpowerlimitwatts": "gpu_power_limit_watts", "smclock": "sm_clock",
    "memoryclock": "memory_clock", "memoryallocatedbytes": "gpu_memory_used_bytes", "power_usage_watts": "power_w",
    "utilization_percentage": "gpu_util", "memory_usage_megabytes": "DCGM_FI_DEV_FB_USED", "powerpercent": "",
    "memoryallocated": "", "memory": "utilization.memory", "temp": "temp", "gpu": "gpu_util",
    "correctedmemoryerrors": "gpu_ecc_correctable_volatile_count",
    "uncorrectedmemoryerrors": "gpu_ecc_uncorrectable_volatile_count",
}  # fmt: skip


class Series(NamedTuple):
    """What the name of a series says; the metric is None where it says nothing of it."""

    metric: names.Heading | None
    node: str | None
    device: str | None
    rank: int | None = None


def series_of(text: str) -> Series:
    """Who and what a series is about, by labels or by the number of a GPU in its name.

    Examples
    --------
    >>> found = series_of('DCGM_FI_DEV_GPU_TEMP{gpu="6", Hostname="a1", UUID="GPU-1"}')
    >>> found.metric.name, found.node, found.device
    ('gpu_temperature_celsius', 'a1', 'gpu6')
    >>> found = series_of("system.gpu.6.powerWatts")
    >>> found.metric.name, found.device
    ('gpu_power_watts', 'gpu6')
    >>> series_of("temp_gpu6").metric.name, series_of("a1 GPU 6").node, series_of("loss").device is None
    ('gpu_temperature_celsius', 'a1', True)
    >>> [(one.node, one.device) for one in map(series_of, ("gpu-a02 GPU 3", "gpu01/cuda:0", "gpu1 temp"))]
    [('gpu-a02', 'gpu3'), ('gpu01', 'gpu0'), (None, 'gpu1')]
    """
    match = _BRACES.match(text)
    if match is not None:
        labels = labels_of(match[2])
        metric = names.metric_of(match[1] or labels.get("__name__", ""))
        return labelled(metric, labels)
    named = _GPU_HOST.match(text)
    found = _GPU.search(text, named.end() if named is not None else 0)
    if found is None:
        return Series(names.metric_of(text) or _of_words(text), None, None)
    before, after = text[: found.start()].strip(_EDGE), text[found.end() :].strip(_EDGE)
    if before.lower().endswith(("system", "system/node", "node")):
        before = ""  # a tracker's own word
    metric = _metric(after) or _metric(before) or _metric(f"{before} {after}".strip())
    rest = before if metric is not None and _metric(before) is None else "" if metric is not None else before
    host = named is not None and rest == named[1]
    node = rest if rest and (host or not rest.lower().startswith(("gpu", "system"))) else None
    if metric is None and after and not before:
        node = after
    return Series(metric, node or None, device_name(found[1], True))


def _of_words(name: str) -> names.Heading | None:
    """The metric that the last words of a service's name tell, where one of its words speaks of GPUs."""
    words = [word for word in re.split(r"[./ _]+", name.lower()) if word]
    if not {"gpu", "dcgm", "nvidia"}.intersection(words):
        return None
    ends = ["_".join(words[-count:]) for count in range(min(len(words), 4), 0, -1)]
    spelt = (names.metric_of(one) for end in ends for one in (end, f"gpu_{end}"))
    return next((one for one in spelt if one is not None), None)


def labels_of(text: str) -> dict[str, str]:
    """Labels as Prometheus writes them, and as Grafana does."""
    quoted = dict(_LABELS.findall(text))
    return quoted or {key: value.strip() for key, value in _BARE_LABELS.findall(text)}


def labelled(metric: names.Heading | None, labels: Mapping[str, str]) -> Series:
    """The series of `metric` with Prometheus' labels."""
    per = CATALOGUE[metric.name].per if metric is not None and metric.name in CATALOGUE else "gpu"
    rank = next((int(labels[key]) for key in ("rank", "global_rank") if labels.get(key, "").isdecimal()), None)
    one = who(labels, per)
    if one is None and per != "host":
        one = who({**labels, "instance": labels.get("instance", "?")}, per)
    if one is None:
        host = labels.get("Hostname") or labels.get("hostname") or labels.get("instance", "").partition(":")[0]
        if "mountpoint" in labels and per == "host":
            mount = mount_of(labels)
            return Series(metric if mount else None, host or None, mount, rank)
        disk = labels.get("device") if metric is not None and metric.name.startswith("host_disk_") else None
        return Series(metric, host or None, f"disk:{disk}" if disk else None, rank)
    device = None if per == "host" else device_name(one.device, per == "gpu")
    return Series(metric, None if one.node == "?" else one.node, device, rank)


def _metric(text: str) -> names.Heading | None:
    if not text:
        return None
    bare = names.plain(text).replace(" ", "_")
    if bare in _CAMEL:
        return names.metric_of(_CAMEL[bare]) if _CAMEL[bare] else None
    return names.metric_of(text) or names.metric_of(bare)


def by_series(table: Table, roles: Roles, times: Floats | None) -> Found:
    """A long table: one row for each sample, the series' name in a cell, labels in others or behind the name."""
    assert roles.series is not None
    assert roles.value is not None
    if times is None and roles.step is None:
        return _without_times(table, None)
    numbers = Numbers(table.frame[roles.value].tolist(), comma=table.comma)
    for row, text in numbers.bad:
        table.problem(row, roles.value, f"{text[:60]!r} is not a number")
    codes, distinct = pd.factorize(table.frame[roles.series].astype(str))
    cells = {name: list(column) for name, column in owners(table, roles, True).items()}
    losses = np.array(losses_of(table.frame[roles.value].tolist(), numbers.values), object)
    wide: dict[str, Any] = {
        str(name): pd.Series(losses if is_loss(str(name)) else numbers.values).where(codes == place)
        for place, name in enumerate(distinct)
    }
    steps = _steps_of(table, roles, times, wide | {name: cells[name] for name in ("rank", "node") if name in cells})
    if times is None:
        return _without_times(table, steps)
    found = steps or Found()
    parts = _samples(numbers, times, codes, [str(one) for one in distinct], cells)
    frame = pd.concat(parts, ignore_index=True) if parts else None
    if frame is not None and (metrics := metric_table(frame)) is not None:
        found.metrics.append(metrics)
    return found


def _without_times(table: Table, steps: Found | None) -> Found:
    if steps is None and not table.problems:
        table.problem(None, "", "no column holds times", COLUMNS_HELP)
    return steps or Found()


def _samples(
    numbers: Numbers, times: Floats, codes: Ints, distinct: list[str], cells: dict[str, list[str | None]]
) -> list[pd.DataFrame]:
    """Samples of each series, but for durations of steps."""
    parts = []
    for place, written in enumerate(distinct):
        series = series_of(written)
        rows = np.flatnonzero(codes == place)
        heading = series.metric
        if heading is None and names.duration_factor(written) is not None:
            continue
        own: dict[str, Any] = {"time_s": times[rows]}
        for name, said in (("node", series.node), ("device", series.device)):
            column = [cells[name][row] for row in rows] if name in cells else [None] * rows.size
            own[name] = [said or cell for cell in column]
        if "rank" in cells or series.rank is not None:
            own["rank"] = [cells["rank"][row] for row in rows] if "rank" in cells else [str(series.rank)] * rows.size
        values = in_unit(numbers.values[rows], numbers.unit, heading)
        own[heading.name if heading is not None else written] = values
        parts.append(pd.DataFrame(own))
    return parts


def _steps_of(table: Table, roles: Roles, times: Floats | None, wide: dict[str, Any]) -> Found | None:
    """Step times among the series of a long table, as trackers export them."""
    if roles.step is None:
        return None
    step = Numbers(table.frame[roles.step].tolist()).values
    frame = pd.DataFrame({"step": step, **({} if times is None else {"time_s": times}), **wide})
    keys = [name for name in ("step", "rank", "node") if name in frame.columns]
    return steps_from(frame.groupby(keys, as_index=False, dropna=False).first(), table.notes)


def numbered(table: Table, roles: Roles, times: Floats | None) -> pd.DataFrame | None:
    """A wide table: a column for each series of a GPU. None if it is none."""
    columns = [one for one in table.frame.columns if one not in (roles.time, roles.date, roles.step)]
    told = {one: series_of(str(one)) for one in columns}
    told = {one: series for one, series in told.items() if series.device is not None or "{" in str(one)}
    if times is None or not told or (len(told) == 1 and not any(series.metric for series in told.values())):
        return None
    default = _default(table, [series.metric for series in told.values()], written_unit(table, map(str, told)))
    parts: dict[tuple[str | None, str | None, int | None], dict[str, Any]] = {}
    for column, series in told.items():
        heading = series.metric or default
        if heading is None:
            continue
        values = column_values(table, str(column), heading)
        if values is not None:
            parts.setdefault((series.node, series.device, series.rank), {})[heading.name] = values
    if not parts:
        remedy = f"name the metric: --columns metric=gpu_temperature_celsius,value={columns[0]}; or {COLUMNS_HELP}"
        table.problem(None, "", "columns are series of GPUs, of which nothing says what was measured", remedy)
        return None
    frames = [
        pd.DataFrame({"time_s": times, "node": node, "device": device, **values})
        if rank is None
        else pd.DataFrame({"time_s": times, "node": node, "device": device, "rank": str(rank), **values})
        for (node, device, rank), values in parts.items()
    ]
    return pd.concat(frames, ignore_index=True)


def _default(table: Table, told: list[names.Heading | None], unit: str | None) -> names.Heading | None:
    """The metric of series that do not name it: the command line's, or that of the file's name (Grafana's panel).

    A word of the name that means a metric of another unit than `unit`, that of the cells, means something else here.
    """
    if "metric" in table.said and (said := names.metric_of(table.said["metric"])) is not None:
        return said
    if any(told):
        return None
    return panel_metric(table.file, unit)


def panel_metric(file: str, unit: str | None) -> names.Heading | None:
    """The metric that a file's name tells, of `unit` where its cells carry one.

    Examples
    --------
    >>> panel_metric("GPU temperature-data-2026-09-21 14_00_00.csv", None).name
    'gpu_temperature_celsius'
    >>> panel_metric("SM clocks-data-as-joinbyfield.csv", "hertz").name, panel_metric("sm-data-1.csv", "hertz")
    ('gpu_sm_clock_hertz', None)
    """
    stem = file.rsplit("/", 1)[-1].lower()
    stem = re.sub(r"-data-.*$|\.(csv|tsv|txt).*$", "", stem).replace("_", " ").strip()
    singular = " ".join(word.removesuffix("s") for word in stem.split())
    words = [stem, stem.replace(" ", "_"), singular.replace(" ", "_"), *stem.split(), *singular.split()]
    listed = (found for word in words if (found := names.metric_of(word)) is not None)
    return next((one for one in listed if unit is None or one.unit == unit), None)


def written_unit(table: Table, columns: Iterable[str]) -> str | None:
    """The unit behind the numbers of `columns`; None where their cells carry none."""
    for column in columns:
        said = UNITS.get(Numbers(table.frame[column].tolist()[:_PROBED], comma=table.comma).unit.lower())
        if said is not None:
            return said[0]
    return None
