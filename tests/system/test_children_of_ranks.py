"""A child that inherits a rank's environment and runs torch of its own is no trainer: nothing it does is the rank's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.places import ROOT
from tests.system.runs import WARDEN

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]

# The probe's steps have numbers of its own, and it ends with an error.
RANK = """
import os, subprocess, sys, time
from trainwarden import hook
probe = "--probe" in sys.argv
for step in range(8 if probe else 60):
    time.sleep(0.05)
    hook.iteration()
    if not probe and step == 25:
        subprocess.Popen([sys.executable, __file__, "--probe"])
sys.exit(3 if probe else 0)
"""


def test_a_probe_of_the_same_rank_changes_nothing(tmp_path: Path) -> None:
    script, out = tmp_path / "train.py", tmp_path / "out.json"
    script.write_text(RANK)
    environ = {**os.environ, "XDG_STATE_HOME": str(tmp_path), "PYTHONPATH": str(ROOT), "RANK": "0", "WORLD_SIZE": "1"}

    def warden(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*WARDEN, *words], env=environ, capture_output=True, text=True, timeout=100, cwd=tmp_path, check=False
        )

    ended = warden("watch", "--json", str(out), "--job", "probed", "--", sys.executable, str(script))
    assert ended.returncode == 0, ended.stderr
    result = json.loads(out.read_text())
    assert result["incidents"] == [], ended.stderr
    assert result["steps"] == 60
    status = json.loads(warden("status", "--json").stdout)
    assert [(job["ranks"], len(job["beside"])) for job in status["jobs"]] == [(1, 1)]
    (run,) = (tmp_path / "trainwarden" / "runs").iterdir()
    assert '"late"' not in (run / "services" / "detector.log").read_text()
