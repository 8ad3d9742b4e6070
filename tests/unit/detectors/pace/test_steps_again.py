"""Steps that come again, as after restarts from a checkpoint: the rows go on, and no detector is set aside for them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from trainwarden.detectors.recorded.replay import replay
from trainwarden.recorded.folder import read_folder
from trainwarden.settings import DetectionSettings


def restarted(random: np.random.Generator, steps: int = 400) -> list[int]:
    """Numbers of steps of a job that goes back to a checkpoint up to five times."""
    found = list(range(steps))
    for _ in range(random.integers(1, 6)):
        at, back = int(random.integers(20, len(found))), int(random.integers(1, 40))
        found = found[:at] + list(range(max(0, found[at - 1] - back), found[at - 1])) + found[at:]
    return found


@pytest.mark.thorough
def test_a_rank_that_becomes_slow_after_restarts_is_told_by_its_change(tmp_path: Path) -> None:
    """Of this series the filter began anew four rows before its slow rise was looked at."""
    random = np.random.default_rng(8)
    steps, lines = restarted(random), ["step,duration_s,rank,compute_s,wait_s"]
    for row, step in enumerate(steps):
        for rank in range(2):
            slow = 1.6 if rank == 1 and row > 0.6 * len(steps) else 1.0
            compute_s = 0.05 * np.exp(random.normal(0.0, 0.02)) * slow
            lines.append(f"{step},{compute_s + 0.02:.6g},{rank},{compute_s:.6g},0.02")
    (tmp_path / "iterations.csv").write_text("\n".join(lines))
    found = replay(read_folder(tmp_path), DetectionSettings(), names=["change_point", "peer_deviation"]).incidents
    assert [(one.kind, one.suspects[0].rank) for one in found] == [("slow_compute", 1)]
