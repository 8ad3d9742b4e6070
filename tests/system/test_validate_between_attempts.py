"""Nodes measured against each other between two attempts of a job on several: who is at fault is not started on.

Two nodes of two ranks train and one waits, with real launchers, leases, bus and measurements; of n2 one rank's products
take twice as long, in the measurement alone.
"""

from __future__ import annotations

import os
import signal
import subprocess
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import psutil
import pytest

from actions.launchers.cluster import places
from actions.launchers.cluster.plugin import ClusterConfig, ClusterLauncher
from tests.places import ROOT
from tests.system.runs import SCRIPTS, WARDEN
from tests.system.test_validate_in_job import FAULT
from trainwarden.bus.address import connect
from trainwarden.errors import LauncherUnavailable
from trainwarden.launching import LauncherState, Operation
from trainwarden.protocols import Scope
from trainwarden.records import ActionRecord, IncidentKind, IncidentRecord, Suspect
from trainwarden.topics import ACTIONS, INCIDENTS

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

WAIT_S: Final = 100.0
NODES: Final = ("n1", "n2", "n3")


class Site:
    def __init__(self, folder: Path, bus: str | None = None) -> None:
        self.folder, self.processes = folder, dict[str, subprocess.Popen[Any]]()
        (folder / "site").mkdir()
        (folder / "site" / "sitecustomize.py").write_text(textwrap.dedent(FAULT))
        self.rdzv = f"127.0.0.1:{places.free_port('127.0.0.1')}"
        self.log, self.config = folder / "log", folder / "site.toml"
        address = bus or f"embedded:{folder / 'bus.db'}"
        self.config.write_text(f'job = "j"\nbus = "{address}"\n')
        self.bus = connect(address)
        self.launcher = ClusterLauncher(ClusterConfig(rdzv=self.rdzv), Scope(job="j", node="n", run_dir=str(folder)))
        self.start("lease", "lease", "--listen", self.rdzv)
        for name in NODES:
            self.start(
                name, "launch", "--job", "j", "--nproc", "2", "--nnodes", "2", "--spares", "1", "--rdzv", self.rdzv,
                "--checkpoints", str(folder / "ckpt"), "--config", str(self.config),
                "--", "python", str(SCRIPTS / "ring.py"), "100000", str(self.log),
            )  # fmt: skip
            count = NODES.index(name) + 1
            self.until("a node", lambda count=count: len(self.state().nodes) == count)  # type: ignore[misc]
        self.until("steps", lambda: self.attempts() == [0])

    def start(self, name: str, *words: str) -> None:
        environ = {
            **os.environ, "TRAINWARDEN_NODE": name, "TRAINWARDEN_RUN_DIR": str(self.folder / name),
            "PYTHONPATH": f"{self.folder / 'site'}:{ROOT}",
        }  # fmt: skip
        with (self.folder / f"{name}.out").open("ab") as out:
            self.processes[name] = subprocess.Popen([*WARDEN, *words], env=environ, stdout=out, stderr=out)

    def state(self) -> LauncherState:
        try:
            return self.launcher.state("j")
        except LauncherUnavailable:
            return LauncherState(job="j", phase="pending", generation=0)

    def until(self, what: str, true: Callable[[], object], within_s: float = WAIT_S) -> None:
        until_s = time.monotonic() + within_s
        while not true():
            assert time.monotonic() < until_s, f"not seen: {what}\n{self.state()}\n{self.said()}"
            time.sleep(0.1)

    def said(self) -> str:
        return "\n".join(f"--- {one.name}\n{one.read_text()[-3000:]}" for one in sorted(self.folder.glob("*.out")))

    def attempts(self) -> list[int]:
        """Of which steps were made, in order."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return list(dict.fromkeys(int(line.split()[1]) for line in lines if len(line.split()) == 6))

    def suspect(self, node: str, kind: IncidentKind = "metric_anomaly") -> None:
        now_s = time.time()
        suspicion = IncidentRecord(
            id="i1", job="j", kind=kind, severity="sev3", state="opened", revision=0, opened_at_s=now_s,
            updated_at_s=now_s, reason="unlike others", suspects=(Suspect(score=0.9, reason="", node=node),),
        )  # fmt: skip
        self.bus.publish(INCIDENTS, "j", suspicion)
        self.bus.flush()

    def kill_a_rank(self) -> None:
        children = psutil.Process(self.processes["n1"].pid).children(recursive=True)
        next(one for one in children if "ring.py" in " ".join(one.cmdline())).send_signal(signal.SIGKILL)

    def validations(self) -> list[psutil.Process]:
        found = []
        for process in self.processes.values():
            of_it = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
            for one in of_it:
                with suppress(psutil.Error):  # it may end while it is looked at
                    found += [one] if "--when-told" in one.cmdline() else []
        return found

    def told(self) -> list[ActionRecord]:
        return [message.record for message in self.bus.read(ACTIONS)]

    def ask(self, kind: Any) -> None:
        operation = Operation(
            id=f"{kind}-{time.monotonic()}", job="j", kind=kind, expected_generation=self.state().generation
        )
        assert self.launcher.submit(operation).state in ("accepted", "done")

    def close(self) -> None:
        self.bus.close()
        for process in reversed(self.processes.values()):
            process.terminate()
        for process in self.processes.values():
            process.wait(60)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    pytest.importorskip("torch")
    site = Site(tmp_path)
    try:
        yield site
    finally:
        site.close()


def conditions(site: Site) -> dict[str, str]:
    return {node.node: node.state for node in site.state().nodes}


def test_a_node_that_is_confirmed_between_two_attempts_is_not_started_on(site: Site) -> None:
    site.suspect("n2")
    began_s = time.monotonic()
    site.kill_a_rank()
    site.until("another attempt", lambda: site.attempts() == [0, 1])
    print(f"steps again {time.monotonic() - began_s:.1f} s after a rank was killed, with a measurement of six ranks")
    site.until("its record", site.told)
    (told,) = site.told()
    assert (told.id, told.kind, told.outcome) == ("i1/validate/1", "validate", "done")
    assert (told.plan["verdict"], told.plan["confirmed"]) == ("confirmed", ["n2"]), told.why
    assert conditions(site) == {"n1": "healthy", "n2": "cordoned", "n3": "healthy"}
    began_s = time.monotonic()
    site.kill_a_rank()
    site.until("a third attempt", lambda: site.attempts() == [0, 1, 2])
    print(f"steps again {time.monotonic() - began_s:.1f} s after a rank was killed, with nobody to measure")
    assert len(site.told()) == 1


def test_who_is_well_is_cleared_and_trains_on(site: Site) -> None:
    site.suspect("n1", "slow_compute")  # of devices alone: links of three nodes have no peers
    site.ask("restart")
    site.until("another attempt", lambda: site.attempts() == [0, 1])
    site.until("its record", site.told)
    (told,) = site.told()
    assert told.plan["verdict"] == "cleared", told.why
    assert conditions(site) == {"n1": "healthy", "n2": "healthy", "n3": "spare"}


def test_no_measurement_that_dies_and_no_suspension_keeps_the_job_down(site: Site) -> None:
    site.suspect("n2")
    site.kill_a_rank()
    site.until("a measurement", lambda: len(site.validations()) == 3)
    site.ask("pause")
    site.until("no measurement", lambda: site.validations() == [])
    site.until("a pause", lambda: site.state().phase == "paused" and not site.state().under_way)
    site.ask("resume")
    site.until("another attempt", lambda: site.attempts() == [0, 1])
    assert site.told() == []
    site.ask("restart")
    site.until("a measurement", lambda: len(site.validations()) == 3)
    for process in site.validations():
        process.kill()
    site.until("a third attempt", lambda: site.attempts() == [0, 1, 2])
    site.until("its record", site.told)
    assert site.told()[0].outcome == "failed"
