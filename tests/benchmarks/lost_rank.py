"""The pause that a rank's death makes, in one run: ``python -m tests.benchmarks.lost_rank --kills 20 --seed 7``.

`ResilientStep` and restarts of all ranks from checkpoints in memory run under torchrun with our rendezvous. With
``--torchft PYTHON``, an interpreter that can import torchft and torch, that peer takes part: a lighthouse with its
shortest useful times, and one replica group a rank. Each mode is one job of four ranks on one machine. A rank is killed
at a drawn moment, and is there again before the next one is killed, except in torchft's job, which is begun anew for
each kill: it leaves restarts to torchrun.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import random
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.places import ROOT
from tests.servers.ports import free_ports
from tests.system.torchrun_nodes import TorchrunNodes
from tests.torch_forks import TorchForks

SCRIPT = ROOT / "tests" / "scripts" / "lost_rank.py"
RANK = ROOT / "trainwarden" / "torchrun" / "rank.py"
RANKS, WARM_STEPS, AFTER_STEPS, PATIENCE_S = 4, 10, 3, 120.0
PLAIN, PAIRED_STEPS = "memory, nothing saved", 150
FORKED = "memory, ranks forked from torchrun"
LIGHTHOUSE = {"min_replicas": 2, "quorum_tick_ms": 20, "join_timeout_ms": 200, "heartbeat_timeout_ms": 300}


class Job:
    """The steps that the ranks of a job note in a folder."""

    def __init__(self, out: Path) -> None:
        self.out = out
        out.mkdir()

    def pids(self) -> dict[int, int]:
        """The newest process of each rank."""
        found = sorted(self.out.glob("*.steps"), key=lambda path: path.stat().st_ctime)
        return {int(rank): int(pid) for rank, _, pid in (path.stem.partition("-") for path in found)}

    def steps(self) -> list[tuple[int, float, int]]:
        """Number, time and process of each step that a rank has made."""
        found = []
        for path in self.out.glob("*.steps"):
            pid = int(path.stem.partition("-")[2])
            for line in path.read_text().splitlines():
                number, time_s = line.split()
                found.append((int(number), float(time_s), pid))
        return found

    def runs(self, above: int) -> None:
        """Wait until each of all ranks lives and has made a step of a higher number."""
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            newest = {pid: number for number, _, pid in sorted(self.steps())}
            living = [pid for pid in self.pids().values() if Path(f"/proc/{pid}/cmdline").exists()]
            if len(living) == RANKS and all(newest.get(pid, -1) > above for pid in living):
                return
            assert time.monotonic() < deadline_s, f"only {len(living)} ranks are above step {above}"
            time.sleep(0.05)

    def pause_s(self, chance: random.Random) -> float:
        """Kill a rank; by how many seconds the longest pause between two steps exceeds an ordinary one."""
        self.runs(max(number for number, _, _ in self.steps()) + WARM_STEPS)
        time.sleep(chance.random() / 2)
        victim = self.pids()[chance.randrange(RANKS)]
        os.kill(victim, signal.SIGKILL)
        before = max(number for number, _, _ in self.steps())
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            made: dict[int, float] = {}
            for number, time_s, pid in self.steps():
                if pid != victim and number > before - WARM_STEPS:
                    made[number] = min(time_s, made.get(number, time_s))
            times = [made[number] for number in sorted(made)]
            if sum(number > before for number in made) >= AFTER_STEPS:
                gaps = [after - begun for begun, after in itertools.pairwise(times)]
                return max(gaps[-AFTER_STEPS - 2 :]) - statistics.median(gaps[: -AFTER_STEPS - 2])
            assert time.monotonic() < deadline_s, "no steps since"
            time.sleep(0.05)


@contextlib.contextmanager
def under_torchrun(mode: str, folder: Path, forks: TorchForks) -> Iterator[Job]:
    job = Job(folder / "out-of-ranks")
    # As `trainwarden launch` starts torchrun where scripts may be forked.
    forked = ["--start-method=fork", "--run-path", str(RANK), "fork"] if mode == FORKED else []
    script = [*forked, str(SCRIPT), mode.partition(",")[0], str(job.out)]
    nodes = TorchrunNodes(folder, *script, nodes=1, forks=forks)
    memory = folder / "memory"
    memory.mkdir()
    more = {}
    if mode in ("memory", FORKED):
        more = {"TRAINWARDEN_CHECKPOINTS_STORE": str(folder / "store"), "TRAINWARDEN_CHECKPOINT_MEMORY": str(memory)}
    try:
        nodes.start(
            "a", PET_NPROC_PER_NODE=str(RANKS), PET_MAX_RESTARTS="1000", PET_MONITOR_INTERVAL="0.05",
            PET_RDZV_CONF=f"token_file={nodes.settings['token_file']},max_failures=1000",
            **more,
        )  # fmt: skip
        yield job
        (job.out / "end").touch()
    finally:
        nodes.close()


@contextlib.contextmanager
def with_torchft(python: str, folder: Path) -> Iterator[Job]:
    job = Job(folder / "out-of-ranks")
    [port] = free_ports(1)
    bare = {name: value for name, value in os.environ.items() if not name.startswith("TRAINWARDEN_")}
    bare |= {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "OMP_NUM_THREADS": "1", "PYTHONPATH": ""}
    lighthouse = [str(Path(python).with_name("torchft_lighthouse")), "--bind", f"127.0.0.1:{port}"]
    lighthouse += [word for name, value in LIGHTHOUSE.items() for word in (f"--{name}", str(value))]
    with (folder / "torchft.log").open("wb") as log:
        running = [subprocess.Popen(lighthouse, env=bare, stdout=log, stderr=log)]
        try:
            for rank in range(RANKS):
                environ = {**bare, "RANK": str(rank), "TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{port}"}
                words = [python, str(SCRIPT), "torchft", str(job.out)]
                running.append(subprocess.Popen(words, env=environ, stdout=log, stderr=log))
            yield job
        finally:
            for process in running:
                process.kill()
                process.wait()


def compare_steps(pairs: int) -> None:
    """Print how long a step without a death takes beside DistributedDataParallel's, in jobs that take turns."""
    forks, ratios = TorchForks(), list[float]()
    with tempfile.TemporaryDirectory() as folder, contextlib.closing(forks):
        for number in range(pairs):
            medians: dict[str, float] = {}
            for mode in (("resilient", PLAIN), (PLAIN, "resilient"))[number % 2]:
                place = Path(folder, f"{number}-{len(medians)}")
                place.mkdir()
                with under_torchrun(mode, place, forks) as job:
                    job.runs(PAIRED_STEPS + WARM_STEPS)
                    times = sorted(time_s for _, time_s, pid in job.steps() if pid == job.pids()[0])[WARM_STEPS:]
                    medians[mode] = statistics.median(after - begun for begun, after in itertools.pairwise(times))
            ratios.append(medians["resilient"] / medians[PLAIN])
    print(f"a step / one of DistributedDataParallel: median {statistics.median(ratios):.4f} of {sorted(ratios)}")


