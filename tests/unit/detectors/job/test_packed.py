"""State as bytes: whatever is wrong with them is one error."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest

from detectors.job.packed import pack, unpack
from trainwarden.errors import DetectorError


@pytest.mark.parametrize("value", [0, 1, 8, 99, 255])
def test_any_byte_that_is_wrong_is_refused_as_damage_or_harmless(value: int) -> None:
    """Among them those that make arrays look compressed in some way, or encrypted."""
    state = pack("k", {"n": 3}, {"x": np.arange(4)})
    for place in range(len(state)):
        with suppress(DetectorError):
            unpack("k", state[:place] + bytes([value]) + state[place + 1 :])
