"""A job of two pipeline stages of two ranks each on gloo, which computes by sleeping and writes its calls down.

    grid.py STEPS LOG

A line of LOG is one step of one rank as JSON: what NCCL's profiler would tell of its calls beside it. A send is over
when the next stage has it, as with NCCL.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import ring
import torch
import torch.distributed as dist

from trainwarden import hook

MICRO_BATCHES, WORK_S = 4, 0.05  # of a micro-batch, each way
GRADIENT, ACTIVATION = 1 << 20, 1 << 18  # floats: 4 MiB and 1 MiB, both more than the bucket of a shaped link


class Grid:
    def __init__(self) -> None:
        self.rank, self.attempt = dist.get_rank(), int(os.environ["TRAINWARDEN_ATTEMPT"])
        self.stage, self.replica = divmod(self.rank, 2)
        groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        self.group, self.other = groups[self.stage], self.rank ^ 2
        self.gradient, self.activation, self.ack = torch.ones(GRADIENT), torch.ones(ACTIVATION), torch.ones(1)
        self.calls: list[dict[str, Any]] = []
        self.seqs: dict[tuple[str, str], int] = {}

    def step(self) -> None:
        self.calls = []
        for _ in range(MICRO_BATCHES):
            self.micro_batch(gets=self.stage == 1, gives=self.stage == 0)
        for _ in range(MICRO_BATCHES):
            self.micro_batch(gets=self.stage == 0, gives=self.stage == 1)
        self.timed(f"dp{self.stage}", "all_reduce", GRADIENT, self.reduce)

    def micro_batch(self, *, gets: bool, gives: bool) -> None:
        if gets:
            self.timed(f"pp{self.replica}", "recv", ACTIVATION, self.receive)
        time.sleep(WORK_S)
        if gives:
            self.timed(f"pp{self.replica}", "send", ACTIVATION, self.send)

    def reduce(self) -> None:
        dist.all_reduce(self.gradient, group=self.group)
        self.gradient /= 2

    def send(self) -> None:
        dist.send(self.activation, self.other)
        dist.recv(self.ack, self.other)

    def receive(self) -> None:
        dist.recv(self.activation, self.other)
        dist.send(self.ack, self.other)

    def timed(self, comm: str, function: str, floats: int, call: Any) -> None:
        began_s = time.monotonic()
        call()
        number = self.seqs[comm, function] = self.seqs.get((comm, function), -1) + 1
        self.calls.append(
            {
                "comm": f"{self.attempt}/{comm}", "function": function, "seq": number, "bytes": 4 * floats,
                "enqueued_s": began_s, "device_s": time.monotonic() - began_s,
                "place": self.replica if function == "all_reduce" else self.stage,
            }
        )  # fmt: skip


def main() -> None:
    steps, log = int(sys.argv[1]), Path(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    grid, began_s = Grid(), time.monotonic()
    node = os.environ["TRAINWARDEN_NODE"]
    for step in range(ring.first_step(), steps):
        grid.step()
        took_s, began_s = time.monotonic() - began_s, time.monotonic()
        if grid.rank == 0 and (step + 1) % ring.EVERY_STEPS == 0:
            ring.save(step + 1)
        hook.iteration(step)
        told = {
            "attempt": grid.attempt, "rank": grid.rank, "node": node, "step": step, "end_s": time.time(),
            "monotonic_s": began_s, "took_s": took_s, "calls": grid.calls,
        }  # fmt: skip
        with (log.parent / f"{log.name}.{grid.attempt}.{grid.rank}").open("a") as file:
            file.write(json.dumps(told) + "\n")
    dist.barrier()
    os._exit(0)  # gloo's threads may abort an interpreter that ends


if __name__ == "__main__":
    main()
