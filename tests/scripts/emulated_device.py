"""What the training scripts beside this file share: options, emulated device time, faults from inside.

The scripts know nothing of any observer. A micro-batch is padded to `--work-ms` by many short sleeps, counted
beforehand and not "until a deadline", so that stopping and continuing the process really slows it; the
processor time of the real arithmetic is taken off. One torch thread each, so several ranks fit on few cores.
"""

import argparse
import gc
import os
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

SLEEP_S = 0.004


def options(description: str) -> argparse.ArgumentParser:
    """The options that every script has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--steps", type=int, default=20, help="iterations to run")
    parser.add_argument("--work-ms", type=float, default=40.0, help="emulated device time of one iteration")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--raise-at", type=int, help="step at which one rank raises ValueError")
    parser.add_argument("--raise-rank", type=int, default=0)
    parser.add_argument("--hang-at", type=int, help="step at which one rank sleeps for ever")
    parser.add_argument("--hang-rank", type=int, default=0)
    return parser


class Device:
    """An emulated accelerator of this rank."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.rank = int(os.environ["RANK"])
        self.busy_s = 0.0
        torch.set_num_threads(1)
        torch.manual_seed(args.seed)

    def begin(self) -> None:
        """Real arithmetic starts here."""
        self.busy_s = time.thread_time()

    def finish(self, work_ms: float) -> None:
        """Pad the arithmetic since `begin` to `work_ms`."""
        rest_s = work_ms / 1000.0 - (time.thread_time() - self.busy_s)
        for _ in range(max(0, round(rest_s / SLEEP_S))):
            time.sleep(SLEEP_S)

    def faults(self, step: int) -> None:
        """Fail as the options ask at `step`."""
        if step == self.args.raise_at and self.rank == self.args.raise_rank:
            raise ValueError(f"bad sample at step {step}")
        if step == self.args.hang_at and self.rank == self.args.hang_rank:
            while True:
                time.sleep(1.0)


def run(args: argparse.Namespace, train: Callable[[argparse.Namespace, Device], None]) -> None:
    """Join the process group, train, leave it."""
    device = Device(args)
    dist.init_process_group("gloo")
    train(args, device)
    # Whoever still holds the group (DDP does, in a reference cycle) keeps gloo's threads alive into the
    # interpreter's end, where they now and then abort the process (pytorch pull request 179291).
    gc.collect()
    dist.destroy_process_group()


def say(step: int, loss: float) -> None:
    """One line per step on rank 0, as trainers do."""
    if dist.get_rank() == 0:
        print(f"step {step} loss {loss:.4f}", flush=True)
