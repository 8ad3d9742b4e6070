"""Suspects measured between two attempts of a job that cannot stand still, when the engine restarts it."""

from __future__ import annotations

import os
import signal
import subprocess
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from tests.places import ROOT
from tests.system.runs import LEAN, WARDEN
from tests.system.test_validate_in_job import FAULT, headers, wait_for
from trainwarden import rundir
from trainwarden.bus.address import connect
from trainwarden.protocols import Bus
from trainwarden.records import ActionRecord, IncidentRecord, Suspect
from trainwarden.topics import ACTIONS, INCIDENTS

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

# Takes no part in pauses.
LOOP = """
    import time
    from trainwarden import hook

    for step in range(100_000):
        hook.iteration(step)
        time.sleep(0.05)
"""
REMEDIES = """
    slow_compute = [{ action = "validate" }, { action = "restart_job" }]
"""


class Launch:
    """Four ranks of node-b under `launch` and an engine in mode auto."""

    def __init__(self, folder: Path) -> None:
        (folder / "site").mkdir()
        (folder / "site" / "sitecustomize.py").write_text(textwrap.dedent(FAULT))
        (folder / "train.py").write_text(textwrap.dedent(LOOP))
        (folder / "remedies.toml").write_text(textwrap.dedent(REMEDIES))
        self.run_dir = folder / "run"
        environ = {
            **os.environ, "PYTHONPATH": f"{folder / 'site'}:{ROOT}", "TRAINWARDEN_RUN_DIR": str(self.run_dir),
            "TRAINWARDEN_NODE": "node-b",
            "TRAINWARDEN_ENGINE_REMEDIES": str(folder / "remedies.toml"), **LEAN,
        }  # fmt: skip
        command = ["launch", "--nproc", "4", "--job", "job", "--mode", "auto", "--", "python", str(folder / "train.py")]
        self.out = (folder / "out").open("wb")
        self.process = subprocess.Popen([*WARDEN, *command], env=environ, stdout=self.out, stderr=self.out)
        wait_for(lambda: len(self.steps()) == 4, self.process)
        self.bus: Bus = connect(f"embedded:{rundir.bus_file(self.run_dir)}")

    def steps(self) -> list[int]:
        """How far each process that has made one is, ended ones too."""
        return [header.step for header in headers(self.run_dir) if header.recorded]

    def suspect(self) -> None:
        """An incident that the engine has a row for, and no launcher can cure."""
        now_s = time.time()
        suspicion = IncidentRecord(
            id="i1", job="job", kind="slow_compute", severity="sev3", state="opened", revision=0, opened_at_s=now_s,
            updated_at_s=now_s, reason="slow", suspects=(Suspect(score=0.9, reason="", rank=3, node="node-b"),),
        )  # fmt: skip
        self.bus.publish(INCIDENTS, "job", suspicion)
        self.bus.flush()

    def actions(self) -> list[ActionRecord]:
        return [message.record for message in self.bus.read(ACTIONS)]

    def ended(self, kind: str) -> list[ActionRecord]:
        return [one for one in self.actions() if one.kind == kind and one.outcome in ("done", "failed")]

    def close(self) -> None:
        self.bus.close()
        self.process.terminate()
        self.process.wait(60)
        self.out.close()


def validations(job: Launch) -> list[psutil.Process]:
    """Of this job: other tests of this machine measure as well."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if {"validate", "--when-told", str(job.run_dir / rundir.VALIDATION)} <= {*words}:
            found.append(process)
    return found


def test_the_engines_restart_of_a_loop_that_cannot_pause_measures_who_is_suspected(tmp_path: Path) -> None:
    job = Launch(tmp_path)
    try:
        began_s = time.monotonic()
        job.suspect()
        wait_for(lambda: job.ended("restart_job"), job.process)
        print(f"restarted, with its measurement, {time.monotonic() - began_s:.1f} s after the incident")
        wait_for(lambda: job.ended("validate"), job.process)
        (validated,) = job.ended("validate")
        assert (validated.id, validated.outcome) == ("i1/validate/1", "done")
        assert (validated.plan["verdict"], validated.plan["confirmed"]) == ("confirmed", ["node-b"])
        assert "confirmed: rank 3 on node-b computes" in validated.why
        (restarted,) = job.ended("restart_job")
        assert restarted.outcome == "done"
        wait_for(lambda: len(job.steps()) == 8, job.process)
        assert "there is no other node, so the ranks start here again" in (tmp_path / "out").read_text()
    finally:
        job.close()


def test_a_validation_that_is_killed_or_stands_still_does_not_keep_a_job_down(tmp_path: Path) -> None:
    job = Launch(tmp_path)
    try:
        job.suspect()
        found: list[psutil.Process] = []
        wait_for(lambda: found.extend(validations(job)) or len(found) > 0, job.process)
        for process in found:  # those of this very look: another look takes as long as a short measurement
            process.send_signal(signal.SIGKILL)
        wait_for(lambda: job.ended("restart_job"), job.process)
        wait_for(lambda: job.ended("validate"), job.process)
        (validated,) = job.ended("validate")
        assert validated.outcome == "failed"
        assert "the validation ended with code -9 and no result" in validated.why
        wait_for(lambda: len(job.steps()) == 8, job.process)
    finally:
        job.close()
    assert validations(job) == []
