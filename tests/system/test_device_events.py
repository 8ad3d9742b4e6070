"""Real DDP, events that stand for a device's: what they say of steps and waits is what the host has seen."""

from __future__ import annotations

import csv
import json
import os
import statistics
import subprocess
from pathlib import Path

import pytest

from tests.places import ROOT
from tests.system.runs import WARDEN, forked
from tests.torch_forks import TorchForks
from trainwarden import hook

pytestmark = [pytest.mark.system, pytest.mark.timeout(240)]
STEPS = 40


def test_under_ddp_the_device_tells_who_waits(torch_forks: TorchForks, tmp_path: Path) -> None:
    inject = ROOT / "trainwarden" / "inject"
    environ = {
        **os.environ, "TRAINWARDEN_HOOK_DIR": str(tmp_path), "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(inject), str(ROOT)]),
    }  # fmt: skip
    environ.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)
    command = forked(torch_forks, 2, "device_events.py", "--steps", str(STEPS), "--work-ms", "40", "10")
    done = subprocess.run(command, env=environ, cwd=ROOT, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    waits: dict[int, float] = {}
    for path in tmp_path.glob("rank-*.hook"):
        header, steps = hook.read_header(path), hook.read_steps(path)
        assert header is not None
        assert steps is not None
        assert (header.accelerator, header.timing, header.errors) == ("cuda", "on", 0)
        assert (len(steps), header.timed) == (STEPS, STEPS - 2)
        timed = [(step, step.device_s, step.device_wait_s) for step in steps[1:-2]]
        told = [(step, took, wait) for step, took, wait in timed if took is not None and wait is not None]
        assert len(told) == STEPS - 3
        assert statistics.median(abs(took - step.duration_s) for step, took, _ in told) < 0.005
        assert statistics.median(abs(wait - step.wait_s) for step, _, wait in told) < 0.005
        waits[header.rank] = statistics.median(wait for _, _, wait in told)
    assert waits[0] < 0.5 * waits[1]


def test_a_slow_rank_is_named_by_what_the_device_says(torch_forks: TorchForks, tmp_path: Path) -> None:
    out, run_dir = tmp_path / "out.json", tmp_path / "run"
    environ = {**os.environ, "TRAINWARDEN_RUN_DIR": str(run_dir), "OMP_NUM_THREADS": "1"}
    environ.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)
    job = forked(torch_forks, 2, "device_events.py", "--steps", "150", "--work-ms", "40", "--slow-at", "60")
    command = [*WARDEN, "watch", "--json", str(out), "--keep", str(tmp_path / "kept"), "--", *job]
    done = subprocess.run(command, env=environ, cwd=ROOT, capture_output=True, text=True, timeout=170, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    slow = [one for one in json.loads(out.read_text())["incidents"] if one["kind"] == "slow_compute"]
    assert [one["suspects"][0]["rank"] for one in slow] == [1], done.stderr[-4000:]
    rows = list(csv.DictReader((tmp_path / "kept" / "iterations.csv").read_text().splitlines()))
    timed = [row for row in rows if row["basis"] == "device_step"]
    assert len(timed) == 2 * (150 - 3)  # the first has no begin, and the last two were never asked
    assert all(row["compute_s"] and row["wait_s"] for row in timed)
    assert {row["compute_s"] for row in rows if row["basis"] == "host"} == {""}
