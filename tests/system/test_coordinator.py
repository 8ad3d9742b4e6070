"""The coordinator over real torchrun jobs on shared nodes: a node killed and returned, a job finished, one launched."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.places import ROOT
from tests.system.runs import WARDEN
from tests.system.torchrun_nodes import TorchrunNodes, start_torchrun, until
from tests.torch_forks import Forked, TorchForks
from trainwarden.actions.launchers.torchrun.client import TorchrunLauncher
from trainwarden.errors import LauncherUnavailable
from trainwarden.protocols import Scope

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]
RANK = str(ROOT / "tests" / "scripts" / "torchrun_rank.py")
SETTINGS = """
bus = "embedded:{folder}/bus.db"
[engine]
mode = "auto"
launcher = "torchrun"
cool_down_s = 0.0
actions_per_hour = 1000
    [engine.launcher_settings]
    endpoint = "127.0.0.1:{port}"
    token_file = "{folder}/token"
[coordinator]
running_s = 3600.0
transition_s = 10.0
    [[coordinator.tasks]]
    job = "a"
    maximum = 3
    throughput = [0.0, 1.0, 1.9, 2.7]
"""


class Jobs:
    """torchrun jobs that share nodes; every node has a held torchrun of each job, and one coordinator decides."""

    def __init__(self, folder: Path, forks: TorchForks) -> None:
        self.folder, self._forks = folder, forks
        self.nodes = TorchrunNodes(folder, RANK, str(folder / "out"), lost_after_s=30.0)
        self.config = folder / "settings.toml"
        self.config.write_text(SETTINGS.format(folder=folder, port=self.nodes.port))
        self.processes: dict[tuple[str, str], subprocess.Popen[bytes] | Forked] = {}
        self.service = self._serve()

    def _serve(self) -> subprocess.Popen[bytes]:
        words = ["coordinator", "--config", str(self.config), "--run-dir", str(self.folder / "run")]
        with (self.folder / "coordinator.log").open("ab") as log:
            return subprocess.Popen(
                [*WARDEN, *words, "--with-parent", str(os.getpid())], stdout=log, stderr=log, cwd=ROOT
            )

    def start(self, job: str, *names: str, nnodes: str, weight: float) -> None:
        out = self.folder / f"out-{job}"
        out.mkdir(exist_ok=True)
        for name in names:
            environ = {
                **os.environ, "TRAINWARDEN_NODE": name, "OMP_NUM_THREADS": "1",
                "TRAINWARDEN_RUN_DIR": str(self.folder / f"run-{job}-{name}"),
                "PYTHONPATH": f"{self.folder / 'entry'}{os.pathsep}{ROOT}",
                "PET_RDZV_BACKEND": "trainwarden", "PET_RDZV_ENDPOINT": f"127.0.0.1:{self.nodes.port}",
                "PET_RDZV_ID": job, "PET_NNODES": nnodes, "PET_NPROC_PER_NODE": "1",
                "PET_RDZV_CONF": f"token_file={self.folder / 'token'},weight={weight},held=yes,last_call_timeout=3",
            }  # fmt: skip
            self.processes[job, name] = start_torchrun(
                (RANK, str(out)), environ, self.folder, self.folder / f"{job}-{name}.log", self._forks
            )

    def kill(self, name: str) -> None:
        """The node is lost: all that runs there ends at once."""
        for (_, node), process in self.processes.items():
            if node == name:
                process.kill()
                process.wait()

    def finish(self, job: str) -> None:
        (self.folder / f"out-{job}" / "end").touch()

    def placed(self, job: str) -> list[str]:
        """Nodes on which ranks of `job` run."""
        settings = TorchrunLauncher.Config(
            endpoint=f"127.0.0.1:{self.nodes.port}", token_file=str(self.folder / "token")
        )
        try:
            state = TorchrunLauncher(settings, Scope(job=job, node="n", run_dir="")).state(job)
        except LauncherUnavailable:
            return []  # none of its torchruns has come yet
        running = state.phase == "running"
        return sorted(one.node for one in state.nodes if one.ranks and one.state == "healthy") if running else []

    def live(self) -> dict[str, Any]:
        """What `plan cluster --live` answers."""
        words = [*WARDEN, "plan", "cluster", "--live", "--config", str(self.config), "--json"]
        found = subprocess.run(words, capture_output=True, check=False, cwd=ROOT)
        assert found.returncode in (0, 3), found.stderr
        answer: dict[str, Any] = json.loads(found.stdout)
        return answer

    def reaches(self, **sizes: int) -> dict[str, list[str]]:
        """Where ranks run, once each job runs on so many nodes and the coordinator has said so."""

        def there() -> bool:
            return {job: len(self.placed(job)) for job in sizes} == sizes

        until(there, f"{sizes} is not reached; see {self.folder}")
        until(lambda: planned(self.live()) == sizes, f"{sizes} was not planned; see {self.folder}")
        placed = {job: self.placed(job) for job in sizes}
        nodes = [node for names in placed.values() for node in names]
        assert len(nodes) == len(set(nodes))
        return placed

    def close(self) -> None:
        self.service.terminate()
        for process in self.processes.values():
            process.kill()
            process.wait()
        self.service.wait(30)
        self.nodes.close()


def planned(answer: dict[str, Any]) -> dict[str, int]:
    return {row["job"]: row["planned"] for row in answer["tasks"]}


@pytest.fixture
def jobs(torch_forks: TorchForks, tmp_path: Path) -> Iterator[Jobs]:
    made = Jobs(tmp_path, torch_forks)
    yield made
    made.close()


def test_nodes_go_where_the_planner_has_them_through_a_loss_a_return_an_end_and_a_launch(jobs: Jobs) -> None:
    nodes = ("n1", "n2", "n3")
    jobs.start("a", *nodes, nnodes="1:3", weight=1.0)
    jobs.start("b", *nodes, nnodes="1:1", weight=3.0)
    placed = jobs.reaches(a=2, b=1)

    [lost] = placed["b"]  # the heavier job gets a node of the lighter one's
    jobs.kill(lost)
    jobs.reaches(a=1, b=1)
    answer = jobs.live()
    assert answer["waf"]["now"] > answer["waf"]["restart_only"]
    assert next(row["assumed"] for row in answer["tasks"] if row["job"] == "a") == []
    assert next(row["assumed"] for row in answer["tasks"] if row["job"] == "b") == [1]

    jobs.start("a", lost, nnodes="1:3", weight=1.0)
    jobs.start("b", lost, nnodes="1:1", weight=3.0)
    jobs.reaches(a=2, b=1)

    jobs.finish("b")
    jobs.reaches(a=3)

    jobs.start("c", *nodes, nnodes="2:2", weight=3.0)
    jobs.reaches(a=1, c=2)
    answer = jobs.live()
    # Not their sums over these few seconds, in which a change has not yet repaid its start.
    assert answer["waf"]["now"] >= answer["waf"]["restart_only"]
    assert answer["mode"] == "auto"
