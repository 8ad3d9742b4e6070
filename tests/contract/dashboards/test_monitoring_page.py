"""docs/monitoring.md names every metric family and every alert that has a name in it exists."""

from __future__ import annotations

import re

import pytest

from tests.places import ROOT
from trainwarden.dashboards.alerts.table import ALERTS
from trainwarden.dashboards.exposition import families

PAGE = (ROOT / "docs" / "monitoring.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("family", [*families.OF_JOBS, *families.OF_SERVICES], ids=lambda one: one.name)
def test_a_family_is_in_the_table_as_it_is(family) -> None:
    labels = ", ".join(f"`{label}`" for label in family.labels) or "-"
    assert f"| `{family.name}` | {labels} | {family.help} |" in PAGE


def test_alerts_that_are_named_exist() -> None:
    assert set(re.findall(r"`(Trainwarden\w+)`", PAGE)) - {alert.name for alert in ALERTS} == set()
