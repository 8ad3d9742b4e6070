"""The engine's and a person's way to a torchrun job, over real connections."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.ports import free_ports
from trainwarden import plugins
from trainwarden.actions.launchers.torchrun.client import TorchrunLauncher
from trainwarden.actions.launchers.torchrun.service import RendezvousService
from trainwarden.cli.run.job import job
from trainwarden.clock import BootClock
from trainwarden.errors import ConfigError, LauncherError, LauncherUnavailable
from trainwarden.launching import Operation
from trainwarden.protocols import Scope
from trainwarden.torchrun.agent import Agent, Over, Place
from trainwarden.torchrun.line import Endpoints

TOKEN = "a-token-of-twenty-chars"
PATIENCE_S = 60.0


class OneNode:
    """A service, and one agent that does what it is told until its job is over."""

    def __init__(self, tmp_path: Path) -> None:
        self.token_file = tmp_path / "token"
        self.token_file.write_text(TOKEN)
        self.token_file.chmod(0o600)
        (self.port,) = free_ports(1)
        self._over, ready = threading.Event(), threading.Event()
        service = RendezvousService(f"127.0.0.1:{self.port}", BootClock(), token=TOKEN, lost_after_s=30.0)
        self._service = threading.Thread(target=service.run, args=(self._over.is_set, lambda _: ready.set()))
        self._service.start()
        assert ready.wait(PATIENCE_S)
        self.rounds, self.code, self.begun = 0, None, threading.Event()
        self._agent = Agent(
            Place("j", "a", 1, 1, "127.0.0.1"), Endpoints((("127.0.0.1", self.port),), TOKEN), lambda _: None
        )
        self._agent.start()
        self._node = threading.Thread(target=self._run)
        self._node.start()
        assert self.begun.wait(PATIENCE_S)

    def _run(self) -> None:
        try:
            while not self._over.is_set():
                self._agent.wait_for_round(5, PATIENCE_S)
                self.rounds += 1
                self._agent.update(ranks=[0], alive=[0])
                self.begun.set()
                while not self._agent.has_to_stop and not self._over.wait(0.01):
                    pass
        except Over as over:
            self.code = over.code
        finally:
            self._agent.close()

    def launcher(self, *more: int, token_file: Path | None = None) -> TorchrunLauncher:
        endpoint = ",".join(f"127.0.0.1:{port}" for port in (*more, self.port))
        settings = {"endpoint": endpoint, "token_file": str(token_file or self.token_file)}
        config = plugins.configure(TorchrunLauncher, settings, "launcher")
        return TorchrunLauncher(config, Scope(job="j", node="n", run_dir="."))

    def close(self) -> None:
        self._over.set()
        for thread in (self._node, self._service):
            thread.join(PATIENCE_S)
            assert not thread.is_alive()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[OneNode]:
    made = OneNode(tmp_path)
    yield made
    made.close()


def test_of_several_endpoints_the_one_that_hears_the_job_answers(node):
    (silent,) = free_ports(1)
    assert node.launcher(silent).state("j").job == "j"
    with pytest.raises(LauncherError, match="runs job 'j', not 'k'"):
        node.launcher().state("k")


def test_a_wrong_token_says_so_and_says_nothing_of_the_job(node, tmp_path):
    other = tmp_path / "other"
    other.write_text("another-token-of-mine")
    other.chmod(0o600)
    with pytest.raises(LauncherUnavailable, match="the token is not the one"):
        node.launcher(token_file=other).state("j")


def test_the_end_of_a_stop_is_known_when_nobody_is_left_to_say_so(node):
    launcher = node.launcher()
    stop = Operation(id="s", job="j", kind="stop", expected_generation=launcher.state("j").generation)
    launcher.submit(stop)
    while launcher.poll("j", "s").state != "done":
        pass
    node.close()
    assert (node.code, launcher.poll("j", "s").state, launcher.submit(stop).state) == (143, "done", "done")


def test_a_person_asks_by_the_command_line(node, capsys):
    words = {"name": "j", "rdzv": f"127.0.0.1:{node.port}", "token_file": node.token_file}
    assert job("restart", why="the room was hot", wait=PATIENCE_S, json="-", **words) == 0
    assert json.loads(capsys.readouterr().out)["state"] == "done"
    assert job("status", wait=PATIENCE_S, **words) == 0
    assert "attempt 2" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="--rdzv: 'nowhere' is not HOST:PORT"):
        job("status", **{**words, "rdzv": "nowhere"}, wait=1.0)
