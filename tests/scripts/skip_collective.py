"""Training by hand over two process groups; at one step, one rank leaves out a collective and goes on to the next."""

from __future__ import annotations

import argparse
import time

import torch
import torch.distributed as dist


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--work-ms", type=float, default=50.0)
    parser.add_argument("--skip-at", type=int, default=-1)
    parser.add_argument("--skip-rank", type=int, default=1)
    given = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    replicas = dist.new_group(list(range(dist.get_world_size())), group_desc="replicas")
    torch.manual_seed(0)
    model = torch.nn.Linear(64, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(given.steps):
        time.sleep(given.work_ms / 1000.0)
        loss = model(torch.randn(8, 64)).pow(2).mean()
        loss.backward()
        if not (step == given.skip_at and rank == given.skip_rank):
            dist.all_reduce(model.weight.grad, group=replicas)
        dist.all_reduce(loss.detach())
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
