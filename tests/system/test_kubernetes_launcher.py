"""The engine takes a node out under a real API server: fault, cordon, restart elsewhere; whatever is killed when, once.

A launcher of the test's own stands before ours: it writes down every change that is asked for, and kills the engine
before or after one of them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.places import ROOT
from tests.servers.kube_cluster import NODES, KubeCluster, running
from tests.system.engine_world import EngineWorld
from trainwarden.bus.address import connect
from trainwarden.records import ActionRecord
from trainwarden.topics import ACTIONS

pytestmark = [pytest.mark.system, pytest.mark.timeout(180)]

PATIENCE_S: Final = 120.0
EVICT: Final = "i1/evict/1"
ENGINE: Final = """
import os, sys
from pathlib import Path
from trainwarden.actions.launchers.kubernetes.api import Api
folder, real = Path({folder!r}), Api._exchange
def exchange(self, method, path, body, media):
    if method == "GET" or "review" in path:
        return real(self, method, path, body, media)
    what = f"{{method}} {{path.rpartition('/')[2]}} {{sorted(k for k in (body.get('spec') or {{}}))}}"
    with (folder / "asked").open("a") as file:
        file.write(what + "\\n")
    aim = folder / "aim"
    hit = aim.exists() and what.startswith(aim.read_text())
    if hit:
        aim.unlink()
    if hit and (folder / "first").exists():
        os.kill(os.getpid(), 9)
    answer = real(self, method, path, body, media)
    if hit:
        os.kill(os.getpid(), 9)
    return answer
Api._exchange = exchange
sys.argv = ["trainwarden", "engine", "--config", str(folder / "site.toml")]
from trainwarden.cli.main import run
sys.exit(run())
"""
SETTINGS: Final = """
bus = "embedded:{folder}/bus.db"
[engine]
mode = "auto"
launcher = "kubernetes"
cool_down_s = 0.0
[engine.launcher_settings]
kubeconfig = "{kubeconfig}"
kind = "{kind}"
timeout_s = 2.0
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeCluster]:
    with running(tmp_path_factory.mktemp("kubernetes") / "server") as made:
        yield made


class World(EngineWorld):
    """A job of two pods, an engine, and the bus between the test and the engine."""

    bad = "n1"

    def __init__(self, cluster: KubeCluster, folder: Path, kind: str = "JobSet", elastic: bool = False) -> None:
        self.cluster, self.folder, self.kind = cluster, folder, kind
        settings = SETTINGS.format(
            folder=folder, kubeconfig=cluster.server.kubeconfig(folder / "kubeconfig"), kind=kind
        )
        (folder / "site.toml").write_text(settings)
        (folder / "engine.py").write_text(ENGINE.format(folder=str(folder)))
        self.bus = connect(f"embedded:{folder}/bus.db")
        self.name = "job"
        self.engines: list[subprocess.Popen[bytes]] = []
        cluster.submit(kind, self.name, elastic)
        self.until(lambda: len(self.starts()) == 2)

    def start_engine(self) -> subprocess.Popen[bytes]:
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path[1:]])}
        with (self.folder / "engine.log").open("ab") as log:
            command = [sys.executable, str(self.folder / "engine.py")]
            self.engines.append(subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder, env=environ))
        return self.engines[-1]

    def kill_engines(self) -> None:
        for engine in self.engines:
            engine.kill()
            engine.wait()
        self.engines.clear()

    def starts(self) -> list[str]:
        """The nodes of the pods that were started, in that order."""
        return [node for _, _, _, node in self.cluster.started]

    def asked(self, *words: str) -> list[str]:
        path = self.folder / "asked"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line for line in lines if line.startswith(words or "")]

    def job(self) -> dict[str, Any]:
        return self.cluster.job(self.kind, self.name)

    def suspended(self) -> bool:
        spec = self.job()["spec"]
        return bool(spec.get("suspend") or (spec.get("runPolicy") or {}).get("suspend"))

    def until(self, true: Callable[[], object]) -> None:
        end_s = time.monotonic() + PATIENCE_S
        while not true():
            if time.monotonic() > end_s:
                log = (self.folder / "engine.log").read_text()[-3000:] if self.engines else ""
                raise AssertionError("\n".join([str(self.story()), *self.asked(), str(self.cluster.errors[-3:]), log]))
            time.sleep(0.1)

    def done(self, action: str = EVICT) -> None:
        self.until(lambda: (action, "done") in self.story())

    def close(self) -> None:
        self.kill_engines()
        self.bus.close()
        self.cluster.server.signal_server(signal.SIGCONT)
        self.cluster.idle = False
        self.cluster.clean()


