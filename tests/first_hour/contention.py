"""Jobs beside busy loops: is a healthy rank ever named, and is a slow one?

    python -m tests.first_hour.contention healthy --kept FILE      # 40 jobs under 0, 4, 8 and 16 loops: none may be
    python -m tests.first_hour.contention slow --kept FILE         # 20 ranks of 1.5 times under 4 loops: 18 must be
    python -m tests.first_hour.contention healthy --only 3 17      # some of them, by number

Loops begin once a job makes steps. `--keep DIR` leaves a recorded folder of each job, to judge it again.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

import psutil

from tests.first_hour.situations import TORCHRUN, TRAIN, WATCH, busy_loops, wait_for_steps
from tests.places import ROOT

LOOPS: Final = (0, 4, 8, 16)
LASTS_S: Final = 30.0  # a healthy job, once it makes steps
SLOW_AFTER_S, SLOW_FOR_S = 20.0, 32.0  # of steps; a job that waits for processors takes longer to begin
PATIENCE_S: Final = 120.0
TIMES: Final = 1.5
BUSY_JOB: Final = str(ROOT / "tests" / "benchmarks" / "detection" / "own_runs" / "busy_job.py")
GPT: Final = [str(ROOT / "examples" / "train_gpt.py"), "--steps", "100000", "--checkpoint-every", "100000"]
EXIT_S: Final = 120.0


class Job(NamedTuple):
    """What is watched, with how many ranks, beside how many loops; the last rank becomes slow where `slow`."""

    name: str
    command: list[str]
    ranks: int
    loops: int
    slow: bool = False


def busy_job(kind: str, times: float, work: str) -> list[str]:
    return [BUSY_JOB, kind, str(times), str(SLOW_AFTER_S), "100000", work]


KINDS: Final[list[tuple[str, int, list[str]]]] = [
    ("plain", 1, [str(TRAIN), "sigterm", "alone"]), ("torch", 1, [str(TRAIN), "sigterm", "torch"]),
    ("ddp", 2, [str(TRAIN), "sigterm", "torch"]), ("ddp", 4, [str(TRAIN), "sigterm", "torch"]),
    ("gpt", 2, [*GPT, "--micro-batches", "4"]), ("gpt", 4, [*GPT, "--micro-batches", "8"]),
    ("trainer", 1, [str(TRAIN), "sigterm", "trainer"]), ("cpu", 2, busy_job("cpu", 1.0, "150")),
    ("cpu", 4, busy_job("cpu", 1.0, "60")), ("naps", 3, busy_job("sleep", 1.0, "0.1")),
]  # fmt: skip
SLOW: Final = [("cpu", 2, "150"), ("cpu", 3, "100"), ("cpu", 4, "80"), ("sleep", 2, "0.1"), ("sleep", 4, "0.1")]


def jobs(slow: bool) -> list[Job]:
    """All of them, numbered by their place."""
    if slow:
        return [
            Job(f"{kind}-{ranks}", busy_job(kind, TIMES, work), ranks, 4, slow=True)
            for _ in range(4) for kind, ranks, work in SLOW
        ]  # fmt: skip
    return [Job(f"{name}-{ranks}", command, ranks, loops) for loops in LOOPS for name, ranks, command in KINDS]


class Answer(NamedTuple):
    """What was said of a job: kind and ranks of each incident, and for how many steps it was watched."""

    number: int
    name: str
    loops: int
    slow: bool
    steps: int
    incidents: list[tuple[str, list[int]]]

    @property
    def named(self) -> set[int]:
        """Ranks that an incident calls slow; host contention only says that one suffers."""
        return {rank for kind, ranks in self.incidents if kind != "host_contention" for rank in ranks}


def answer_of(number: int, job: Job, folder: Path, keep: Path | None, packages: Path | None) -> Answer:
    """Watch one job beside its loops for as long as is due, and end it as a scheduler does."""
    folder.mkdir(parents=True)
    out = folder / "out.json"
    environ = {
        **os.environ, "XDG_STATE_HOME": str(folder), "FIRST_HOUR_FOLDER": str(folder), "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
    }  # fmt: skip
    if packages is not None:
        environ["PYTHONPATH"] = f"{packages.resolve() / 'transformers'}{os.pathsep}{environ['PYTHONPATH']}"
    python = [*TORCHRUN, str(job.ranks)] if job.ranks > 1 else [sys.executable]
    kept = ["--keep", str(keep / f"{number}-{job.name}")] if keep else []
    command = [*WATCH, "--json", str(out), *kept, "--", *python, *job.command]
    with (folder / "log").open("wb") as log:
        watch = subprocess.Popen(command, env=environ, stdout=log, stderr=log, start_new_session=True)
    try:
        wait_for_steps(folder, psutil.Process(watch.pid))
        with busy_loops(job.loops):
            if job.slow:
                until_s = time.monotonic() + PATIENCE_S
                while not (folder / "fault_at").exists() and time.monotonic() < until_s:
                    time.sleep(0.2)
            time.sleep(SLOW_FOR_S if job.slow else LASTS_S)
            watch.send_signal(signal.SIGTERM)
            watch.wait(EXIT_S)
    finally:
        if watch.poll() is None:
            os.killpg(watch.pid, signal.SIGKILL)
            watch.wait()
    made: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {}
    found = [
        (one["kind"], [by["rank"] for by in one["suspects"] if by["rank"] is not None])
        for one in made.get("incidents", [])
    ]
    return Answer(number, job.name, job.loops, job.slow, made.get("steps") or 0, found)


def main() -> int:
    """Run them; exit code 1 if a healthy rank was named, or too few slow ones."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("which", choices=["healthy", "slow"])
    parser.add_argument("--only", nargs="+", type=int, help="numbers of jobs")
    parser.add_argument("--kept", type=Path, help="file to which results are added")
    parser.add_argument("--keep", type=Path, help="folder for a recorded folder of each job")
    parser.add_argument("--packages", type=Path, help="folder with a folder `transformers`")
    args = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory(prefix="contention-") as folder:
        for number, job in enumerate(jobs(args.which == "slow")):
            if args.only and number not in args.only:
                continue
            results.append(answer_of(number, job, Path(folder) / str(number), args.keep, args.packages))
            print(results[-1], flush=True)
            if args.kept:
                with args.kept.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(results[-1]) + "\n")
    if args.which == "healthy":
        named = sum(bool(one.named) for one in results)
        print(f"{len(results)} healthy jobs: a rank was named in {named}")
        return 1 if named else 0
    right = sum(jobs(slow=True)[one.number].ranks - 1 in one.named for one in results)
    print(f"{len(results)} slow ranks: {right} named")
    return 0 if right >= 0.9 * len(results) else 1


if __name__ == "__main__":
    sys.exit(main())
