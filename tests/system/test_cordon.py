"""`trainwarden cordon` from a shell to the launcher: a real engine on a real bus, killed at random moments."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.memory_launcher import ALONE, MemoryLauncher
from tests.servers.webhook import SECRET, WebhookService
from trainwarden.bus.address import connect
from trainwarden.commands.builders import on_node
from trainwarden.launching import Capabilities, NodeState
from trainwarden.records import ActionRecord, HeartbeatRecord
from trainwarden.topics import ACTIONS, COMMANDS, HEARTBEATS

pytestmark = [pytest.mark.system, pytest.mark.timeout(180)]

NODES = 12


class Site:
    """A bus, a scheduler behind the webhook launcher, and an engine that can be killed."""

    def __init__(self, folder: Path) -> None:
        launcher = MemoryLauncher()
        launcher.phase, launcher.able = "running", Capabilities(can=ALONE, cannot={"evict": "a person must"})
        launcher.nodes["llama"] = tuple(NodeState(node=f"n{number}") for number in range(NODES))
        self.service, self.launcher = WebhookService(launcher), launcher
        (folder / "secret").write_bytes(SECRET)
        self.config, self._log = folder / "site.toml", (folder / "engine.log").open("wb")
        self.config.write_text(
            f'job = "llama"\nbus = "embedded:{folder / "bus.db"}"\nrun_dir = "{folder}"\n'
            f'[engine]\nmode = "confirm"\nlauncher = "webhook"\n[engine.launcher_settings]\n'
            f'url = "{self.service.url}"\nsecret_file = "{folder / "secret"}"\ntimeout_s = 1.0\n'
        )
        self.bus = connect(f"embedded:{folder / 'bus.db'}")
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "trainwarden.cli.main", "engine", "--config", str(self.config)]
        self._engine = subprocess.Popen(command, stdout=self._log, stderr=self._log)

    def kill(self) -> None:
        self._engine.kill()
        self._engine.wait()

    def run(self, *words: str) -> tuple[int, str]:
        """A command's exit code and output."""
        command = [sys.executable, "-m", "trainwarden.cli.main", *words, "--config", str(self.config)]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        return ran.returncode, ran.stdout + ran.stderr

    def story(self) -> dict[str, list[str]]:
        told: dict[str, list[str]] = {}
        for message in self.bus.read(ACTIONS):
            assert isinstance(message.record, ActionRecord)
            told.setdefault(message.record.id, []).append(message.record.outcome)
        return told

    def close(self) -> None:
        self.kill()
        self.bus.close()
        self.service.close()
        self._log.close()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.close()


def test_a_node_is_taken_out_and_put_back_by_two_commands(site: Site) -> None:
    site.bus.publish(HEARTBEATS, "llama", HeartbeatRecord(job="llama", node="n3", time_s=time.time()))
    site.bus.flush()
    code, said = site.run("cordon", "n3", "--reason", "its fan is loud", "--wait", "50")
    assert (code, said.splitlines()[1:]) == (0, ["done: its fan is loud"]), said
    assert site.launcher.cordoned == {"n3"}
    code, said = site.run("nodes", "n3")
    assert code == 0
    assert said.startswith("n3 cordoned since 2")
    assert "its fan is loud" in said
    code, said = site.run("actions")
    assert "cordon_node of node n3 of job llama is done" in said
    assert "by: the engine, as " in said
    code, said = site.run("uncordon", "n3", "--wait", "50", "--json")
    assert code == 0
    assert json.loads(said[: said.rindex("}") + 1])["action"]["outcome"] == "done"
    assert site.launcher.cordoned == set()
    assert "n3 healthy since" in site.run("nodes", "n3")[1]
    code, said = site.run("cordon", "n99")
    told = "trainwarden: cordon: nothing was heard of node n99; name a job that its launcher runs with --job"
    assert (code, said.splitlines()) == (2, [told])
    code, said = site.run("cordon", "n99", "--job", "llama", "--reason", "no fan", "--wait", "50")
    told = "not done: no fan; the launcher refused: no node of its own was named"
    assert (code, said.splitlines()[1:]) == (1, [told])


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(3))
def test_each_word_is_obeyed_once_whenever_the_engine_is_killed_and_whatever_answer_is_lost(
    site: Site, seed: int
) -> None:
    draw = random.Random(seed)
    for number in range(NODES):
        site.service.fates.append(draw.choice(["done", "lost", "unheard", "500"]))
        site.bus.publish(COMMANDS, "llama", on_node("cordon", f"n{number}", "llama", "ann", at_s=time.time()))
        site.bus.flush()
        time.sleep(draw.uniform(0.0, 0.8))
        if draw.random() < 0.6:
            site.kill()
            site.start()
    deadline_s = time.monotonic() + 90.0
    while len(site.launcher.cordoned) < NODES or any(one[-1] == "started" for one in site.story().values()):
        assert time.monotonic() < deadline_s, site.story()
        time.sleep(0.1)
    accepted = Counter(operation.targets.nodes for operation in site.launcher.operations)
    assert set(accepted.values()) == {1}
    assert len(accepted) == NODES
    for outcomes in site.story().values():
        assert outcomes.count("started") == 1
