"""How many cases Hypothesis draws: all of them in `make test`, a quarter in `make check`; anew in each run, not in CI.

CI judges a change: it draws the same cases for the same test, so that a change is not refused for a fault that a lucky
run before it did not meet. Whoever runs the tests by hand looks for those.
"""

from __future__ import annotations

import os
from typing import Final

from hypothesis import settings

THOROUGH: Final = os.environ.get("TRAINWARDEN_THOROUGH") == "1"
"""Set by `make test`, which CI runs."""
SAME_CASES: Final = os.environ.get("TRAINWARDEN_REQUIRE_SERVERS") == "1"
"""Set by CI."""
LEAST: Final = 3


def examples(most: int) -> settings:
    """At most so many cases a test, without a deadline: machines are shared."""
    return settings(max_examples=most if THOROUGH else max(most // 4, LEAST), deadline=None)
