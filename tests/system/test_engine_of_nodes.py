"""An engine beside a job of `trainwarden launch` on two nodes and a spare: real torchruns, rendezvous, bus and engine.

What detection would say is put on the bus by hand; what became of it is read there, and off what the ranks write down.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import pytest

from tests.servers.ports import free_ports
from tests.system.runs import SCRIPTS, WARDEN
from trainwarden.actions.launchers.torchrun.client import TorchrunConfig, TorchrunLauncher
from trainwarden.bus.address import connect
from trainwarden.errors import LauncherUnavailable
from trainwarden.launching import LauncherState
from trainwarden.protocols import Scope
from trainwarden.records import ActionRecord, IncidentRecord, Suspect
from trainwarden.topics import ACTIONS, INCIDENTS

pytestmark = [pytest.mark.system, pytest.mark.timeout(1200)]

WAIT_S: Final = 400.0
NODES: Final = ("n1", "n2", "n3")


class Site:
    """n1 and n2 train, n3 waits; each process can be killed.

    With `watched` agents and detection say what there is; with `beside` the launchers bring the engine, and agents.
    """

    ahead_s: Mapping[str, float] = MappingProxyType({})  # wall clocks of processes that are not right

    def __init__(
        self, folder: Path, *program: str, watched: bool = False, beside: bool = False,
        ahead_s: Mapping[str, float] = ahead_s,
    ) -> None:  # fmt: skip
        self.ahead_s = ahead_s
        self.program = program or ("ring.py", "100000", str(folder / "log"))
        self.watched, self.beside = watched, beside
        self.folder, self.processes = folder, dict[str, subprocess.Popen[Any]]()
        self.rdzv = f"127.0.0.1:{free_ports(1)[0]}"
        self.log = folder / "log"
        self.config = folder / "site.toml"
        self.config.write_text(
            f'job = "j"\nbus = "embedded:{folder / "bus.db"}"\n'
            f'[engine]\nmode = "auto"\nlauncher = "torchrun"\n[engine.launcher_settings]\nendpoint = "{self.rdzv}"\n'
        )
        self.bus = connect(f"embedded:{folder / 'bus.db'}")
        self.launcher = TorchrunLauncher(
            TorchrunConfig(endpoint=self.rdzv), Scope(job="j", node="n", run_dir=str(folder))
        )
        self.start("rendezvous")
        if watched:  # what dies at its start does so before an engine that is started after it is there
            self.start("detector")
            self.start("engine")
            self.until("an engine", lambda: "engine ready" in (folder / "engine.out").read_text())
        for name in NODES:
            self.start(name)
            count = NODES.index(name) + 1
            self.until("a node", lambda count=count: len(self.state().nodes) == count)  # type: ignore[misc]
        if not watched:
            if not beside:
                self.start("engine")
            self.trains(0)

    def start(self, name: str) -> None:
        launch = (
            "launch", "--job", "j", "--nproc", "1", "--nnodes", "2", "--spares", "1", "--rdzv", self.rdzv,
            "--checkpoints", str(self.folder / "ckpt"), *(("--mode", "auto") if self.beside else ()),
            *(("--config", str(self.config)) if self.watched or self.beside else ()),
            "--", sys.executable, str(SCRIPTS / self.program[0]), *self.program[1:],
        )  # fmt: skip
        words = {
            "detector": ("detector", "--config", str(self.config)),
            "rendezvous": ("rendezvous", "--listen", self.rdzv),
            "engine": ("engine", "--config", str(self.config)),
        }
        environ = {**os.environ, "TRAINWARDEN_NODE": name, "TRAINWARDEN_RUN_DIR": str(self.folder / name)}
        with (self.folder / f"{name}.out").open("ab") as out:
            apart = [sys.executable, str(SCRIPTS / "clock_apart.py"), str(self.ahead_s.get(name))]
            command = [*(apart if name in self.ahead_s else WARDEN), *words.get(name, launch)]
            self.processes[name] = subprocess.Popen(command, env=environ, stdout=out, stderr=out)

    def kill(self, name: str) -> None:
        self.processes[name].kill()
        self.processes[name].wait()

    def state(self) -> LauncherState:
        try:
            return self.launcher.state("j")
        except LauncherUnavailable:  # no service, or no torchrun yet
            return LauncherState(job="j", phase="pending", generation=0)

    def until(self, what: str, true: Callable[[], object], within_s: float = WAIT_S) -> None:
        until_s = time.monotonic() + within_s
        while not true():
            assert time.monotonic() < until_s, f"not seen: {what}\n{self.state()}\n{self.story()}\n{self.said()}"
            time.sleep(0.1)

    def attempts(self) -> list[int]:
        """Of which steps were made, in order."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return list(dict.fromkeys(int(line.split()[1]) for line in lines if len(line.split()) == 6))

    def trains(self, attempt: int) -> None:
        self.until(
            f"steps of attempt {attempt}", lambda: attempt in self.attempts() and self.state().phase == "running"
        )

    def tell(
        self, name: str, kind: str, node: str | None = None, ago_s: float = 0.0, attempt: int | None = None
    ) -> None:
        now_s = time.time()
        suspects = () if node is None else (Suspect(node=node, score=1.0, reason="Xid 79"),)
        incident = IncidentRecord(
            id=name, job="j", kind=kind, severity="sev1", state="opened", revision=0, opened_at_s=now_s,  # type: ignore[arg-type]
            updated_at_s=now_s, onset_s=now_s - ago_s, reason="as the test says", suspects=suspects, attempt=attempt,
        )  # fmt: skip
        self.bus.publish(INCIDENTS, "j", incident)
        self.bus.flush()

    def story(self) -> list[tuple[str, str, str]]:
        """Id, outcome and why of each change of an action."""
        records = [message.record for message in self.bus.read(ACTIONS)]
        return [(one.id, one.outcome, one.why) for one in records if isinstance(one, ActionRecord)]

    def ended(self, name: str, outcome: str) -> str:
        """Why, once the action of that id has ended so."""
        self.until(f"{name} {outcome}", lambda: (name, outcome) in [one[:2] for one in self.story()])
        return next(why for action, how, why in self.story() if (action, how) == (name, outcome))

    def run(self, *words: str) -> str:
        ran = subprocess.run([*WARDEN, *words], capture_output=True, text=True, timeout=60, check=False)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout

    def first(self) -> str:
        """The node of rank 0."""
        return next((one.node for one in self.state().nodes if 0 in one.ranks), "")

    def said(self) -> str:
        return "\n".join(f"--- {one.name}\n{one.read_text()[-3000:]}" for one in sorted(self.folder.glob("*.out")))

    def close(self) -> None:
        for name in self.processes:
            self.processes[name].send_signal(signal.SIGTERM if name in NODES else signal.SIGKILL)
        for process in self.processes.values():
            process.wait(WAIT_S)
        self.bus.close()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.close()


