"""Jobs under ``trainwarden watch``, and what it said of them beside what really happened."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.places import ROOT
from trainwarden import hook
from trainwarden.bus.address import connect
from trainwarden.records import CollectivesRecord
from trainwarden.topics import COLLECTIVES

SCRIPT = Path(__file__).with_name("train.py")
INJECT = ROOT / "trainwarden" / "inject"
WARDEN = [sys.executable, "-m", "trainwarden.cli.main"]


@dataclass(frozen=True)
class Job:
    """What to run; `arguments` are those of the training script."""

    name: str
    ranks: int
    arguments: tuple[str, ...]
    environ: Mapping[str, str] = field(default_factory=dict)
    limit_s: float = 300.0


@dataclass(frozen=True)
class Outcome:
    """What came of a job.

    Attributes
    ----------
    incidents : list
        As ``watch --json`` tells them.
    truth : dict
        By rank, what the script wrote down.
    headers, steps : dict
        By rank, what the hook wrote down.
    calls : int
        Collective calls that came to the bus from NCCL's profiler plug-in.
    log : str
        The end of what was printed.
    """

    exit_code: int
    incidents: list[dict[str, Any]]
    truth: dict[int, dict[str, Any]]
    headers: dict[int, hook.Header]
    steps: dict[int, list[hook.Step]]
    calls: int
    log: str

    @property
    def step_s(self) -> float | None:
        """Healthy step time, from before any fault, by the median rank."""
        at = [step.duration_s for steps in self.steps.values() for step in steps[8:28]]
        return sorted(at)[len(at) // 2] if at else None

    @property
    def fault_at_s(self) -> float | None:
        """When the fault began."""
        times = [told["fault_at_s"] for told in self.truth.values() if "fault_at_s" in told]
        return min(times) if times else None


def torchrun(job: Job, truth: Path) -> list[str]:
    """The command of `job` on this machine."""
    place = ["--nproc-per-node", str(job.ranks), "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"]
    return [sys.executable, "-m", "torch.distributed.run", *place, str(SCRIPT), *job.arguments, "--truth", str(truth)]


def emptied(place: Path) -> Path:
    """Where ranks write down the truth, in the folder of a job; what an earlier run left there says nothing of this."""
    shutil.rmtree(place, ignore_errors=True)
    truth = place / "truth"
    truth.mkdir(parents=True)
    return truth


def watched(job: Job, folder: Path) -> Outcome:
    """Run `job` under the warden; its run folder, recording and logs stay under `folder`."""
    place, run_dir, recorded = folder / job.name, folder / job.name / "run", folder / job.name / "recorded"
    truth, out = emptied(place), place / "watch.json"
    command = [*WARDEN, "watch", "--job", job.name, "--json", str(out), "--keep", str(recorded), "--",
               *torchrun(job, truth)]  # fmt: skip
    code, log = run(command, place / "log.txt", {**job.environ, "TRAINWARDEN_RUN_DIR": str(run_dir)}, job.limit_s)
    said = json.loads(out.read_text()) if out.exists() else {}
    headers, steps = hooks(run_dir / "hook")
    recorded.mkdir(parents=True, exist_ok=True)
    for path in (run_dir / "hook").glob("rank-*.nccl"):  # as NCCL's calls came, for tests to play again
        shutil.copy(path, recorded)
    return Outcome(code, said.get("incidents", []), told(truth), headers, steps, calls_on_bus(run_dir), log)


def plain(job: Job, folder: Path, *, with_hook: bool) -> float | None:
    """Wall seconds of a step of `job` without the warden, and with or without the hook; None if it did not end well."""
    place = folder / f"{job.name}-{'hook' if with_hook else 'plain'}"
    truth = emptied(place)
    environ = dict(job.environ)
    if with_hook:
        (place / "hook").mkdir(exist_ok=True)
        environ |= {"TRAINWARDEN_HOOK_DIR": str(place / "hook")}
        environ["PYTHONPATH"] = os.pathsep.join([str(INJECT), str(ROOT)])
    code, _ = run(torchrun(job, truth), place / "log.txt", environ, job.limit_s)
    steps_s = [found["wall_step_s"] for found in told(truth).values() if "wall_step_s" in found]
    return max(steps_s) if steps_s and not code else None


def run(command: Sequence[str], log: Path, environ: Mapping[str, str], limit_s: float) -> tuple[int, str]:
    """Exit code of `command` and the end of what it printed; 124 if it took too long, and it has ended."""
    ours = {key: value for key, value in os.environ.items() if not key.startswith("TRAINWARDEN_")}
    ours |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **environ}
    with log.open("wb") as file:
        process = subprocess.Popen(command, env=ours, stdout=file, stderr=file, cwd=ROOT)
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            process.terminate()
            try:
                process.wait(40)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            code = 124
    return code, log.read_text(errors="replace")[-4000:]


def calls_on_bus(run_dir: Path) -> int:
    """How many collective calls NCCL's profiler plug-in has told the bus of."""
    path = run_dir / "bus.db"
    if not path.exists():
        return 0
    bus = connect(f"embedded:{path}", {})
    try:
        records = [message.record for message in bus.read(COLLECTIVES)]
        return sum(len(record.of) for record in records if isinstance(record, CollectivesRecord))
    finally:
        bus.close()


def told(truth: Path) -> dict[int, dict[str, Any]]:
    """What the ranks wrote down of themselves."""
    found = [json.loads(path.read_text()) for path in truth.glob("rank-*.json")]
    return {one["rank"]: one for one in found}


def hooks(folder: Path) -> tuple[dict[int, hook.Header], dict[int, list[hook.Step]]]:
    """What the hooks in `folder` wrote down, by rank."""
    headers: dict[int, hook.Header] = {}
    steps: dict[int, list[hook.Step]] = {}
    for path in folder.glob("rank-*.hook"):
        header = hook.read_header(path)
        if header is not None and header.recorded:
            headers[header.rank], steps[header.rank] = header, hook.read_steps(path) or []
    return headers, steps
