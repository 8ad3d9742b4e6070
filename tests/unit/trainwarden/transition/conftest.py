"""Ranks for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.trainwarden.transition.harness import Ranks


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ranks]:
    made = Ranks(monkeypatch)
    yield made
    made.close()
