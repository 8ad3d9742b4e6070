"""An unchanged torchrun whose checkpoints go to memory by one variable: a crash, and the loss of all of the memory."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from tests.places import ROOT
from tests.system.runs import LEAN, WARDEN
from tests.system.torchrun_nodes import TorchrunNodes, until
from trainwarden.actions.engine.handler import EngineHandler
from trainwarden.actions.launchers.torchrun.client import JobClient, Patient
from trainwarden.actions.remedies.policy import Rules
from trainwarden.bus.embedded.engine import EmbeddedBus
from trainwarden.checkpoints.newest import newest
from trainwarden.clock import SystemClock
from trainwarden.launching import Report, Verb
from trainwarden.records import ActionRecord, IncidentRecord, Suspect
from trainwarden.self_metrics import SelfMetrics
from trainwarden.service_loop import ServiceLoop
from trainwarden.settings import EngineSettings
from trainwarden.topics import ACTIONS, INCIDENTS

pytestmark = [pytest.mark.system, pytest.mark.timeout(500)]
SCRIPT = str(ROOT / "tests" / "scripts" / "files_trainer.py")


def run(path: Path, crash_at: int, last: int) -> list[tuple[str, str, str]]:
    """Attempt, first step and folder of each start of the rank."""
    path.mkdir()
    nodes = TorchrunNodes(path, SCRIPT, str(crash_at), str(last), nodes=1)
    memory, store = path.parent / "memory", path.parent / "store"
    memory.mkdir(exist_ok=True)
    try:
        nodes.start("a", TRAINWARDEN_CHECKPOINTS_STORE=str(store), TRAINWARDEN_CHECKPOINT_MEMORY=str(memory))
        assert nodes.codes() == {"a": 0}, (path / "a.log").read_text()
    finally:
        nodes.close()
    return re.findall(r"attempt (\d+) from (\d+) in (.*)", (path / "a.log").read_text())


def asked(nodes: TorchrunNodes, kind: Verb) -> Report:
    """Asked again until it is taken: the ranks start, and catch the signal once they do."""
    client = Patient(JobClient(nodes.launcher), SystemClock(), 240.0)
    deadline_s = time.monotonic() + 240.0
    while (report := client.carry_out(kind, "job", "a test asks")).state == "refused":
        assert time.monotonic() < deadline_s, report.text
        time.sleep(1.0)
    return report


def test_the_verb_checkpoint_has_the_ranks_save_and_a_restart_goes_on_from_that(tmp_path: Path) -> None:
    nodes = TorchrunNodes(tmp_path, str(ROOT / "tests" / "scripts" / "saves_when_asked.py"), nodes=1)
    (tmp_path / "memory").mkdir()
    try:
        nodes.start(
            "a", TRAINWARDEN_CHECKPOINTS_STORE=str(tmp_path / "store"), TRAINWARDEN_CHECKPOINT_SIGNAL="USR1",
            TRAINWARDEN_CHECKPOINT_MEMORY=str(tmp_path / "memory"),
        )  # fmt: skip
        saved = asked(nodes, "checkpoint")
        assert saved.state == "done", saved.text
        [step] = re.findall(r"the checkpoint of step (\d+) is complete", saved.text)
        again = asked(nodes, "restart")
        assert again.text == f"the newest checkpoint that its nodes see is of step {step}"
        deadline_s = time.monotonic() + 240.0
        while f"attempt 1 from {step}" not in (text := (tmp_path / "a.log").read_text()):
            assert time.monotonic() < deadline_s, text
            time.sleep(0.5)
        assert re.findall(r"saved (\d+)", text) == [step]
        (tmp_path / "end").touch()
        assert nodes.codes() == {"a": 0}
    finally:
        nodes.close()


def launched(path: Path, crash_at: int, last: int) -> tuple[list[tuple[str, str, str]], str]:
    """The same by `trainwarden launch` on one node, and what it says."""
    memory = path / "memory"
    memory.mkdir(exist_ok=True)
    environ = {**os.environ, **LEAN, "TRAINWARDEN_CHECKPOINT_MEMORY": str(memory)}
    words = ["--nproc", "1", "--mode", "auto", "--job", "j", "--checkpoints", str(path / "store")]
    script = ["python", SCRIPT, str(crash_at), str(last), "{checkpoints}"]
    ran = subprocess.run(
        [*WARDEN, "launch", *words, "--", *script], env=environ, cwd=path, capture_output=True, text=True, timeout=400,
        check=False,
    )  # fmt: skip
    said = ran.stdout + ran.stderr
    assert ran.returncode == 0, said
    return re.findall(r"attempt (\d+) from (\d+) in (.*)", said), said


def test_launch_on_one_node_goes_on_from_memory_and_then_from_the_store(tmp_path: Path) -> None:
    folder = tmp_path / "memory" / "job-j%2Ffiles" / "files"
    begun, said = launched(tmp_path, crash_at=12, last=20)
    assert begun == [("0", "0", str(folder)), ("1", "10", str(folder))], said
    found = newest(tmp_path / "store")
    assert found is not None
    assert found.step == 20
    shutil.rmtree(tmp_path / "memory")
    assert launched(tmp_path, crash_at=0, last=25)[0] == [("0", "20", str(folder))]


def test_a_script_that_is_not_changed_goes_on_from_memory_and_then_from_the_store(tmp_path: Path) -> None:
    begun = run(tmp_path / "first", crash_at=12, last=20)
    folder = tmp_path / "memory" / "job-job%2Ffiles" / "files"
    assert begun == [("0", "0", str(folder)), ("1", "10", str(folder))]
    assert "step 10 lies in memory" in (tmp_path / "first" / "a.log").read_text()

    found = newest(tmp_path / "store")
    assert found is not None
    assert found.step == 20  # its last one, though the store was written to within the last ten minutes
    shutil.rmtree(tmp_path / "memory")
    begun = run(tmp_path / "second", crash_at=0, last=25)
    assert begun == [("0", "20", str(folder))]
    assert "step 20 is restored from the store" in (tmp_path / "second" / "a.log").read_text()


def test_an_engine_has_the_ranks_save_before_it_takes_their_node_out_and_the_spare_goes_on_from_that(
    tmp_path: Path,
) -> None:
    nodes = TorchrunNodes(tmp_path, str(ROOT / "tests" / "scripts" / "saves_when_asked.py"), nodes=1)
    table = tmp_path / "remedies.toml"
    table.write_text('slow_compute = [{ action = "evict_node" }]\n')
    bus = EmbeddedBus(str(tmp_path / "bus.db"))
    rules, clock = Rules.of(EngineSettings(mode="auto", remedies=str(table))), SystemClock()
    metrics = SelfMetrics("engine")
    loop = ServiceLoop(bus, EngineHandler(rules, nodes.launcher, clock, metrics), clock, metrics)

    def actions() -> list[ActionRecord]:
        loop.step()
        return [one.record for one in bus.read(ACTIONS) if isinstance(one.record, ActionRecord)]

    try:
        for node in ("a", "b"):
            (tmp_path / f"memory-{node}").mkdir()
            nodes.start(
                node, TRAINWARDEN_CHECKPOINTS_STORE=str(tmp_path / "store"), TRAINWARDEN_CHECKPOINT_SIGNAL="USR1",
                TRAINWARDEN_CHECKPOINT_MEMORY=str(tmp_path / f"memory-{node}"), TRAINWARDEN_CHECKPOINTS_FLUSH_S="600",
            )  # fmt: skip
            assert asked(nodes, "checkpoint").state == "done"  # the ranks run, and catch the signal
        until(lambda: len(nodes.state().nodes) == 2, "the spare has not come")
        now_s = time.time()
        bus.publish(INCIDENTS, "job", IncidentRecord(
            id="i1", job="job", kind="slow_compute", severity="sev2", state="opened", revision=0, opened_at_s=now_s,
            updated_at_s=now_s, reason="slow", suspects=(Suspect(score=1.0, reason="slow", rank=0, node="a"),),
        ))  # fmt: skip
        bus.flush()
        ended = ("done", "failed", "skipped")
        until(lambda: any(one.kind == "evict_node" and one.outcome in ended for one in actions()), "no eviction")
        said = [(one.id, one.outcome, one.why) for one in actions()]
        assert [(name, outcome) for name, outcome, _ in said] == [
            ("i1/save/1", "started"), ("i1/save/1", "done"), ("i1/evict/1", "started"), ("i1/evict/1", "done"),
        ], said  # fmt: skip
        until(lambda: "attempt 1 from" in (tmp_path / "b.log").read_text(), "the spare has not begun")
        saved = re.findall(r"saved (\d+)", (tmp_path / "a.log").read_text())[-1]
        assert f"attempt 1 from {saved}" in (tmp_path / "b.log").read_text()
    finally:
        (tmp_path / "end").touch()
        nodes.close()
        bus.close()