def test_what_detection_finds_is_acted_upon_once_and_what_the_rendezvous_has_done_is_left(site: Site) -> None:
    began_s = time.monotonic()
    site.tell("i1", "hang")
    assert site.ended("i1/restart/1", "done").startswith("hang: as the test says")
    site.trains(1)
    print(f"a hang: steps again {time.monotonic() - began_s:.1f} s after the incident")
    ranks = [int(one) for one in pids(site.folder / "n2")]
    os.kill(ranks[-1], signal.SIGKILL)
    site.trains(2)
    site.tell("i2", "crash", "n2", ago_s=5.0)
    assert "has seen to it already, all ranks were started again" in site.ended("i2/restart/1", "skipped")
    began_s = time.monotonic()
    site.tell("i3", "gpu_lost", "n2")
    site.ended("i3/evict/1", "done")
    site.trains(3)
    print(f"a lost GPU: steps again {time.monotonic() - began_s:.1f} s after the incident")
    states = {one.node: (one.state, len(one.ranks)) for one in site.state().nodes}
    assert states == {"n1": ("healthy", 1), "n3": ("healthy", 1), "n2": ("cordoned", 0)}
    time.sleep(5.0)
    assert site.attempts() == [0, 1, 2, 3]
    told = site.run("actions", "--config", str(site.config))
    assert "restart_process of job j is skipped" in told
    assert "why: its launcher has seen to it already" in told
    assert "evict_node of node n2 of job j is done" in told
    assert "n2 cordoned" in site.run("nodes", "--config", str(site.config))
    assert "uncordon: done" in site.run("job", "uncordon", "n2", "--job", "j", "--rdzv", site.rdzv)
    assert {one.node: one.state for one in site.state().nodes}["n2"] == "spare"


