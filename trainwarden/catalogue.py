"""The catalogue of metric names: unit, meaning, kind; one table that everything refers to.

A name ends in its unit. ``counter`` metrics only grow (until a reset) and are turned into rates before
scoring. Names of the same thing in dcgm-exporter or node_exporter are kept beside ours so that recorded
folders and scrapes of those exporters get the same meaning. A plug-in's own metrics come from a table of the
same form beside it (`add`); what is sent to another process takes `added` along.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from importlib.resources import files
from typing import Literal

import msgspec

from trainwarden.errors import ConfigError

Unit = Literal[
    "celsius", "watts", "joules", "hertz", "ratio", "bytes", "bytes_per_second", "seconds", "count", "count_per_second",
    "state", "version",
]  # fmt: skip


class Metric(msgspec.Struct, frozen=True, kw_only=True):
    """One metric: `per` is what a device of it is; `low`, `high` bound what is possible.

    A value found under an alias times `alias_scale` is a value in our unit (dcgm-exporter gives MHz, MiB, percent);
    `alias_scales` holds the aliases that have a factor of their own (dcgm-exporter 4.9 gives hertz, bytes, ratios).
    Peers of one role differ where they are `apart` in the unit (of a counter, per second) and by `apart_share` of their
    median, as far as these are given; `alike` ones may not stand apart from the start either.
    """

    name: str
    unit: Unit
    kind: Literal["gauge", "counter"]
    per: Literal["gpu", "nic", "host", "rank", "agent"]
    meaning: str
    aliases: tuple[str, ...] = ()
    alias_scale: float = 1.0
    alias_scales: dict[str, float] = msgspec.field(default_factory=dict)
    low: float | None = 0.0
    high: float | None = None
    apart: float | None = None
    apart_share: float | None = None
    alike: bool = False

    def scale_of(self, name: str) -> float:
        """What a value under `name`, the metric's own or an alias, is to be multiplied by.

        Examples
        --------
        >>> clock = lookup("gpu_sm_clock_hertz")
        >>> [clock.scale_of(name) for name in (clock.name, *clock.aliases)]
        [1.0, 1000000.0, 1.0]
        """
        return 1.0 if name == self.name else self.alias_scales.get(name, self.alias_scale)


class _Table(msgspec.Struct, forbid_unknown_fields=True):
    metric: tuple[Metric, ...]


def read_table(text: str, where: str) -> tuple[Metric, ...]:
    """The metrics of a table like ``catalogue.toml``.

    Raises
    ------
    ConfigError
        With one sentence that starts with `where`.

    Examples
    --------
    >>> row = '[[metric]]\\nname = "host_queue_bytes"\\nunit = "bytes"\\nkind = "gauge"\\nper = "host"\\nmeaning = "."'
    >>> read_table(row, "here")[0].name
    'host_queue_bytes'
    >>> read_table(row.replace("gauge", "gouge"), "here")
    Traceback (most recent call last):
    trainwarden.errors.ConfigError: here: Invalid enum value 'gouge' - at `$.metric[0].kind`
    """
    try:
        return msgspec.convert(tomllib.loads(text), _Table).metric
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise ConfigError(f"{where}: {error}") from error


_OWN = read_table(files("trainwarden").joinpath("catalogue.toml").read_text(encoding="utf-8"), "catalogue.toml")
CATALOGUE: dict[str, Metric] = {metric.name: metric for metric in _OWN}
ALIASES: dict[str, str] = {alias: metric.name for metric in _OWN for alias in metric.aliases}


def add(metrics: Iterable[Metric], where: str = "metrics of plug-ins") -> None:
    """Take a plug-in's metrics into the catalogue of this process; those that are there already, alike, are not new.

    Raises
    ------
    ConfigError
        If a name or alias is taken; nothing of `metrics` is added then.
    """
    new = [metric for metric in metrics if CATALOGUE.get(metric.name) != metric]
    words = [word for metric in new for word in (metric.name, *metric.aliases)]
    for place, word in enumerate(words):
        if word in CATALOGUE or word in ALIASES or word in words[:place]:
            raise ConfigError(f"{where}: the metric name '{word}' is taken already")
    CATALOGUE.update({metric.name: metric for metric in new})
    ALIASES.update({alias: metric.name for metric in new for alias in metric.aliases})


def added() -> tuple[Metric, ...]:
    """What plug-ins have brought, for the processes that this one sends work to."""
    return tuple(metric for metric in CATALOGUE.values() if metric not in _OWN)


def lookup(name: str) -> Metric | None:
    """The metric called `name` or known by that alias; None if the catalogue has no such name.

    Examples
    --------
    >>> lookup("DCGM_FI_DEV_GPU_TEMP").name
    'gpu_temperature_celsius'
    >>> lookup("made_up") is None
    True
    """
    return CATALOGUE.get(ALIASES.get(name, name))
