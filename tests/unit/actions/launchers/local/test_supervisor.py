"""The local launcher's process: what it refuses to start, and whom it waits for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.doubles import ManualClock
from trainwarden.actions.launchers.local.coordinator import SupervisorConfig
from trainwarden.actions.launchers.local.ranks import LocalJob
from trainwarden.actions.launchers.local.supervisor import Supervisor
from trainwarden.clock import SystemClock
from trainwarden.errors import ConfigError
from trainwarden.settings import parse


def place(run_dir: Path, command: list[str], ranks: int) -> LocalJob:
    return LocalJob(command=tuple(command), ranks=ranks, run_dir=run_dir, job="job", node="node")


def test_who_is_waited_for_depends_on_the_mode() -> None:
    graces = [SupervisorConfig(mode=mode).failure_grace_s for mode in ("observe", "auto", "confirm")]
    assert graces == sorted(graces)
    with pytest.raises(ConfigError, match="mode"):
        parse(SupervisorConfig, {"mode": "yolo"}, "launch")


@pytest.mark.parametrize(("command", "ranks"), [([], 1), (["true"], 0)])
def test_a_launch_of_nothing_is_refused(command: list[str], ranks: int, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs a command"):
        Supervisor(place(tmp_path, command, ranks), ManualClock())


def test_a_run_folder_may_lie_deeper_than_a_socket_address_is_long(tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 120)
    stopped = Supervisor(place(deep, ["true"], 1), SystemClock())
    assert stopped.run() == 0
