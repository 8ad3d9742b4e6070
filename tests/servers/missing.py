"""What a test does whose server cannot run here."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def refuse(reason: str, group: str = "") -> NoReturn:
    """Skip for `reason`; fail under ``TRAINWARDEN_REQUIRE_SERVERS=1``.

    Whoever runs the tests may name groups that take minutes to build in ``TRAINWARDEN_LEFT_OUT``, such as
    ``image,kubernetes``: those are skipped, and the last line of `make test` says so.
    """
    left_out = group in os.environ.get("TRAINWARDEN_LEFT_OUT", "").split(",") if group else False
    if os.environ.get("TRAINWARDEN_REQUIRE_SERVERS") == "1" and not left_out:
        pytest.fail(f"TRAINWARDEN_REQUIRE_SERVERS=1, but: {reason}", pytrace=False)
    pytest.skip(reason)
