"""Every launcher of the CATALOG keeps the contract, and so does one that is none of ours."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from actions.engine.service import make_launcher
from actions.launchers import CATALOG, ENTRY_POINTS
from actions.launchers.local.coordinator import SupervisorConfig
from actions.launchers.local.ranks import Place
from actions.launchers.local.supervisor import Supervisor
from tests.contract.launcher_contract import Caller, LauncherContract, Stage
from tests.memory_launcher import MemoryLauncher
from trainwarden import plugins
from trainwarden.clock import SystemClock
from trainwarden.errors import ConfigError
from trainwarden.launching import Plan
from trainwarden.protocols import Scope
from trainwarden.settings import Config, EngineSettings
from trainwarden.testing.launcher import CHECKS, Case, Check

# Ranks that do nothing for long; a marker file per process shows how often each was started.
RANK = """
import os, pathlib, time
rank, run = os.environ["RANK"], os.environ["TRAINWARDEN_RUN_DIR"]
pathlib.Path(run, f"started-{rank}-{os.getpid()}").touch()
time.sleep(600)
"""


class LocalStage:
    """Two ranks under a supervisor in a thread."""

    job, ranks = "job", 2

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        place = Place(
            command=(sys.executable, "-S", "-c", RANK), ranks=self.ranks, run_dir=run_dir, job=self.job, node="node"
        )
        supervisor = Supervisor(place, SystemClock(), config=SupervisorConfig(mode="auto", stop_grace_s=1.0))
        self._over = threading.Event()
        self._thread = threading.Thread(target=lambda: supervisor.run(self._over.is_set))
        self._thread.start()
        self.launcher = make_launcher(EngineSettings(), Scope(job=self.job, node="node", run_dir=str(run_dir)))

    def starts(self) -> int:
        return len(list(self._run_dir.glob("started-*")))

    def cut(self) -> None:
        self.close()

    def close(self) -> None:
        self._over.set()
        self._thread.join(20.0)
        assert not self._thread.is_alive()


class MemoryStage:
    """Two ranks that are only counted."""

    job, ranks = "job", 2

    def __init__(self, _: Path) -> None:
        self.launcher = MemoryLauncher(self.ranks, only=self.job)
        self.launcher.phase = "running"

    def starts(self) -> int:
        return self.launcher.starts

    def cut(self) -> None:
        self.launcher.unreachable = True

    def close(self) -> None:
        self.cut()


STAGES: dict[str, Callable[[Path], Stage]] = {"local": LocalStage}


def test_every_launcher_is_under_this_contract() -> None:
    assert set(STAGES) == set(CATALOG)


@pytest.mark.system
@pytest.mark.timeout(60)
class TestOurs(LauncherContract):
    @pytest.fixture(params=sorted(CATALOG))
    def stage(self, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stage]:
        made = STAGES[request.param](tmp_path)
        yield made
        made.close()


class TestNoneOfOurs(LauncherContract):
    @pytest.fixture
    def stage(self, tmp_path: Path) -> Iterator[Stage]:
        made = MemoryStage(tmp_path)
        yield made
        made.close()


@pytest.mark.system
@pytest.mark.timeout(60)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: str(check.__name__))
@pytest.mark.parametrize("name", sorted(CATALOG))
def test_what_third_parties_are_held_to_holds_of_ours(name: str, check: Check, tmp_path: Path) -> None:
    stage = STAGES[name](tmp_path)
    try:
        Caller(stage).running()
        plan = Plan(micro_batches=tuple(range(1, stage.ranks + 1)))
        check(Case(plugins.load(CATALOG, ENTRY_POINTS, name), stage.job, plan=plan, run_dir=str(tmp_path)))
    finally:
        stage.close()


@pytest.mark.parametrize("name", sorted(CATALOG))
def test_it_has_a_checked_config_and_is_made_with_a_scope(name: str, tmp_path: Path) -> None:
    plugin = plugins.load(CATALOG, ENTRY_POINTS, name)
    assert issubclass(plugin.Config, Config)
    assert plugin.__doc__
    assert plugin.Config.__doc__
    with pytest.raises(ConfigError, match="unknown key"):
        plugins.configure(plugin, {"no_such_setting": 1}, "launcher")
    launcher = make_launcher(EngineSettings(launcher=name), Scope(job="j", node="n", run_dir=str(tmp_path)))
    assert launcher.job in (None, "j")
    assert launcher.capabilities().can


def test_a_launcher_that_there_is_not_is_said_to_be_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no launchers plug-in 'slurmm'; there are: local"):
        make_launcher(EngineSettings(launcher="slurmm"), Scope(job="j", node="n", run_dir=str(tmp_path)))