@pytest.mark.thorough
@pytest.mark.parametrize("engine_s", [-60.0, 60.0])
def test_clocks_a_minute_apart_change_nothing_of_what_is_done_about_which_attempt(
    tmp_path: Path, engine_s: float
) -> None:
    site = Site(tmp_path, beside=False, ahead_s={"engine": engine_s, "n1": -engine_s, "n2": 60.0, "n3": -60.0})
    try:
        began_s = time.monotonic()
        site.tell("i1", "hang", ago_s=5.0, attempt=0)
        site.ended("i1/restart/1", "done")
        site.trains(1)
        print(f"a hang of the attempt that runs: steps again {time.monotonic() - began_s:.1f} s after the incident")
        time.sleep(11.0)  # of its cool-down
        site.tell("i2", "hang", ago_s=5.0, attempt=0)
        assert "has seen to it already, all ranks were started again" in site.ended("i2/restart/1", "skipped")
        site.tell("i3", "hang", ago_s=5.0, attempt=1)
        site.ended("i3/restart/1", "done")
        site.trains(2)
        assert site.attempts() == [0, 1, 2]
    finally:
        site.close()


@pytest.mark.thorough
@pytest.mark.parametrize("after_s", [0.3, 6.0])
def test_a_node_whose_rank_dies_each_time_is_taken_out_before_the_jobs_restarts_are_spent(
    tmp_path: Path, after_s: float
) -> None:
    site = Site(tmp_path, "dying_ring.py", "100000", str(tmp_path / "log"), "n2", str(after_s), watched=True)
    try:
        site.until("an eviction", lambda: any("/evict/" in name and how == "done" for name, how, _ in site.story()))
        site.until("steps without n2", lambda: site.state().phase == "running" and len(site.state().ranks_running) == 2)
        assert {one.node for one in site.state().nodes if one.ranks} == {"n1", "n3"}
        assert "2 restarts for n2 within 600 s have not helped" in next(w for n, _, w in site.story() if "/evict/" in n)
        assert site.state().failures == 3
        attempt = site.state().attempt
        time.sleep(10.0)
        assert (site.state().attempt, site.state().phase) == (attempt, "running")
    finally:
        site.close()


def test_the_node_of_the_first_rank_has_the_one_engine_beside_it_whoever_is_killed(tmp_path: Path) -> None:
    site = Site(tmp_path, beside=True)
    try:
        began_s = time.monotonic()
        site.tell("i1", "hang")
        site.ended("i1/restart/1", "done")
        print(f"a hang of a job just begun: restarted {time.monotonic() - began_s:.1f} s after the incident")
        [(engine, home)] = engines(site)
        assert home == site.first()
        site.tell("i2", "gpu_lost", "n2")
        os.kill(engine, signal.SIGKILL)
        began_s = time.monotonic()
        site.until("another engine", lambda: engine not in [pid for pid, _ in engines(site)] and engines(site))
        site.until("an end", lambda: ("i2", "done") in [(name[:2], how) for name, how, _ in site.story()])
        print(f"engine killed at an incident: done {time.monotonic() - began_s:.1f} s later")
        lost = site.first()
        site.kill(lost)
        began_s = time.monotonic()
        site.until("the end of its engine", lambda: lost not in [home for _, home in engines(site)])
        site.start(lost)  # the other node is cordoned, so nothing begins without it
        site.until("an engine beside the first rank", lambda: [home for _, home in engines(site)] == [site.first()])
        site.tell("i3", "hang")
        site.until(
            "an end", lambda: any(name[:2] == "i3" and how in ("done", "skipped") for name, how, _ in site.story())
        )
        print(f"first node killed: its successor's engine was done {time.monotonic() - began_s:.1f} s later")
        time.sleep(6.0)
        assert [home for _, home in engines(site)] == [site.first()]
        assert sum(how == "done" and name[:2] == "i2" for name, how, _ in site.story()) == 1
        for name in NODES:
            site.processes[name].send_signal(signal.SIGTERM)
            site.processes[name].wait(WAIT_S)
        assert engines(site) == []
    finally:
        site.close()


