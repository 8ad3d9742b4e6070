"""The newest values of this node's GPUs, under the names of dcgm-exporter where they are the same thing.

Dashboards and rules that are made for dcgm-exporter work on a node where only the agent runs. What the agent counts of
itself has names of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Final

from prometheus_client import Metric

from trainwarden.catalogue import CATALOGUE
from trainwarden.clock import Clock
from trainwarden.records import MetricsRecord, Record

NAMES: Final = {
    metric.name: (alias, metric.scale_of(alias), metric.kind, metric.meaning)
    for metric in CATALOGUE.values()
    if metric.per == "gpu"
    for alias in metric.aliases[:1]
    if alias.startswith("DCGM_FI_")  # DCGM_EXP_* are the exporter's own counts, over its own windows
}
"""Alias, its scale, kind and meaning, by our name."""
HOLD_S: Final = 60.0
_TURNS: Final = 20.0  # slow readings are made every ten turns, GPUs taking turns


class GpuValues:
    """What `SelfMetrics.register_families` asks at each scrape.

    Parameters
    ----------
    hostname : str
        The node.
    clock : Clock
        A value that nobody has told again for a minute (or for twenty turns of a slower collector) is told no more.
    index_of : callable
        The number of a device by its name; None if nobody knows it.
    """

    def __init__(self, hostname: str, clock: Clock, index_of: Callable[[str], int | None]) -> None:
        self._hostname, self._clock, self._index_of = hostname, clock, index_of
        self._lock = threading.Lock()
        self._values: dict[tuple[str, str], tuple[float, float]] = {}  # name, device -> value, when it came
        self._indices: dict[str, str] = {}
        self._last_s: float | None = None
        self._hold_s = HOLD_S

    def observe(self, records: Iterable[Record]) -> None:
        """Keep what `records` say of GPUs."""
        for record in records:
            if isinstance(record, MetricsRecord) and any(name in NAMES for name in record.names):
                self._keep(record)

    def _keep(self, record: MetricsRecord) -> None:
        now_s = self._clock.monotonic_s()
        with self._lock:
            if self._last_s is not None:
                self._hold_s = max(HOLD_S, _TURNS * (now_s - self._last_s))
            self._last_s = now_s
            for device in record.devices:
                if (index := self._index_of(device)) is not None:
                    self._indices[device] = str(index)
            for name, row in zip(record.names, record.values, strict=True):
                if name in NAMES:
                    fresh = zip(record.devices, row, strict=True)
                    self._values |= {(name, device): (value, now_s) for device, value in fresh if value is not None}

    def families(self) -> Iterable[Metric]:
        """A family for each name that is known, a sample for each GPU."""
        with self._lock:
            since_s = self._clock.monotonic_s() - self._hold_s
            self._values = {key: kept for key, kept in self._values.items() if kept[1] >= since_s}
            values, indices = dict(self._values), dict(self._indices)
        told: dict[str, Metric] = {}
        for (name, device), (value, _) in sorted(values.items()):
            alias, scale, kind, meaning = NAMES[name]
            # Their counters have no "_total", which a counter here would get.
            family = told.setdefault(name, Metric(alias, meaning, "gauge" if kind == "gauge" else "unknown"))
            uuid, _, instance = device.partition("/")  # of MIG
            labels = {"gpu": indices.get(device, ""), "UUID": uuid, "hostname": self._hostname}
            if instance:
                labels["GPU_I_ID"] = instance
            family.add_sample(alias, labels, value / scale)
        return told.values()
