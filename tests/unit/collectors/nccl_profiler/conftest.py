"""A rank whose calls are watched."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.collectors.nccl_profiler.watching import Rank


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    (tmp_path / "hook").mkdir()
    return tmp_path


@pytest.fixture
def rank(run_dir: Path) -> Rank:
    return Rank(run_dir)
