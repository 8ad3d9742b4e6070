"""Shared by the contracts: both buses behind one fixture."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.bus_harness import Engine

ENGINES = ["embedded", pytest.param("kafka", marks=[pytest.mark.system, pytest.mark.kafka])]


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    if request.param == "embedded":
        opened = Engine("embedded", str(tmp_path / "bus.db"), "")
    else:
        broker = request.getfixturevalue("kafka_broker")
        opened = Engine("kafka", broker.server, f"t{uuid.uuid4().hex[:8]}.")
    yield opened
    opened.close()
