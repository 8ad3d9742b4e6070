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
