"""What the agent lets through: all that is whole as it is, and of the rest what a look at each value leaves."""

from __future__ import annotations

import math

import pytest

from trainwarden.catalogue import CATALOGUE
from trainwarden.collectors.agent.agent import MetricsValidator
from trainwarden.records import MetricsRecord
from trainwarden.self_metrics import SelfMetrics

Row = tuple[float | None, ...]
INF, NAN = math.inf, math.nan
BOUNDED, FREE = "gpu_utilization_ratio", "host_context_switches_count"


def record(*rows: Row, names: tuple[str, ...] = (BOUNDED,)) -> MetricsRecord:
    devices = tuple(f"GPU-{place}" for place in range(len(rows[0])))
    return MetricsRecord(job="j", node="n", time_s=1.0, devices=devices, names=names, values=rows)


def one_by_one(name: str, row: Row) -> Row:
    """The plain way: every value by itself."""
    metric = CATALOGUE[name]
    low = -INF if metric.low is None else metric.low
    high = INF if metric.high is None else metric.high
    return tuple(
        value if value is not None and math.isfinite(value) and low <= value <= high else None for value in row
    )


@pytest.mark.parametrize("name", [BOUNDED, FREE])
@pytest.mark.parametrize(
    "row",
    [
        (0.5, 0.25), (0.0, 1.0), (None, 0.5), (None, None), (NAN, 0.5), (0.5, NAN), (INF, -INF), (0.5, INF), (1.5, 0.5),
        (-1.0, 0.5), (NAN, None), (1e308, 1e308), (-0.0, None),
    ],
)  # fmt: skip
def test_what_passes_is_what_passes_one_by_one(name: str, row: Row) -> None:
    vetting, expected = MetricsValidator(SelfMetrics("agent")), one_by_one(name, row)
    vetted = vetting.vet(record(row, names=(name,)))
    assert (None if vetted is None else vetted.values) == ((expected,) if set(expected) != {None} else None)
    assert vetting.dropped == sum(one is not None for one in row) - sum(one is not None for one in expected)


def test_a_record_that_is_whole_goes_on_as_it_is_and_one_that_is_not_keeps_the_rest() -> None:
    vetting = MetricsValidator(SelfMetrics("agent"))
    whole = record((0.5, None), (7.0, 8.0), names=(BOUNDED, FREE))
    assert vetting.vet(whole) == whole
    left = vetting.vet(record((0.5, 2.0), (NAN, NAN), (1.0, 1.0), names=(BOUNDED, FREE, "made_up")))
    assert left is not None
    assert (left.names, left.values, vetting.dropped) == ((BOUNDED,), ((0.5, None),), 5)
    left = vetting.vet(record((0.5, 1.0), (1.0, 1.0), names=(BOUNDED, "made_up")))
    assert left is not None
    assert (left.names, left.values, vetting.dropped) == ((BOUNDED,), ((0.5, 1.0),), 7)
    assert vetting.vet(record((None, None))) is None
    assert vetting.vet(record((0.5,), (0.5, 0.5), names=(BOUNDED, FREE))) is None
