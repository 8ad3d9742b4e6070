"""What the hook sees in real training frameworks: runs a little job of each under `watch`, writes docs/frameworks.md.

    python -m tests.frameworks --packages DIR              # all that can be imported
    python -m tests.frameworks --packages DIR accelerate   # one, leaving the other rows as they are

Each framework is looked for in DIR/NAME, beside the one torch of this environment, and in the environment itself. For
DIR/NAME, ``pip install --no-deps --target DIR/NAME PACKAGES`` with

    transformers    transformers accelerate huggingface-hub tokenizers safetensors regex tqdm httpx2 httpcore2
                    truststore anyio h11 idna certifi sniffio
    lightning       lightning lightning-utilities torchmetrics tqdm
    deepspeed       hjson py-cpuinfo ninja einops tqdm, and deepspeed itself: the folder of that name in its archive
    megatron-core   megatron-core einops
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.places import ROOT

PAGE: Final = ROOT / "docs" / "frameworks.md"
SCRIPTS: Final = ROOT / "tests" / "scripts"
STEPS, MICRO_BATCHES, PAUSE_EVERY, RANKS = 24, 4, 8, 2
AFTER_CHECKPOINTS: Final = range(PAUSE_EVERY, STEPS, PAUSE_EVERY)
PATIENCE_S = 900.0  # DeepSpeed's first run compiles for minutes
HEAD = """# Frameworks

Which frameworks does the hook understand without a change to the job? `python -m tests.frameworks --packages DIR` runs
them and writes this page; its docstring says how DIR is made. Each job is a small model on {ranks} ranks, CPU and gloo:
{steps} optimizer steps of {micro} micro-batches (one for fully_shard), with a checkpoint, and an evaluation where the
framework has one, after every {pause} steps. The times show that steps are split, not how fast a framework is: they are
of one run on a shared machine of two cores. Two figures in a cell are one for each rank. None ran on an accelerator.

"Nothing" is missing if every step of every rank is seen once and in order, with its micro-batches, waits, and
checkpoints as pauses. DeepSpeed compiles an operator for CPUs in its first run in a folder, which takes minutes.

| {columns} |
|{rules}
"""
COLUMNS = (
    "job", "version", "steps seen of made", "micro-batches", "compute / wait / pause of a step, median ms",
    "its pause with a checkpoint, ms", "what is missing",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Job:
    """One row of the table."""

    name: str
    package: str  # what is imported, and has a version
    script: str
    options: tuple[str, ...] = ()
    micro_batches: int = MICRO_BATCHES
    saves: bool = True
    environ: dict[str, str] = field(default_factory=dict)
    folder: str = ""  # of its packages; the first word of `name` where not said


CPU = {"DS_ACCELERATOR": "cpu"}
JOBS: Final = (
    Job("transformers Trainer", "transformers", "hf_trainer.py"),
    Job("accelerate", "accelerate", "accelerate_loop.py", folder="transformers"),
    Job("lightning Trainer, DDP", "lightning", "lightning_trainer.py"),
    *(
        Job(f"deepspeed ZeRO {stage}", "deepspeed", "deepspeed_zero.py", ("--stage", stage), environ=CPU)
        for stage in "123"
    ),
    *(
        Job(f"megatron-core, {shape} parallel", "megatron.core", "megatron_core.py", ("--shape", shape))
        for shape in ("pipeline", "tensor")
    ),
    Job("torch fully_shard (FSDP2), as torchtitan's", "torch", "../fsdp.py", micro_batches=1, saves=False),
)


@dataclass(frozen=True, slots=True)
class Rank:
    """What was recorded of one rank's steps."""

    steps: list[int]
    micro_batches: set[str]
    parts_ms: tuple[float, float, float]
    saving_ms: float  # the pause of steps that begin with a checkpoint

    @classmethod
    def of(cls, rows: list[dict[str, str]]) -> Rank:
        """From the rows of ``iterations.csv``."""
        parts = [[float(row[name]) * 1e3 for row in rows] for name in ("compute_s", "wait_s", "pause_s")]
        saving = [pause for row, pause in zip(rows, parts[2], strict=True) if int(row["step"]) in AFTER_CHECKPOINTS]
        return cls(
            steps=sorted(int(row["step"]) for row in rows),
            micro_batches={row["micro_batches"] or "unknown" for row in rows[1:]},
            parts_ms=(statistics.median(parts[0]), statistics.median(parts[1]), statistics.median(parts[2])),
            saving_ms=statistics.median(saving) if saving else 0.0,
        )


