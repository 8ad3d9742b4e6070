"""DDP on gloo in a process that takes itself for one that computes on CUDA: its events are the host's own clock.

So what the device says of a wait must be what the host has seen of it.
"""

import argparse
import time
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


class Event:
    """Over as soon as it is recorded."""

    def __init__(self, *, enable_timing: bool) -> None:
        self.at_ns = 0

    def record(self) -> None:
        self.at_ns = time.monotonic_ns()

    def query(self) -> bool:
        return True

    def elapsed_time(self, later: "Event") -> float:
        return (later.at_ns - self.at_ns) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--work-ms", type=float, nargs="+", default=[10.0])
    parser.add_argument(
        "--slow-at", type=int, default=-1, help="step from which the last rank takes four times as long"
    )
    args = parser.parse_args()
    module: Any = torch.cuda
    module.is_initialized, module.is_current_stream_capturing, module.Event = lambda: True, lambda: False, Event
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(args.steps):
        slow = 0 <= args.slow_at <= step and rank == dist.get_world_size() - 1
        time.sleep(args.work_ms[rank % len(args.work_ms)] / 1e3 * (4.0 if slow else 1.0))
        model(torch.ones(8, 64)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
