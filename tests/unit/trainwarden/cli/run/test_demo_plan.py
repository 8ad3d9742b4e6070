"""A demo that cannot be carried out is refused before anything is started."""

from __future__ import annotations

from typing import Any

import pytest

from trainwarden.cli.run.demo_plan import DemoPlan
from trainwarden.errors import ConfigError

ASKED: dict[str, Any] = {
    "fault": "slow-rank", "rank": 0, "slowdown": 2.0, "at_step": None, "ranks": 4, "seed": 0, "steps": None,
    "mode": "auto",
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"fault": "hang", "rank": 4}, "ranks are 0 to 3"),
        ({"fault": "slow-rank", "ranks": 1}, "at least 2"),
        ({"fault": "crash", "goes_on": True, "mode": "confirm"}, "in mode auto alone"),
        ({"fault": "crash", "at_step": 40, "steps": 50}, "at least 25 steps"),
    ],
)
def test_an_impossible_plan_is_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        DemoPlan.checked(**{**ASKED, **changes})
