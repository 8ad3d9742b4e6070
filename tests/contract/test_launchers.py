"""Every launcher of the CATALOG keeps the contract, and so does one that is none of ours."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import msgspec
import pytest

from tests.contract.launcher_contract import PATIENCE_S, Caller, LauncherContract, Stage
from tests.memory_launcher import ALL_ITS_VERBS, ALONE, MemoryLauncher
from tests.servers.kube_cluster import KubeCluster, running
from tests.servers.slurm import Slurm, requeuing
from tests.servers.webhook import SECRET, WebhookService
from trainwarden import plugins
from trainwarden.actions.engine.service import make_launcher
from trainwarden.actions.launchers import CATALOG, ENTRY_POINTS
from trainwarden.actions.launchers.torchrun.service import RendezvousService
from trainwarden.clock import BootClock
from trainwarden.errors import ConfigError, LauncherUnavailable
from trainwarden.launching import Capabilities, Operation, Plan
from trainwarden.protocols import Scope
from trainwarden.settings import Config, EngineSettings, parse
from trainwarden.testing.launcher import CHECKS, Case, Check
from trainwarden.torchrun.agent import Agent, Begin, Over, Unreachable
from trainwarden.torchrun.agent import Place as AgentPlace
from trainwarden.torchrun.line import Endpoints

# Ranks that do nothing for long; a marker file per process shows how often each was started.
RANK = """
import os, pathlib, time
rank, run = os.environ["RANK"], os.environ["TRAINWARDEN_RUN_DIR"]
pathlib.Path(run, f"started-{rank}-{os.getpid()}").touch()
time.sleep(600)
"""


# The same under Slurm, one on each of two nodes of four.
BATCH = """#!/bin/sh
srun sh -c 'touch {run_dir}/started-$SLURM_PROCID-$SLURM_RESTART_COUNT-$SLURMD_NODENAME; exec sleep 600'
"""
FOUR_NODES = ("n1", "n2", "n3", "n4")


class SlurmStage:
    """A batch job of two nodes under a real Slurm, which other stages share."""

    job, ranks = "job", 2

    def __init__(self, run_dir: Path, slurm: object) -> None:
        assert isinstance(slurm, Slurm)
        self._run_dir, self._slurm = run_dir, slurm
        script = run_dir / "job.sh"
        script.write_text(BATCH.format(run_dir=run_dir))
        words = ("--nodes=2", "--ntasks-per-node=1", "--job-name=job", "--comment=theirs", f"--output={run_dir}/out")
        self.number = slurm.ask("sbatch", "--parsable", *words, str(script))
        self.settings = {
            "slurm_conf": str(slurm.conf), "ranks_per_node": 1, "timeout_s": 5.0, "jobs": {self.job: int(self.number)},
            "checkpoints": {self.job: {"folder": str(run_dir), "signal": "USR1"}}, "validate": {"folder": str(run_dir)},
        }  # fmt: skip
        engine = EngineSettings(launcher="slurm", launcher_settings=self.settings)
        self.launcher = make_launcher(engine, Scope(job=self.job, node="node", run_dir=str(run_dir)))

    def starts(self) -> int:
        return len(list(self._run_dir.glob("started-*")))

    def cut(self) -> None:
        self._slurm.signal_controller(signal.SIGSTOP)

    def close(self) -> None:
        self._slurm.signal_controller(signal.SIGCONT)
        self._slurm.ask("scancel", self.number)
        for node in FOUR_NODES:
            self._slurm.ask("scontrol", "update", f"NodeName={node}", "State=RESUME")
        for node in FOUR_NODES:
            self._slurm.wait_for_state("IDLE", node=node)


class KubernetesStage:
    """A JobSet of two pods on a real API server, which other stages share."""

    job, ranks = "job", 2

    def __init__(self, run_dir: Path, cluster: object) -> None:
        assert isinstance(cluster, KubeCluster)
        self._cluster = cluster
        self.settings = {"kubeconfig": str(cluster.server.kubeconfig(run_dir / "kubeconfig")), "ranks_per_pod": 1}
        engine = EngineSettings(launcher="kubernetes", launcher_settings=self.settings)
        self.launcher = make_launcher(engine, Scope(job=self.job, node="node", run_dir=str(run_dir)))
        cluster.submit("JobSet", self.job)

    def starts(self) -> int:
        return len(self._cluster.started)

    def cut(self) -> None:
        self._cluster.idle = True
        self._cluster.server.signal_server(signal.SIGSTOP)

    def close(self) -> None:
        self._cluster.server.signal_server(signal.SIGCONT)
        self._cluster.idle = False
        self._cluster.clean()


class TorchrunNode:
    """What torchrun does on one node: `trainwarden.torchrun` takes part for it, and it starts one rank a round."""

    def __init__(self, folder: Path, node: str, job: str, address: str, stop: threading.Event) -> None:
        self._folder, self._stop, self._rank = folder, stop, subprocess.Popen(["true"])
        self._rank.wait()
        host, port = address.rsplit(":", 1)
        endpoints = Endpoints(((host, int(port)),))
        place = AgentPlace(job, node, 2, 2, "127.0.0.1")
        self._agent = Agent(place, endpoints, lambda new: self._put(new[-1]["number"]))
        self._agent.start()

    def _put(self, number: int) -> None:
        self._agent.update(split=number)

    def run(self) -> None:
        """Until the job is over, or nobody waits for its end any more."""
        try:
            while not self._stop.is_set():
                self._one_round(self._agent.wait_for_round(1, patience_s=8.0))
        except (Over, Unreachable):
            pass
        finally:
            self._rank.kill()
            self._rank.wait()
            self._agent.close()

    def _one_round(self, begin: Begin) -> None:
        self._folder.mkdir(exist_ok=True)
        environ = {**os.environ, "RANK": str(begin.rank), "TRAINWARDEN_RUN_DIR": str(self._folder)}
        self._rank = subprocess.Popen([sys.executable, "-S", "-c", RANK], env=environ)
        until_s = time.monotonic() + PATIENCE_S
        while not list(self._folder.glob(f"started-*-{self._rank.pid}")) and time.monotonic() < until_s:
            time.sleep(0.02)
        self._agent.update(ranks=[begin.rank], alive=[begin.rank])
        while not self._agent.has_to_stop and not self._stop.wait(0.02):
            pass
        self._rank.terminate()
        self._rank.wait()


class TorchrunStage:
    """Two ranks on two nodes of four, each as torchrun runs them, at a real rendezvous service."""

    ranks = 2

    def __init__(self, run_dir: Path, _: object) -> None:
        self._run_dir, self._over, self._gone = run_dir, threading.Event(), threading.Event()
        ready, address = threading.Event(), list[str]()
        service = RendezvousService("127.0.0.1:0", BootClock(), lost_after_s=30.0)
        self._service = threading.Thread(
            target=service.run, args=(self._gone.is_set, lambda one: (address.append(one), ready.set()))
        )
        self._service.start()
        assert ready.wait(PATIENCE_S)
        self.job, self.settings = run_dir.name[:100], {"endpoint": address[0]}
        nodes = [TorchrunNode(run_dir / name, name, self.job, address[0], self._over) for name in FOUR_NODES]
        self._threads = [threading.Thread(target=node.run) for node in nodes]
        for thread in self._threads:
            thread.start()
        engine = EngineSettings(launcher="torchrun", launcher_settings=self.settings)
        self.launcher = make_launcher(engine, Scope(job=self.job, node="node", run_dir=str(run_dir)))
        until_s = time.monotonic() + PATIENCE_S
        while not self._all_there():
            assert time.monotonic() < until_s
            time.sleep(0.05)

    def _all_there(self) -> bool:
        try:
            return len(self.launcher.state(self.job).nodes) == len(FOUR_NODES)
        except LauncherUnavailable:
            return False

    def starts(self) -> int:
        return len(list(self._run_dir.glob("*/started-*")))

    def cut(self) -> None:
        self._gone.set()
        self._service.join(PATIENCE_S)

    def close(self) -> None:
        self._over.set()
        with suppress(LauncherUnavailable):
            stop = Operation(id="the-end", job=self.job, kind="stop", expected_generation=0)
            generation = self.launcher.state(self.job).generation
            self.launcher.submit(msgspec.structs.replace(stop, expected_generation=generation))
        for thread in self._threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
        self.cut()


class WebhookStage:
    """Two ranks that are only counted, behind a service of their own."""

    job, ranks = "job", 2

    def __init__(self, run_dir: Path, _: object) -> None:
        self._memory = MemoryLauncher(self.ranks, only=self.job)
        self._memory.phase = "running"
        self._memory.able = Capabilities(can=ALL_ITS_VERBS | ALONE, cannot=self._memory.able.cannot)
        self._service = WebhookService(self._memory)
        (run_dir / "secret").write_bytes(SECRET)
        self.settings = {"url": self._service.url, "secret_file": str(run_dir / "secret")}
        engine = EngineSettings(launcher="webhook", launcher_settings=self.settings)
        self.launcher = make_launcher(engine, Scope(job=self.job, node="node", run_dir=str(run_dir)))

    def starts(self) -> int:
        return self._memory.starts

    def cut(self) -> None:
        self._service.close()

    def close(self) -> None:
        self.cut()


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


Ours = KubernetesStage | SlurmStage | TorchrunStage | WebhookStage
STAGES: dict[str, Callable[[Path, object], Ours]] = {
    "kubernetes": KubernetesStage, "slurm": SlurmStage, "torchrun": TorchrunStage, "webhook": WebhookStage,
}  # fmt: skip


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory, require_servers: Callable[[str], NoReturn]) -> Iterator[Slurm]:
    with requeuing(tmp_path_factory.mktemp("slurm") / "slurm", FOUR_NODES, require_servers) as server:
        yield server


@pytest.fixture(scope="session")
def kubernetes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeCluster]:
    with running(tmp_path_factory.mktemp("kubernetes") / "server") as cluster:
        yield cluster


def made(name: str, request: pytest.FixtureRequest) -> Ours:
    server = request.getfixturevalue(name) if name in ("kubernetes", "slurm") else None
    return STAGES[name](request.getfixturevalue("tmp_path"), server)


def test_every_launcher_is_under_this_contract() -> None:
    assert set(STAGES) == set(CATALOG)


@pytest.mark.system
@pytest.mark.timeout(60)
class TestOurs(LauncherContract):
    @pytest.fixture(params=sorted(CATALOG))
    def stage(self, request: pytest.FixtureRequest) -> Iterator[Stage]:
        stage = made(request.param, request)
        yield stage
        stage.close()


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
def test_what_third_parties_are_held_to_holds_of_ours(
    name: str, check: Check, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    stage = made(name, request)
    try:
        Caller(stage).running()
        plan = Plan(micro_batches=tuple(range(1, stage.ranks + 1)))
        check(Case(plugins.load(CATALOG, ENTRY_POINTS, name), stage.job, stage.settings, plan, str(tmp_path)))
    finally:
        stage.close()


@pytest.mark.parametrize("name", sorted(CATALOG))
def test_it_has_a_checked_config_and_is_made_with_a_scope(name: str, tmp_path: Path) -> None:
    if name == "kubernetes":
        pytest.importorskip("kubernetes", reason="pip install 'trainwarden[kubernetes]'")
    plugin = plugins.load(CATALOG, ENTRY_POINTS, name)
    assert issubclass(plugin.Config, Config)
    assert plugin.__doc__
    assert plugin.Config.__doc__
    with pytest.raises(ConfigError, match="unknown key"):
        plugins.configure(plugin, {"no_such_setting": 1}, "launcher")
    (tmp_path / "secret").write_bytes(SECRET)
    needs = {
        "webhook": {"url": "https://service.example/", "secret_file": str(tmp_path / "secret")},
    }
    engine = EngineSettings(launcher=name, launcher_settings=needs.get(name, {}))
    launcher = make_launcher(engine, Scope(job="j", node="n", run_dir=str(tmp_path)))
    assert launcher.job in (None, "j")


def test_a_launcher_that_there_is_not_is_said_to_be_none(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError,
        match="there is no launchers plug-in 'slurmm'; there are: kubernetes, slurm, torchrun, webhook",
    ):
        make_launcher(EngineSettings(launcher="slurmm"), Scope(job="j", node="n", run_dir=str(tmp_path)))


def test_the_launcher_of_earlier_versions_names_its_successor() -> None:
    with pytest.raises(ConfigError, match="engine: launcher 'local' is gone, use 'torchrun'"):
        parse(EngineSettings, {"launcher": "local"}, "engine")
