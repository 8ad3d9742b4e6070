"""Writes one log folder from a seed, and says what is right about it."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from trainwarden.records import IncidentKind

START: Final = datetime(2026, 11, 4, 8, 0, 0, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Truth:
    """What is right: no incident (`kind` None), or one of this kind and rank."""

    seed: int
    kind: IncidentKind | None
    rank: int | None
    how: str


@dataclass(frozen=True, slots=True)
class Root:
    """What a rank says last."""

    kind: IncidentKind
    exception: str


ROOTS: Final = (
    Root("cuda_out_of_memory", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.00 GiB. GPU 2 has 79.10 GiB"),  # noqa: E501
    Root("exception", "KeyError: 'labels'"),
    Root("exception", "RuntimeError: shard index did not come within 60 s"),
    Root("exception", "ValueError: loss is nan at step 40, giving up"),
    Root("exception", "RuntimeError: CUDA error: an illegal memory access was encountered"),
    Root("exception", "AssertionError"),
    Root("gpu_memory_error", "RuntimeError: CUDA error: uncorrectable ECC error encountered"),
    Root("data_stall", "RuntimeError: DataLoader worker (pid 7102) is killed by signal: Killed."),
    Root("data_stall", "RuntimeError: unable to write to file </torch_7102_12_3>: No space left on device (28)"),
    Root("storage", "OSError: [Errno 28] No space left on device: '/ckpt/step_100.pt'"),
    Root("user_error", "FileNotFoundError: [Errno 2] No such file or directory: '/data/train.bin'"),
    Root("checkpoint", "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory"),  # noqa: E501
)  # fmt: skip
PREFIXES: Final = ("torch", "srun", "mpirun", "ray", "kubectl", "default")
STAMPS: Final = ("iso", "megatron", "none", "containerd")
LAUNCHERS: Final = (
    "torchrun",
    "composer",
    "accelerate",
    "srun",
    "mpirun",
    "mpirun_signal",
    "deepspeed",
    "watchdog",
    "none",
)
GAPS_S: Final = (1, 5, 30, 65, 300, 600, 1800, 7200)
NOISE: Final = (
    "UserWarning: The given NumPy array is not writable",
    "wandb: Currently logged in as: team",
    "INFO: 0 errors, 0 warnings so far",
    "Saving checkpoint to /ckpt/step_20",
    "Downloading data: 100%",
    "NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/IPC",
)


class Folder:
    """The log of one job, as it grows."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.lines: list[str] = []
        self.now = START
        self.prefix = self.random.choice(PREFIXES)
        self.stamp = self.random.choice(STAMPS)
        if self.stamp == "containerd" and self.prefix == "srun":
            self.prefix = "torch"  # labels come first
        self.ranks = self.random.choice((2, 4, 8, 16))

    def later(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    def say(self, text: str, rank: int | None = None, *, by_launcher: bool = False) -> None:
        """One line of a rank, or of nobody that a prefix names."""
        if rank is None and self.prefix == "srun" and not by_launcher:
            rank = 0  # srun labels every line of its tasks
        if rank is not None:
            text = self._prefix(rank) + text
        if self.stamp == "containerd":
            text = f"{self.now:%Y-%m-%dT%H:%M:%S.%f}000Z stderr F {text}"
        self.lines.append(text)

    def step(self, number: int) -> None:
        loss = 3.0 - number / 1000
        if self.stamp == "iso":
            self.say(f"{self.now:%Y-%m-%d %H:%M:%S},101 - INFO - step: {number}  loss:  {loss:.4f}", 0)
        elif self.stamp == "megatron":
            words = f"iteration {number:8d}/    9000 | elapsed time per iteration (ms): 5000.0 | lm loss: {loss:.6E} |"
            self.say(f" [{self.now:%Y-%m-%d %H:%M:%S}] {words}")
        else:
            self.say(f"{{'loss': {loss:.4f}, 'grad_norm': 0.5, 'epoch': {number / 1000:.3f}}}")
        self.later(5.0)

    def noise(self) -> None:
        if self.random.random() < 0.3:
            self.say(self.random.choice(NOISE), self.random.choice((None, self.random.randrange(self.ranks))))

    def traceback(self, rank: int, exception: str) -> None:
        for line in ("Traceback (most recent call last):", '  File "/srv/train.py", line 77, in <module>', "    run()"):
            self.say(line, rank)
        self.say(exception, rank)

    def waits(self, culprit: int, number: int) -> None:
        """Ranks that gave up, after ten minutes at least."""
        for rank in [rank for rank in range(self.ranks) if rank != culprit][:number]:
            month_day = f"{self.now.month * 100 + self.now.day}"
            self.say(
                f"[rank{rank}]:[E{month_day} {self.now:%H:%M:%S}.520111 ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog "  # noqa: E501
                f"caught collective operation timeout: WorkNCCL(SeqNum=41, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, "
                f"Timeout(ms)=600000) ran for 600010 milliseconds before timing out.",
                by_launcher=True,
            )

    def ended(self, launcher: str, rank: int) -> None:
        """What the launcher says of it."""
        clock = f"{self.now:%m%d %H:%M:%S}.101000 6990"
        api = "torch/distributed/elastic/multiprocessing/api.py"
        said = {
            "torchrun": [
                *(f"W{clock} {api}:908] Sending process {7000 + one} closing signal SIGTERM" for one in range(self.ranks) if one != rank),  # noqa: E501
                f"E{clock} {api}:882] failed (exitcode: 1) local_rank: {rank} (pid: {7000 + rank}) of binary: python",
            ],
            "composer": [f"ERROR:composer.cli.launcher:Rank {rank} crashed with exit code 1."],
            "accelerate": ["subprocess.CalledProcessError: Command '['python', 'train.py']' returned non-zero exit status 1."],  # noqa: E501
            "srun": [f"srun: error: ge: task {rank}: Exited with exit code 1", "srun: Terminating StepId=4711.0"],
            "mpirun": ["mpirun detected that one or more processes exited with non-zero status, thus causing",
                       f"  Process name: [[25717,1],{rank}]"],
            "mpirun_signal": [f"mpirun noticed that process rank {rank} with PID {7000 + rank} on node ge exited on signal 6 (Aborted)."],  # noqa: E501
            "deepspeed": [f"[ERROR] [launch.py:325:sigkill_handler] ['python', '--local_rank={rank}'] exits with return code = 1"],  # noqa: E501
        }  # fmt: skip
        for line in said.get(launcher, []):
            self.say(line, by_launcher=True)

    def _prefix(self, rank: int) -> str:
        return {
            "torch": f"[rank{rank}]: ", "srun": f"{rank}: ", "mpirun": f"[1,{rank}]<stderr>:",
            "ray": f"(RayTrainWorker pid={7000 + rank}, ip=10.0.0.7) [rank{rank}]: ",
            "kubectl": f"[pod/job-worker-0/main] [rank{rank}]: ", "default": f"[default{rank}]:[rank{rank}]: ",
        }[self.prefix]  # fmt: skip


def write(to: Path, seed: int, *, healthy: bool) -> Truth:
    """Write the folder of `seed`: a job that ends well, or one that a rank ends."""
    folder = Folder(seed)
    for number in range(folder.random.randint(12, 60)):
        folder.step(number)
        folder.noise()
    truth = _healthy(folder, seed) if healthy else _faulty(folder, seed)
    to.mkdir(parents=True, exist_ok=True)
    (to / folder.random.choice(("logs.txt", "train.log", "slurm-4711.out"))).write_text(
        "".join(f"{line}\n" for line in folder.lines), encoding="utf-8"
    )
    return truth


def _faulty(folder: Folder, seed: int) -> Truth:
    root = folder.random.choice(ROOTS)
    rank = folder.random.randrange(folder.ranks)
    launcher = folder.random.choice(LAUNCHERS)
    gap_s = folder.random.choice(GAPS_S)
    folder.traceback(rank, root.exception)
    if launcher == "watchdog":
        gap_s = max(gap_s, 600)
        folder.later(gap_s)
        folder.waits(rank, folder.random.randint(1, folder.ranks - 1))
        if folder.random.random() < 0.5:
            folder.later(60.0)
            folder.ended("torchrun", rank)
    else:
        folder.later(gap_s)
        folder.ended(launcher, rank)
    how = f"{folder.prefix} {folder.stamp} {launcher} {gap_s} s {folder.ranks} ranks: {root.exception[:40]}"
    return Truth(seed, root.kind, rank, how)


def _healthy(folder: Folder, seed: int) -> Truth:
    """Ends that are none: words of a run that is done, exceptions that are survived, warnings, clean-up."""
    survived = folder.random.random() < 0.3
    if survived:
        folder.traceback(
            folder.random.randrange(folder.ranks), folder.random.choice(("KeyError: 'x'", "ValueError: retry"))
        )
        for number in range(100, 108):
            folder.step(number)
    how = folder.random.choice(("transformers", "lightning", "words", "none", "warnings"))
    done = {
        "transformers": "{'train_runtime': 700.1, 'train_loss': 2.31, 'epoch': 1.0}",
        "lightning": "`Trainer.fit` stopped: `max_epochs=1` reached.", "words": "Training completed",
    }  # fmt: skip
    if how in done:
        folder.say(done[how])
    if how != "none":
        for rank in range(1, min(folder.ranks, folder.random.randint(1, 4))):
            folder.say(
                f"[rank{rank}]:[W{folder.now:%m%d %H:%M:%S}.222222 TCPStore.cpp:106] [c10d] recvValue failed on "
                f"SocketImpl(fd=61, addr=[localhost]:51101, remote=[localhost]:29500): Connection reset by peer",
                by_launcher=True,
            )
    return Truth(seed, None, None, f"{folder.prefix} {folder.stamp} healthy {how}{' survived' if survived else ''}")
