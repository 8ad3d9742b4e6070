"""The demo of a lost node, as a person runs it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from tests.system.runs import WARDEN
from trainwarden.checkpoints.newest import newest
from trainwarden.cli.run.machines import why_none

pytestmark = [pytest.mark.system, pytest.mark.timeout(240)]


def test_a_lost_node_is_shown_to_be_replaced(tmp_path: Path, require_servers: Callable[[str], NoReturn]) -> None:
    pytest.importorskip("torch")
    if (reason := why_none()) is not None:
        require_servers(reason)
    answer = tmp_path / "out.json"
    environ = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}
    command = [*WARDEN, "demo", "--fault", "node-lost", "--nodes", "3", "--json", str(answer)]
    done = subprocess.run(command, check=False, env=environ, capture_output=True, text=True, timeout=220)
    try:
        said = json.loads(answer.read_text())
    except (OSError, ValueError) as error:
        raise AssertionError(f"{done.stdout}{done.stderr}") from error
    assert (done.returncode, said["why_not"]) == (0, None), done.stdout
    first, last = said["attempts"][0]["nodes"], said["attempts"][-1]["nodes"]
    assert len(first) == len(last) == 2
    assert said["fault"]["node"] in first
    assert said["fault"]["node"] not in last
    assert set(said["exit_codes"].values()) == {0}


@pytest.mark.timeout(700)
def test_a_lost_node_s_checkpoint_comes_from_its_neighbour_s_memory(
    tmp_path: Path, require_servers: Callable[[str], NoReturn]
) -> None:
    """The one that is lost has rank 0, which alone has written checkpoints; each machine has a tmpfs of its own."""
    pytest.importorskip("torch")
    if (reason := why_none()) is not None:
        require_servers(reason)
    answer = tmp_path / "out.json"
    environ = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}
    command = [*WARDEN, "demo", "--fault", "node-lost", "--nodes", "3", "--checkpoints", "--within", "600", "--json"]
    done = subprocess.run(
        [*command, str(answer)], check=False, env=environ, capture_output=True, text=True, timeout=650
    )
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    said = json.loads(answer.read_text())
    assert said["why_not"] is None
    assert said["fault"]["node"] == "node-1"
    assert said["restored"]["from"] == {"node-0": "memory", "node-2": "the neighbour's memory of node-0"}
    assert 0 < said["restored"]["lost_steps"] <= 10
    assert said["restored"]["step"] > 0
    assert "node-2 from the neighbour's memory of node-0. Lost: " in said["summary"]
    (store,) = tmp_path.glob("trainwarden/runs/*/nodes/checkpoints")
    assert newest(store).step == 30  # the last of 35 steps, written when the job ended