@pytest.fixture
def world(cluster: KubeCluster, tmp_path: Path) -> Iterator[World]:
    made = World(cluster, tmp_path)
    yield made
    made.close()


def moved_once(world: World) -> None:
    """The job runs on other nodes, after one restart; the node is out with our mark; the rest is as it was."""
    time.sleep(0.7)  # time for something to happen twice
    assert world.starts() == ["n1", "n2", "n2", "n3"]
    assert not world.suspended()
    node = world.cluster.node("n1")
    assert node["spec"]["unschedulable"]
    assert node["metadata"]["annotations"]["trainwarden/cordoned"] == f"{EVICT} gpu_lost: GPU 3 fell off the bus"
    conditions = {one["type"]: one for one in node["status"]["conditions"]}
    assert conditions["TrainwardenFault"]["status"] == "True"
    assert conditions["Ready"]["status"] == "True"
    assert [outcome for action, outcome in world.story() if action == EVICT].count("started") == 1
    assert not [action for action, _ in world.story() if action != EVICT]


@pytest.mark.parametrize("kind", ["JobSet", "PyTorchJob"])
def test_a_node_at_fault_is_cordoned_and_the_job_runs_elsewhere(
    cluster: KubeCluster, tmp_path: Path, kind: str
) -> None:
    world = World(cluster, tmp_path, kind)
    try:
        world.start_engine()
        world.tell()
        world.done()
        moved_once(world)
        assert [line for line in world.asked() if " job []" not in line] == [
            "PATCH n1 ['unschedulable']",
            "PATCH status []",
            "POST eviction []",
            f"PATCH job ['{'suspend' if kind == 'JobSet' else 'runPolicy'}']",
            f"PATCH job ['{'suspend' if kind == 'JobSet' else 'runPolicy'}']",
        ]
    finally:
        world.close()


def test_an_elastic_jobs_pod_alone_is_evicted(cluster: KubeCluster, tmp_path: Path) -> None:
    world = World(cluster, tmp_path, "PyTorchJob", elastic=True)
    try:
        world.start_engine()
        world.tell()
        world.done()
        time.sleep(0.7)
        assert world.starts() == ["n1", "n2", "n3"]
        assert not world.asked("PATCH job ['")
    finally:
        world.close()


def test_what_is_delivered_again_is_not_done_again(world: World) -> None:
    world.start_engine()
    world.tell()
    world.tell()
    world.done()
    for revision in (0, 0, 1):
        world.tell(revision=revision)
    world.kill_engines()
    world.start_engine()
    world.tell(revision=2)
    time.sleep(3.0)
    moved_once(world)
    assert len(world.asked("PATCH job ['suspend']")) == 2


def test_two_engines_of_one_group_move_it_once(world: World) -> None:
    world.start_engine()
    world.start_engine()
    world.tell()
    world.done()
    moved_once(world)


STEPS: Final = ("PATCH job []", "PATCH n1", "PATCH status", "POST eviction", "PATCH job ['suspend']")


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.thorough
def test_an_engine_killed_at_any_step_leaves_it_to_the_next(world: World, step: str, when: str) -> None:
    (world.folder / "aim").write_text(step)
    if when == "before":
        (world.folder / "first").touch()
    engine = world.start_engine()
    world.tell()
    assert engine.wait(PATIENCE_S) == -signal.SIGKILL
    (world.folder / "first").unlink(missing_ok=True)
    world.start_engine()
    world.done()
    moved_once(world)


