"""A float64 job of one `ResilientStep`; `STEPS OUT [DIES]` with DIES such as ``2:5:backward`` (rank, step, where).

The rank dies by SIGKILL: ``forward`` before its first micro-batch, ``backward`` between two of them, ``reduce`` in the
last backward pass with buckets under way, ``commit`` once all buckets are there, ``agree`` in the transition after
another one's death.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch import nn

from trainwarden.transition import ResilientStep

TOTAL = 12


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main(stop: int, out: Path, dies: list[str]) -> None:
    rank = int(os.environ["RANK"])
    first = not (out / f"started-{rank}").exists()
    (out / f"started-{rank}").touch()
    plans = [one.split(":") for one in dies]
    mine = {(int(number), where) for who, number, where in plans if int(who) == rank} if first else set()
    torch.manual_seed(rank)  # all ranks begin as the first one
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1)).double()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    steps = ResilientStep(TOTAL, model, optimizer, timeout_s=60.0, bucket_bytes=2048)  # several buckets
    computed = []
    arm(steps, mine)
    for number in steps.numbers(stop):
        if number > 20 and len(steps._members.epoch.members) < int(os.environ["WORLD_SIZE"]):
            time.sleep(0.2)  # a rank that is started again has to import torch first
        if (number, "forward") in mine:
            die()
        for place, micro in enumerate(steps.micro_batches()):
            generator = torch.Generator().manual_seed(1000 * number + micro.index)
            inputs = torch.randn(4, 8, generator=generator, dtype=torch.float64)
            loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
            (loss * micro.weight).backward()
            computed.append([number, micro.index, micro.again])
            if place == 0 and (number, "backward") in mine:
                die()
        if steps.due:
            optimizer.step()
        optimizer.zero_grad()
    steps.close()
    said = {"computed": computed, "lost_s": steps.lost_s, "members": len(steps._members.epoch.members)}
    (out / f"rank-{rank}.json").write_text(json.dumps(said))
    torch.save({name: one.detach() for name, one in model.state_dict().items()}, out / f"rank-{rank}.pt")


def arm(steps: ResilientStep, mine: set[tuple[int, str]]) -> None:
    """Die inside of the library, at places where a script of a user cannot."""
    start, finish, agree = steps._buckets._start, steps._buckets.finish, steps._agree

    def starting(bucket: int) -> None:
        start(bucket)
        if bucket == 1 and (steps.number, "reduce") in mine:
            die()

    def finishing() -> None:
        finish()
        if (steps.number, "commit") in mine:
            die()

    def agreeing() -> None:
        if (steps.number, "agree") in mine:
            die()
        agree()

    steps._buckets._start, steps._buckets.finish, steps._agree = starting, finishing, agreeing  # type: ignore[method-assign]


if __name__ == "__main__":
    logging.basicConfig()
    main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
