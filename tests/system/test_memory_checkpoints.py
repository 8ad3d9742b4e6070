"""Checkpoints in memory of a real DDP job on two nodes, with real keepers, mutual TLS and kill -9."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.places import ROOT
from tests.servers.certificates import Authority
from tests.servers.ports import free_ports
from tests.system.runs import SCRIPTS, WARDEN
from tests.torch_forks import Forked, TorchForks
from trainwarden.cli.ask.checkpoints import checkpoints
from trainwarden.errors import NotJudged

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]
PATIENCE_S = 240.0
NODES = "ab"


class Cluster:
    """Two nodes of one rank each: a keeper, a folder of memory, and what can be done to them."""

    def __init__(self, folder: Path, forks: TorchForks) -> None:
        self.folder, self._forks, self._authority = folder, forks, Authority(folder)
        self.addresses = {node: ("127.0.0.1", port) for node, port in zip(NODES, free_ports(2), strict=True)}
        self.certificates = {node: self._authority.issue(node) for node in NODES}
        self.keepers: dict[str, subprocess.Popen[bytes]] = {}
        self.ranks: list[Forked] = []
        self._starts = 0

    def keep(self) -> None:
        """Start the keepers that do not run."""
        ring = ",".join(f"{node}={host}:{port}" for node, (host, port) in self.addresses.items())
        for node in NODES:
            if node in self.keepers:
                continue
            certificate, key = self.certificates[node]
            words = ["--job", "j", "--node", node, "--ring", ring, "--memory", str(self.memory(node))]
            words += ["--store", str(self.folder / "store"), "--flush-every", "1"]
            words += ["--tls-ca", self._authority.ca, "--tls-certificate", certificate, "--tls-key", key]
            with open(self.folder / f"keeper-{node}.log", "ab") as log:
                self.keepers[node] = subprocess.Popen([*WARDEN, "keeper", *words], stderr=log, cwd=ROOT)

    def memory(self, node: str) -> Path:
        return self.folder / f"memory-{node}"

    def train(self, last: int = 100_000) -> None:
        """Start the ranks."""
        self._starts += 1
        (port,) = free_ports(1)
        for rank, node in enumerate(NODES):
            environ = {
                "RANK": str(rank), "LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port), "TRAINWARDEN_JOB": "j", "PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"],
                "TRAINWARDEN_CHECKPOINT_MEMORY": str(self.memory(node)), "TRAINWARDEN_HOOK": "0",
                "TRAINWARDEN_KEEPER_TIMEOUT_S": "240",
            }  # fmt: skip
            self.log(rank).touch()
            words = [str(SCRIPTS / "memory_trainer.py"), str(last)]
            self.ranks.append(self._forks.start(words, environ, folder=self.folder, log=self.log(rank)))

    def log(self, rank: int) -> Path:
        return self.folder / f"rank-{rank}.{self._starts}.log"

    def resumed(self) -> list[tuple[int, str]]:
        """The step at which each rank went on, and its sentence."""

        def both() -> list[tuple[int, str]] | None:
            texts = [self.log(rank).read_text() for rank in range(2)]
            assert not any("Traceback" in text for text in texts), texts
            found = [re.search(r"resumed (\d+): (.*)", text) for text in texts]
            return [(int(one[1]), one[2]) for one in found if one] if all(found) else None

        return until(both)

    def listed(self, node: str = "a") -> dict[str, Any]:
        """What the command answers."""
        out = subprocess.run(
            [*WARDEN, "checkpoints", "--job", "j", "--memory", str(self.memory(node)), "--json"],
            capture_output=True, text=True, cwd=ROOT, timeout=PATIENCE_S, check=True,
        )  # fmt: skip
        (job,) = json.loads(out.stdout)["jobs"]
        assert job["keeper"], out
        return job

    def looked(self, node: str = "a") -> dict[str, Any] | None:
        """The same without a process for it, once the node's keeper answers: one just started imports what it needs."""
        told = self.folder / "looked.json"
        with contextlib.suppress(NotJudged):  # it has not made the job's folder
            checkpoints(job="j", memory=self.memory(node), json=str(told))
            (job,) = json.loads(told.read_bytes())["jobs"]
            return job if job["keeper"] else None
        return None

    def complete(self, tier: str, least_step: int) -> int:
        """The newest step that is complete in `tier`, once that is `least_step` or more."""

        def newest(job: dict[str, Any] | None) -> int | None:
            rows = [row for row in (job or {"checkpoints": ()})["checkpoints"] if row["tier"] == tier]
            return max((row["step"] for row in rows if row["complete"] and row["step"] >= least_step), default=None)

        until(lambda: newest(self.looked()))
        step = newest(self.listed())
        assert step is not None
        return step

    def kill_ranks(self) -> None:
        for one in self.ranks:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(one.pid, signal.SIGKILL)
            one.wait()
        self.ranks.clear()

    def kill_keeper(self, node: str) -> None:
        keeper = self.keepers.pop(node)
        keeper.kill()
        keeper.wait()

    def lose(self, node: str) -> None:
        """The node with all that it held."""
        self.kill_keeper(node)
        shutil.rmtree(self.memory(node))

    def close(self) -> None:
        self.kill_ranks()
        for node in list(self.keepers):
            self.kill_keeper(node)


