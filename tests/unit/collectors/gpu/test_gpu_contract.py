"""The GPU collector keeps to what every collector does, over GPUs that are there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.collectors.gpu.node import Node
from trainwarden.collectors.gpu.collector import GpuCollector
from trainwarden.testing.collector import CHECKS, Case


@pytest.mark.parametrize("divided", [False, True])
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_contract(check: Any, divided: bool, node: Node, tmp_path: Path) -> None:
    if divided:
        node.nvml.divide(0, 1, 2)
    node.nvml.lose(1)
    case = Case(GpuCollector, tmp_path)
    assert case.there() is None
    check(case)
    assert node.unfreed() == 0