def test_an_api_server_that_is_silent_is_waited_for(world: World) -> None:
    """Silent before the fault is told: nothing is begun. Silent in the midst of it: it goes on afterwards."""
    server, cluster = world.cluster.server, world.cluster
    cluster.idle = True
    time.sleep(0.5)
    server.signal_server(signal.SIGSTOP)
    world.start_engine()
    world.tell()
    time.sleep(5.0)
    assert world.story() == []
    server.signal_server(signal.SIGCONT)
    world.until(lambda: world.asked("PATCH job ['suspend']"))  # and its pods do not end, as nobody plays
    server.signal_server(signal.SIGSTOP)
    time.sleep(5.0)
    server.signal_server(signal.SIGCONT)
    cluster.idle = False
    world.done()
    moved_once(world)


def test_a_node_that_a_person_has_cordoned_keeps_the_persons_cordon(world: World) -> None:
    assert world.cluster.server.kubectl("cordon", "n1").returncode == 0
    world.start_engine()
    world.tell()
    world.done()
    assert world.starts() == ["n1", "n2", "n2", "n3"]
    node = world.cluster.node("n1")
    assert node["spec"]["unschedulable"]
    assert "trainwarden/cordoned" not in node["metadata"].get("annotations", {})
    assert not world.asked("PATCH n1")
    assert not world.asked("PATCH status")


def test_a_person_who_puts_the_node_back_meanwhile_is_obeyed(world: World) -> None:
    for node in ("n3", "n4"):
        assert world.cluster.server.kubectl("cordon", node).returncode == 0
    world.start_engine()
    world.tell()
    world.until(lambda: len(world.starts()) == 3)  # one pod waits for a node
    time.sleep(1.0)
    assert (EVICT, "done") not in world.story()
    assert world.cluster.server.kubectl("uncordon", "n1").returncode == 0
    assert world.cluster.server.kubectl("uncordon", "n3").returncode == 0
    world.until(lambda: len(world.starts()) == 4)
    time.sleep(1.0)
    assert not world.cluster.node("n1")["spec"].get("unschedulable")
    assert len(world.asked("PATCH n1")) == 1


def test_a_disruption_budget_holds_an_eviction_until_it_allows_it(world: World) -> None:
    budget = (
        "create", "poddisruptionbudget", "all", "--selector=jobset.sigs.k8s.io/jobset-name=job", "--min-available=2",
    )  # fmt: skip
    assert world.cluster.server.kubectl(*budget).returncode == 0
    world.start_engine()
    world.tell()
    world.until(lambda: len(world.asked("POST eviction")) > 1)
    assert not world.suspended()
    assert world.starts() == ["n1", "n2"]
    assert world.cluster.server.kubectl("delete", "poddisruptionbudget", "all").returncode == 0
    world.done()
    moved_once(world)


def test_a_lost_node_keeps_no_job_down(world: World) -> None:
    world.cluster.ready("n1", "Unknown")
    world.start_engine()
    world.tell("node_lost")
    world.done()
    assert world.starts() == ["n1", "n2", "n2", "n3"]
    left = [pod for pod in world.cluster.pods("JobSet", "job") if "deletionTimestamp" in pod["metadata"]]
    assert [pod["spec"]["nodeName"] for pod in left] == ["n1"]


def test_a_right_that_is_missing_is_said_and_nothing_is_done(world: World) -> None:
    server = world.cluster.server
    rule = "--type=json", '-p=[{"op": "remove", "path": "/rules/1"}]'
    assert server.kubectl("patch", "clusterrole", "engine", *rule).returncode == 0
    try:
        world.start_engine()
        world.tell()
        world.until(lambda: "skipped" in [outcome for _, outcome in world.story()])
        [said] = [a for m in world.bus.read(ACTIONS) if isinstance(a := m.record, ActionRecord)]
        assert "this engine has no right to patch nodes/status, or set node_conditions = false" in said.why
        assert world.asked() == []
    finally:
        world.cluster.grant()
    assert world.starts() == list(NODES[:2])