def until(found: Any) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while (value := found()) is None or value is False:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    return value


@pytest.fixture
def cluster(tmp_path: Path, torch_forks: TorchForks):
    made = Cluster(tmp_path, torch_forks)
    made.keep()
    yield made
    made.close()


def test_ranks_keepers_nodes_and_all_nodes_are_killed_and_training_goes_on(cluster: Cluster) -> None:
    cluster.train()
    known = cluster.complete("neighbour", 1)
    cluster.kill_ranks()
    cluster.kill_keeper("a")
    cluster.keep()
    cluster.train()
    resumed = cluster.resumed()
    assert {step for step, _ in resumed} == {resumed[0][0]}
    assert resumed[0][0] >= known
    assert resumed[0][1].startswith(f"step {resumed[0][0]} is restored from memory")

    known = cluster.complete("neighbour", resumed[0][0] + 1)
    cluster.kill_ranks()
    cluster.lose("b")
    cluster.keep()
    cluster.train()
    resumed = cluster.resumed()
    assert {step for step, _ in resumed} == {resumed[0][0]}
    assert resumed[0][0] >= known
    assert resumed[1][1].startswith(f"step {resumed[0][0]} is restored from the neighbour's memory of a")

    known = cluster.complete("store", resumed[0][0] + 1)
    cluster.kill_ranks()
    for node in NODES:
        cluster.lose(node)
    cluster.keep()
    cluster.train(last=known)
    resumed = cluster.resumed()
    assert {step for step, _ in resumed} == {resumed[0][0]}
    assert resumed[0][0] >= known
    assert all(words.startswith(f"step {step} is restored from the store") for step, words in resumed)
    assert [one.wait() for one in cluster.ranks] == [0, 0]


def test_strangers_are_answered_nothing(cluster: Cluster, tmp_path: Path) -> None:
    """No certificate, that of another authority, and one of the job that names no node of the ring."""

    def listens() -> bool:
        with contextlib.suppress(OSError), socket.create_connection(cluster.addresses["a"], 5):
            return True
        return False

    until(listens)
    (tmp_path / "other").mkdir()
    foreign = Authority(tmp_path / "other").issue("b")
    outside = cluster._authority.issue("z")
    for pair in (None, foreign, outside):
        context = ssl.create_default_context(cafile=cluster._authority.ca)
        if pair is not None:
            context.load_cert_chain(*pair)
        said = b""
        with (
            contextlib.suppress(OSError),
            socket.create_connection(cluster.addresses["a"], 30) as plain,
            context.wrap_socket(plain, server_hostname="a") as line,
        ):
            line.sendall(b'{"ask":"inventory","job":"j"}\n')
            said = line.recv(10_000)
        assert b"copies" not in said
        assert said == b"" or b"error" in said
    with socket.create_connection(cluster.addresses["a"], 30) as plain:
        plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
    context = ssl.create_default_context(cafile=cluster._authority.ca)
    context.load_cert_chain(*cluster.certificates["b"])
    for question in (
        b"[" * 100_000 + b"\n",
        b'{"ask":"put","job":"j"}\n' + b"\xff" * 64,
        b'{"ask":"eval","job":"j"}\n',
    ):
        with (
            socket.create_connection(cluster.addresses["a"], 30) as plain,
            context.wrap_socket(plain, server_hostname="a") as line,
        ):
            line.sendall(question)
            said = line.recv(10_000)
            assert said == b"" or b"error" in said
    assert cluster.keepers["a"].poll() is None
    until(cluster.looked)
    assert cluster.listed()["checkpoints"] == []
