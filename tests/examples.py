"""How many cases Hypothesis draws: a half in `make test`, a quarter in `make check`; anew in each run, not in CI.

CI judges a change: it draws the same cases for the same test, so that a change is not refused for a fault that a lucky
run before it did not meet. Whoever runs the tests by hand looks for those: ``TRAINWARDEN_THOROUGH=all`` draws them all.
"""

from __future__ import annotations

import os
from typing import Final

from hypothesis import settings

_THOROUGH: Final = os.environ.get("TRAINWARDEN_THOROUGH")
_PARTS: Final = {"all": 1, "1": 2}.get(_THOROUGH or "", 4)
"""`make test`, which CI runs, sets it to 1."""
SAME_CASES: Final = os.environ.get("TRAINWARDEN_REQUIRE_SERVERS") == "1"
"""Set by CI."""
LEAST: Final = 3


def cases(most: int) -> int:
    """So many of `most`."""
    return max(most // _PARTS, LEAST)


def examples(most: int) -> settings:
    """At most so many cases a test, without a deadline: machines are shared."""
    return settings(max_examples=cases(most), deadline=None)
