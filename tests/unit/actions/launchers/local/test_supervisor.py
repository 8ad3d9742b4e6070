"""The local launcher's process: what it refuses to start, and whom it waits for."""

from __future__ import annotations

from pathlib import Path

import pytest

from actions.launchers.local.control import MAX_PATH_BYTES
from actions.launchers.local.coordinator import SupervisorConfig
from actions.launchers.local.ranks import Place
from actions.launchers.local.supervisor import Supervisor
from tests.doubles import ManualClock
from trainwarden.errors import ConfigError
from trainwarden.settings import parse


def place(run_dir: Path, command: list[str], ranks: int) -> Place:
    return Place(command=tuple(command), ranks=ranks, run_dir=run_dir, job="job", node="node")


def test_who_is_waited_for_depends_on_the_mode() -> None:
    graces = [SupervisorConfig(mode=mode).failure_grace_s for mode in ("observe", "auto", "confirm")]
    assert graces == sorted(graces)
    with pytest.raises(ConfigError, match="mode"):
        parse(SupervisorConfig, {"mode": "yolo"}, "launch")


@pytest.mark.parametrize(("command", "ranks"), [([], 1), (["true"], 0)])
def test_a_launch_of_nothing_is_refused(command: list[str], ranks: int, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs a command"):
        Supervisor(place(tmp_path, command, ranks), ManualClock())


def test_a_run_folder_too_deep_for_a_socket_is_refused(tmp_path: Path) -> None:
    deep = tmp_path / ("x" * MAX_PATH_BYTES)
    with pytest.raises(ConfigError, match="too long"):
        Supervisor(place(deep, ["true"], 1), ManualClock()).run()
