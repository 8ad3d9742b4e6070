"""State as bytes: whatever is wrong with them is one error."""

from __future__ import annotations

import numpy as np
import pytest

from trainwarden.detectors.job.packed import pack, unpack
from trainwarden.errors import DetectorError


@pytest.mark.parametrize("value", [0, 1, 8, 99, 255])
def test_any_byte_that_is_wrong_is_refused_as_damage(value: int) -> None:
    """Among them those that make arrays look compressed in some way, or encrypted, and those that change a number."""
    state = pack("k", {"n": 3}, {"x": np.arange(4)})
    for place in range(len(state)):
        if state[place] != value:
            with pytest.raises(DetectorError, match="state of k is damaged"):
                unpack("k", state[:place] + bytes([value]) + state[place + 1 :])


@pytest.mark.parametrize("length", [0, 1, 4, 5, -1])
def test_a_state_that_was_cut_short_is_refused(length: int) -> None:
    with pytest.raises(DetectorError, match="state of k is damaged"):
        unpack("k", pack("k", {"n": 3}, {"x": np.arange(4)})[:length])
