"""Ranks without a launcher: the environment that torchrun's plug-in gives them, and plans for them to read."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from trainwarden import rundir
from trainwarden.state import save_json
from trainwarden.torchrun.surroundings import Surroundings


def environment(run_dir: Path) -> dict[str, str]:
    """What ranks of `job` on `node` find around them in their first attempt; torch's own variables are torchrun's."""
    environ = {
        **os.environ, "TRAINWARDEN_JOB": "job", "TRAINWARDEN_RUN_DIR": str(run_dir), "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1", "GLOO_SOCKET_IFNAME": "lo",
    }  # fmt: skip
    Surroundings("job", "node", environ, lambda _: None).prepare(0, None)
    return environ


def put_plan(run_dir: Path, micro_batches: Sequence[int]) -> None:
    """Have ranks read `micro_batches` as their job's first plan."""
    plan = {"number": 1, "micro_batches": list(micro_batches), "why": "the test says so", "operation": "op"}
    save_json(run_dir / rundir.PLAN, plan)
