"""What every launcher of the CATALOG must do: each operation once by its id, the truth on request, typed refusals."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from actions.launchers import CATALOG, ENTRY_POINTS
from actions.launchers.local.supervisor import Supervisor, SupervisorConfig
from trainwarden import plugins
from trainwarden.clock import SystemClock
from trainwarden.errors import ConfigError, LauncherError, LauncherUnavailable
from trainwarden.protocols import Launcher
from trainwarden.settings import Config

pytestmark = [pytest.mark.system, pytest.mark.timeout(60)]

JOB, RANKS = "job", 2
# Ranks that do nothing for long; a marker file per process shows how often each was started.
RANK = """
import os, pathlib, time
rank, run = os.environ["RANK"], os.environ["TRAINWARDEN_RUN_DIR"]
pathlib.Path(run, f"started-{rank}-{os.getpid()}").touch()
time.sleep(600)
"""


class Job:
    """A running job of one kind of launcher, and how to count what was really done."""

    def __init__(self, launcher: Launcher, starts: Callable[[], int], end: Callable[[], None]) -> None:
        self.launcher, self.starts, self.end = launcher, starts, end

    def wait(self, what: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 20.0
        while not what():
            assert time.monotonic() < deadline, self.launcher.state(JOB)
            time.sleep(0.02)


def local_job(run_dir: Path) -> Job:
    config = SupervisorConfig(mode="auto", stop_grace_s=1.0)
    command = [sys.executable, "-S", "-c", RANK]
    supervisor = Supervisor(command, RANKS, run_dir, JOB, "node", SystemClock(), config=config)
    over = threading.Event()
    thread = threading.Thread(target=lambda: supervisor.run(over.is_set))
    thread.start()

    def end() -> None:
        over.set()
        thread.join(20.0)
        assert not thread.is_alive()

    plugin = plugins.load(CATALOG, ENTRY_POINTS, "local")
    launcher = plugin(plugins.configure(plugin, {"run_dir": str(run_dir)}, "launcher"))
    return Job(launcher, lambda: len(list(run_dir.glob("started-*"))), end)


JOBS = {"local": local_job}


def test_every_launcher_is_under_this_contract() -> None:
    assert set(JOBS) == set(CATALOG)


@pytest.fixture(params=sorted(CATALOG))
def job(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Job]:
    made = JOBS[request.param](tmp_path)
    try:
        made.wait(lambda: made.starts() == RANKS)
        yield made
    finally:
        made.end()


@pytest.mark.parametrize("name", sorted(CATALOG))
def test_it_has_a_checked_config(name: str) -> None:
    plugin = plugins.load(CATALOG, ENTRY_POINTS, name)
    assert issubclass(plugin.Config, Config)
    with pytest.raises(ConfigError, match="unknown key"):
        plugins.configure(plugin, {"no_such_setting": 1}, "launcher")


def test_state_tells_what_is_true(job: Job) -> None:
    state = job.launcher.state(JOB)
    assert (state.job, state.phase, state.attempt) == (JOB, "running", 0)
    assert state.ranks_running == tuple(range(RANKS))
    assert state.operations == ()


def test_restart_happens_once_by_its_id(job: Job) -> None:
    for _ in range(3):
        job.launcher.restart(JOB, "op-1", None, "to see")
    job.wait(lambda: job.starts() == 2 * RANKS)
    state = job.launcher.state(JOB)
    assert (state.operations, state.attempt, state.phase) == (("op-1",), 1, "running")
    job.launcher.restart(JOB, "op-2", [1], "one rank only")
    job.wait(lambda: job.starts() == 2 * RANKS + 1)
    assert job.launcher.state(JOB).ranks_running == tuple(range(RANKS))


def test_the_same_operation_asked_twice_at_once_happens_once(job: Job) -> None:
    askers = [threading.Thread(target=job.launcher.restart, args=(JOB, "op", None, "twice")) for _ in range(4)]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join(20.0)
    job.wait(lambda: job.starts() == 2 * RANKS)
    time.sleep(0.2)
    assert job.starts() == 2 * RANKS
    assert job.launcher.state(JOB).attempt == 1


def test_rebalance_is_in_force_and_kept_by_a_repeat(job: Job) -> None:
    job.launcher.rebalance(JOB, "op-1", [5, 3], "slow")
    job.launcher.rebalance(JOB, "op-2", [6, 2], "slower")
    job.launcher.rebalance(JOB, "op-1", [5, 3], "a late repeat")
    state = job.launcher.state(JOB)
    assert state.micro_batches == (6, 2)
    assert state.operations == ("op-1", "op-2")


@pytest.mark.parametrize("counts", [[8], [8, 0], [9, 3], [1, 2, 3]])
def test_a_split_that_does_not_fit_is_refused(job: Job, counts: list[int]) -> None:
    job.launcher.rebalance(JOB, "good", [5, 3], "the global batch is 8")
    with pytest.raises(LauncherError) as caught:
        job.launcher.rebalance(JOB, "bad", counts, "mistake")
    assert not isinstance(caught.value, LauncherUnavailable)
    assert job.launcher.state(JOB).micro_batches == (5, 3)
    assert job.launcher.state(JOB).operations == ("good",)


def test_what_it_does_not_run_is_refused(job: Job) -> None:
    with pytest.raises(LauncherError):
        job.launcher.state("another")
    with pytest.raises(LauncherError):
        job.launcher.restart("another", "op", None, "")
    with pytest.raises(LauncherError):
        job.launcher.restart(JOB, "op", [RANKS], "")


def test_stop_ends_the_job(job: Job) -> None:
    job.launcher.stop(JOB, "op", None, "enough")
    job.end()
    with pytest.raises(LauncherUnavailable):
        job.launcher.state(JOB)
