"""What the agent lets through: metrics that the catalogue knows, finite and possible; the rest is counted."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from trainwarden.catalogue import CATALOGUE
from trainwarden.records import MetricsRecord
from trainwarden.self_metrics import SelfMetrics


class MetricsValidator:
    """Checks metrics records against the catalogue.

    Examples
    --------
    >>> vetting = MetricsValidator(SelfMetrics("agent"))
    >>> record = MetricsRecord(job="j", node="n", time_s=1.0, devices=("GPU-0",),
    ...     names=("gpu_temperature_celsius", "made_up"), values=((float("nan"),), (1.0,)))
    >>> vetting.vet(record) is None, vetting.dropped
    (True, 2)
    """

    def __init__(self, metrics: SelfMetrics) -> None:
        self._metrics = metrics
        self.dropped = 0

    def vet(self, record: MetricsRecord) -> MetricsRecord | None:
        """`record` without unknown names and impossible values; None if nothing is left."""
        devices = len(record.devices)
        if len(record.names) != len(record.values) or any(len(row) != devices for row in record.values):
            self._drop(max(1, len(record.names)), "shape")
            return None
        names: list[str] = []
        rows: list[tuple[float | None, ...]] = []
        changed = False
        for name, row in zip(record.names, record.values, strict=True):
            metric = CATALOGUE.get(name)
            if metric is None:
                self._drop(devices, "unknown_name")
                changed = True
                continue
            low = -math.inf if metric.low is None else metric.low
            high = math.inf if metric.high is None else metric.high
            checked = row
            if not _all_pass(row, low, high):
                changed = True
                checked = tuple(self._checked(value, low, high) for value in row)
                if not any(value is not None for value in checked):
                    continue
            names.append(name)
            rows.append(checked)
        if not names:
            return None
        return msgspec.structs.replace(record, names=tuple(names), values=tuple(rows)) if changed else record

    def _checked(self, value: float | None, low: float, high: float) -> float | None:
        if value is None or (low <= value <= high and math.isfinite(value)):
            return value
        self._drop(1, "out_of_bounds" if math.isfinite(value) else "not_finite")
        return None

    def _drop(self, values: int, why: str) -> None:
        self.dropped += values
        self._metrics.count("dropped_values_total", "Metric values dropped.", values, why=why)


def _all_pass(row: tuple[float | None, ...], low: float, high: float) -> bool:
    """True if something was measured and all of it is finite and possible, which nearly every row is."""
    measured: Sequence[float] = [value for value in row if value is not None] if None in row else row  # type: ignore[assignment]
    # A sum is finite only if all its parts are.
    return bool(measured) and math.isfinite(sum(measured)) and low <= min(measured) and max(measured) <= high
