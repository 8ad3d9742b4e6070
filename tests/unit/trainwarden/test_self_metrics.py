"""Counters of our own work: what every service tells of itself under one name."""

from __future__ import annotations

from trainwarden import self_metrics
from trainwarden.dashboards.exposition import families
from trainwarden.self_metrics import SelfMetrics


def test_names_and_words_are_those_of_the_table_of_families() -> None:
    """`trainwarden` may not import `dashboards`, so a test holds the two together."""
    metrics = SelfMetrics("engine")
    metrics.round_ended(12.5, bus_answers=True)
    metrics.lag(3)
    told = {family.name: family for family in metrics.registry.collect()}
    assert {self_metrics.HEARTBEAT, self_metrics.UP, self_metrics.LAG} == {one.name for one in families.OF_SERVICES}
    for one in families.OF_SERVICES:
        family = told[one.name]
        assert (family.type, family.documentation) == (one.kind, one.help)
        assert [tuple(sample.labels) for sample in family.samples] == [one.labels]


def test_a_counter_is_born_at_0() -> None:
    metrics = SelfMetrics("engine")
    metrics.count("errors_total", "Errors.", 0, kind="refused")
    assert metrics.registry.get_sample_value("trainwarden_engine_errors_total", {"kind": "refused"}) == 0.0