def main() -> None:
    """Run the jobs that were named, or all, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packages", type=Path, help="folder with a folder of packages for each framework")
    parser.add_argument("names", nargs="*", help="first words of the jobs to run; default all")
    args = parser.parse_args()
    rows = written()
    for job in JOBS:
        if args.names and not any(job.name.startswith(name) for name in args.names):
            continue
        print(f"{job.name} ...", flush=True)
        rows[job.name] = row_of(job, args.packages)
        print(rows[job.name], flush=True)
        PAGE.write_text(page(rows), encoding="utf-8")
    PAGE.write_text(page(rows), encoding="utf-8")


def written() -> dict[str, str]:
    """The rows of the page as it is."""
    lines = PAGE.read_text(encoding="utf-8").splitlines() if PAGE.exists() else []
    found = {line.split(" | ")[0].removeprefix("| "): line for line in lines if line.startswith("| ")}
    return {job.name: found[job.name] for job in JOBS if job.name in found}


def page(rows: dict[str, str]) -> str:
    """The page with `rows`."""
    columns, rules = " | ".join(COLUMNS), "---|" * len(COLUMNS)
    head = HEAD.format(ranks=RANKS, steps=STEPS, micro=MICRO_BATCHES, pause=PAUSE_EVERY, columns=columns, rules=rules)
    return head + "".join(rows[job.name] + "\n" for job in JOBS if job.name in rows)


def row_of(job: Job, packages: Path | None) -> str:
    """Run `job`; its line of the table, which says so where it could not be run."""
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", **job.environ}
    paths = [str(ROOT), str(SCRIPTS), environ.get("PYTHONPATH", "")]
    if packages is not None:
        paths.insert(1, str(packages / (job.folder or job.name.split()[0].rstrip(","))))
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    ask = f"import {job.package} as package; print(); print(package.__version__)"
    asked = subprocess.run([sys.executable, "-c", ask], env=environ, capture_output=True, text=True, check=False)
    if asked.returncode:
        return line(job, "", why=f"not run here: {(asked.stderr.splitlines() or ['cannot be imported'])[-1]}")
    version = asked.stdout.splitlines()[-1].strip().partition("+")[0]
    with tempfile.TemporaryDirectory() as scratch:
        why = run(job, environ, Path(scratch))
        if why:
            return line(job, version, why=why)
        with (Path(scratch) / "kept" / "iterations.csv").open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    of_ranks = [[row for row in rows if row["rank"] == str(rank)] for rank in range(RANKS)]
    return line(job, version, ranks=[Rank.of(own) for own in of_ranks if own])


def run(job: Job, environ: dict[str, str], scratch: Path) -> str:
    """Run `job` under `watch`; why it failed, "" if it did not."""
    script = (SCRIPTS / "frameworks" / job.script).resolve()
    options = ["--steps", str(STEPS), *job.options]
    if script.parent.name == "frameworks":
        options += ["--micro-batches", str(job.micro_batches), "--pause-every", str(PAUSE_EVERY)]
        options += ["--folder", str(scratch)]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        str(RANKS),
        "--master-port",
        str(port),
    ]
    warden = [sys.executable, "-m", "trainwarden.cli.main", "watch", "--json", str(scratch / "out.json")]
    command = [*warden, "--keep", str(scratch / "kept"), "--", *torchrun, str(script), *options]
    try:
        ended = subprocess.run(
            command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"did not end within {PATIENCE_S:.0f} s"
    if ended.returncode:
        said = [text for text in ended.stdout.splitlines() + ended.stderr.splitlines() if "Error: " in text]
        return f"failed: {said[0][:200] if said else ended.returncode}"
    incidents = json.loads((scratch / "out.json").read_text(encoding="utf-8"))["incidents"]
    if incidents:
        print(f"incidents: {[incident.get('kind') for incident in incidents]}", flush=True)
    return ""


def line(job: Job, version: str, *, ranks: list[Rank] | None = None, why: str = "") -> str:
    """One line of the table."""
    if not ranks:
        return f"| {job.name} | {version} | | | | | {why or 'everything: nothing was seen'} |"
    missing = []
    if len(ranks) < RANKS:
        missing.append(f"{RANKS - len(ranks)} ranks")
    if any(rank.steps != list(range(STEPS)) for rank in ranks):
        missing.append("steps")
    counts = set.union(*(rank.micro_batches for rank in ranks))
    if counts != {str(job.micro_batches)}:
        missing.append(f"micro-batches: {job.micro_batches} were made")
    if all(rank.parts_ms[1] == 0.0 for rank in ranks):
        missing.append("waits")
    if job.saves and any(rank.saving_ms < 1.5 * rank.parts_ms[2] for rank in ranks):
        missing.append("checkpoints")
    steps = ", ".join(f"{len(rank.steps)} of {STEPS}" for rank in ranks)
    parts = "; ".join(" / ".join(f"{part:.1f}" for part in rank.parts_ms) for rank in ranks)
    saving = "; ".join(f"{rank.saving_ms:.1f}" for rank in ranks) if job.saves else "none made"
    return (
        f"| {job.name} | {version} | {steps} | {', '.join(sorted(counts))} | {parts} | {saving} "
        f"| {'; '.join(missing) or 'nothing'} |"
    )


if __name__ == "__main__":
    main()
