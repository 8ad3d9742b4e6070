"""`trainwarden watch` on a job one of whose ranks waits for its data loader."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.system.runs import Watched, forked
from tests.torch_forks import TorchForks

pytestmark = [pytest.mark.system, pytest.mark.timeout(240)]


def test_a_stalled_loader_is_named_with_its_rank_and_line(torch_forks: TorchForks, tmp_path: Path) -> None:
    command = forked(torch_forks, 2, "loader.py", "--stall-at", "20", "--steps", "40")
    result = Watched(tmp_path, command, None, 1.0).run(180)
    assert result["exit_code"] == 0, result["log"]
    (incident,) = result["incidents"]
    assert (incident["kind"], [one["rank"] for one in incident["suspects"]]) == ("data_stall", [1]), result["log"]
    assert incident["reason"].startswith("rank 1 spent "), result["log"]
    assert " s in data, " in incident["reason"]
    assert incident["closed_at_s"] > incident["opened_at_s"]
    assert incident["closed_at_s"] - incident["onset_s"] > 19.0
    assert incident["opened_at_s"] < incident["onset_s"] + 19.0, "while it lasts"
