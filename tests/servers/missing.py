"""What a test does whose server cannot run here."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def refuse(reason: str) -> NoReturn:
    """Skip for `reason`; fail under ``TRAINWARDEN_REQUIRE_SERVERS=1``."""
    if os.environ.get("TRAINWARDEN_REQUIRE_SERVERS") == "1":
        pytest.fail(f"TRAINWARDEN_REQUIRE_SERVERS=1, but: {reason}", pytrace=False)
    pytest.skip(reason)
