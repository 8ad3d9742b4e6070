"""What options of several commands say."""

from __future__ import annotations

import pytest

from trainwarden.cli.shared.options import time_of
from trainwarden.errors import ConfigError


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "1e999"])
def test_a_time_is_a_number_of_seconds_that_there_is(text: str) -> None:
    with pytest.raises(ConfigError, match=f"^--from: '{text}' is no time$"):
        time_of(text, "--from")
