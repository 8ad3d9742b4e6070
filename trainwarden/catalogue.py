"""The catalogue of metric names: unit, meaning, kind; one table that everything refers to.

A name ends in its unit. ``counter`` metrics only grow (until a reset) and are turned into rates before
scoring. Names of the same thing in dcgm-exporter or node_exporter are kept beside ours so that recorded
folders and scrapes of those exporters get the same meaning.
"""

from __future__ import annotations

import tomllib
from importlib.resources import files
from typing import Literal

import msgspec

Unit = Literal[
    "celsius", "watts", "joules", "hertz", "ratio", "bytes", "bytes_per_second", "seconds", "count", "count_per_second",
    "state", "version",
]  # fmt: skip


class Metric(msgspec.Struct, frozen=True, kw_only=True):
    """One metric: `per` is what a device of it is; `low`, `high` bound what is possible.

    A value found under an alias times `alias_scale` is a value in our unit (dcgm-exporter gives MHz, MiB, percent).
    """

    name: str
    unit: Unit
    kind: Literal["gauge", "counter"]
    per: Literal["gpu", "nic", "host", "rank", "agent"]
    meaning: str
    aliases: tuple[str, ...] = ()
    alias_scale: float = 1.0
    low: float | None = 0.0
    high: float | None = None


def _read_table() -> tuple[Metric, ...]:
    table = files("trainwarden").joinpath("catalogue.toml").read_bytes()
    return msgspec.convert(tomllib.loads(table.decode())["metric"], tuple[Metric, ...])


CATALOGUE: dict[str, Metric] = {metric.name: metric for metric in _read_table()}
ALIASES: dict[str, str] = {alias: metric.name for metric in CATALOGUE.values() for alias in metric.aliases}


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
