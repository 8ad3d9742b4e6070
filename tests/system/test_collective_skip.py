"""A real gloo job in which one rank leaves out a collective: it is named with group, operation, number, place."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.system.runs import LEAN, ROOT, WARDEN, forked, steps_done
from tests.torch_forks import TorchForks
from trainwarden.bus.address import connect
from trainwarden.records import IncidentRecord
from trainwarden.topics import INCIDENTS

pytestmark = [pytest.mark.system, pytest.mark.timeout(180)]
RANKS, SKIP_AT, SKIP_RANK = 3, 30, 1
STEPS = 60  # a clean run goes as far again as the fault takes to come


class Watched:
    """``trainwarden watch`` around the script, read from its bus while it runs."""

    def __init__(self, folder: Path, job: list[str]) -> None:
        self.run_dir = folder / "run"
        self.out = folder / "out.json"
        self._log = folder / "watch.log"
        command = [*WARDEN, "watch", "--json", str(self.out), "--", *job]
        environ = {
            **os.environ, **LEAN, "TRAINWARDEN_RUN_DIR": str(self.run_dir), "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(command, env=environ, stdout=log, stderr=log, cwd=ROOT)

    def incidents(self) -> list[IncidentRecord]:
        path = self.run_dir / "bus.db"
        if not path.exists():
            return []
        bus = connect(f"embedded:{path}", {})
        try:
            return [one.record for one in bus.read(INCIDENTS) if isinstance(one.record, IncidentRecord)]
        finally:
            bus.close()

    def end(self) -> dict[str, Any]:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)
        assert self.out.exists(), self.tail()
        found: dict[str, Any] = json.loads(self.out.read_text())
        return found

    def tail(self) -> str:
        return self._log.read_text(errors="replace")[-4000:]


def test_a_skipped_collective_is_named_with_its_rank_group_operation_and_sequence(
    torch_forks: TorchForks, tmp_path: Path
) -> None:
    words = ("--steps", "5000", "--skip-at", str(SKIP_AT), "--skip-rank", str(SKIP_RANK))
    watched = Watched(tmp_path, forked(torch_forks, RANKS, "skip_collective.py", *words))
    try:
        deadline = time.monotonic() + 120.0
        while not watched.incidents() and time.monotonic() < deadline and watched.process.poll() is None:
            time.sleep(0.2)
        assert watched.incidents(), watched.tail()
    finally:
        result = watched.end()
    (incident,) = result["incidents"]
    assert incident["kind"] == "collective_mismatch", incident
    assert incident["suspects"][0]["rank"] == SKIP_RANK
    # Sequence numbers count from 1, one a step, in the group of the replicas.
    assert f"rank {SKIP_RANK} did not reach all_reduce {SKIP_AT + 1} of group" in incident["reason"]
    assert "replicas" in incident["reason"]
    place = incident["reason"].partition(f"; rank {SKIP_RANK} stands in ")[2]
    assert "main (scripts/skip_collective.py:" in place, incident  # by py-spy


def test_a_job_whose_ranks_all_come_leaves_no_incident_and_is_asked_nothing(
    torch_forks: TorchForks, tmp_path: Path
) -> None:
    watched = Watched(tmp_path, forked(torch_forks, RANKS, "skip_collective.py", "--steps", str(STEPS)))
    try:
        watched.process.wait(120)
        assert steps_done(watched.run_dir, 0) == STEPS, watched.tail()
    finally:
        result = watched.end()
    assert result["incidents"] == []
    assert result["exit_code"] == 0