def engines(site: Site) -> list[tuple[int, str]]:
    """Those that run, and beside whose launcher."""
    found = subprocess.run(
        ["pgrep", "-af", f"cli.main engine --run-dir {site.folder}/"], capture_output=True, text=True, check=False
    ).stdout.splitlines()
    return [(int(line.split()[0]), line.partition(f"--run-dir {site.folder}/")[2].split()[0]) for line in found]


def pids(run_dir: Path) -> list[str]:
    """Of ranks that run under the launcher of that run folder."""
    found = subprocess.run(
        ["pgrep", "-f", f"{SCRIPTS}/ring.py 100000 {run_dir.parent}/log"], capture_output=True, text=True, check=False
    ).stdout.split()
    mine = f"TRAINWARDEN_RUN_DIR={run_dir}\0".encode()
    return [pid for pid in found if mine in environ_of(pid) and b"\0RANK=" in environ_of(pid)]


def environ_of(pid: str) -> bytes:
    try:
        return b"\0" + Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


@pytest.mark.thorough
@pytest.mark.parametrize(("kind", "node", "seed"), [("hang", None, 0), ("gpu_lost", "n2", 1)])
def test_whoever_is_killed_around_an_incident_nothing_is_done_twice_and_nothing_lost(
    site: Site, kind: str, node: str | None, seed: int
) -> None:
    draw = random.Random(seed)
    victims = ["engine", "rendezvous", site.first()]
    draw.shuffle(victims)
    site.tell("i1", kind, node)
    for name in victims:
        time.sleep(draw.uniform(0.0, 1.5))
        site.kill(name)
        time.sleep(draw.uniform(0.0, 1.0))
        site.start(name)
    check(site, node)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("kind", "node", "who"),
    [("hang", None, "first"), ("gpu_lost", "n2", "engine and first"), ("hang", None, "engine and rendezvous")],
)
def test_whoever_is_killed_when_an_action_has_just_begun_it_is_brought_to_one_end(
    site: Site, kind: str, node: str | None, who: str
) -> None:
    victims = [site.first() if one == "first" else one for one in who.split(" and ")]
    site.tell("i1", kind, node)
    site.until("a start", lambda: "started" in [how for _, how, _ in site.story()])
    for name in victims:
        site.kill(name)
    for name in victims:
        site.start(name)
    check(site, node)


def check(site: Site, out: str | None) -> None:
    """One action has taken effect, or the rendezvous was quicker; the job trains on two nodes, without `out`."""
    wanted = ("done",) if out is not None else ("done", "skipped")
    site.until("an end", lambda: any(how in wanted and "does not tell" not in why for _, how, why in site.story()))
    time.sleep(12.0)  # for whatever would be done twice
    site.until("training", lambda: site.state().phase == "running" and len(site.state().ranks_running) == 2)
    site.until("a step of a later attempt", lambda: len(site.attempts()) > 1)  # ranks run before they make one
    assert sum(how == "done" for _, how, _ in site.story()) <= 1, site.story()
    # One for what was found, and one for the ranks of a first node that was killed.
    # The second may end before its first step.
    assert site.attempts() in ([0, 1], [0, 2], [0, 1, 2]), site.attempts()
    assert out not in {one.node for one in site.state().nodes if one.ranks}