def main(kills: int, seed: int, torchft: str | None, only: str) -> None:
    """Print the seconds of each mode."""
    found: dict[str, list[float]] = {}
    forks = TorchForks()
    with tempfile.TemporaryDirectory() as folder, contextlib.closing(forks):
        for number, mode in enumerate(one for one in ("resilient", "memory", FORKED) if only in one):
            place, chance = Path(folder, str(number)), random.Random(seed)
            place.mkdir()
            with under_torchrun(mode, place, forks) as job:
                job.runs(WARM_STEPS)
                found[mode] = [job.pause_s(chance) for _ in range(kills)]
        for number in range(kills if torchft and only in "torchft" else 0):
            assert torchft is not None
            place = Path(folder, f"torchft-{number}")
            place.mkdir()
            with with_torchft(torchft, place) as job:
                job.runs(WARM_STEPS)
                found.setdefault("torchft", []).append(job.pause_s(random.Random(f"{seed} {number}")))
    for mode, times in found.items():
        print(f"{mode}: median {statistics.median(times):.2f} s, worst {max(times):.2f} s of {len(times)} kills")
    for mode, times in found.items():
        if mode != "resilient" and (ours := statistics.median(found.get("resilient", [0.0]))):
            print(f"resilient / {mode}: {ours / statistics.median(times):.2f} (medians)")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--torchft", metavar="PYTHON", help="interpreter of an environment that has torchft")
    parser.add_argument("--pairs", type=int, help="instead, compare steps without a death in so many pairs of jobs")
    parser.add_argument("--only", metavar="WORD", default="", help="modes whose name contains it")
    chosen = parser.parse_args()
    if chosen.pairs:
        compare_steps(chosen.pairs)
    else:
        main(chosen.kills, chosen.seed, chosen.torchft, chosen.only)
