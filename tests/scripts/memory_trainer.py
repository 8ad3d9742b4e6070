"""A rank under DDP whose parameters all equal the number of steps done, so that a torn checkpoint shows."""

from __future__ import annotations

import os
import sys
import time

import torch
from torch import nn

from trainwarden import checkpoint

LAST = int(sys.argv[1])
EVERY = 20  # longer than two keepers take to copy it, on a busy machine too


class Counting(nn.Module):
    """One more in every element at each step; the buffer counts forward passes."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1_200_000))  # a chunk and a part of one
        self.register_buffer("passes", torch.zeros(1000))

    def forward(self) -> torch.Tensor:
        self.passes += 1
        return -self.weight.sum()


torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
model = nn.parallel.DistributedDataParallel(Counting())
optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.0)
restored = checkpoint.restore(model=model, optimizer=optimizer)
first = 0
if restored is not None:
    first = restored.step
    assert restored.extra == {"step": first, "rank": rank}, restored
    for one in (model.module.weight, model.module.passes):
        assert bool((one == first).all()), f"torn: {one.min()} to {one.max()}, not {first}"
    print(f"resumed {first}: {restored.source}", flush=True)
for step in range(first, LAST):
    model().backward()
    optimizer.step()
    optimizer.zero_grad()
    if (step + 1) % EVERY == 0:
        checkpoint.save(step + 1, model=model, optimizer=optimizer, extra={"step": step + 1, "rank": rank})
    print(f"step {step + 1}", flush=True)
    time.sleep(0.2)
checkpoint.wait()
torch.distributed.destroy_process_group()
os._exit(0)
