"""A DDP job whose micro-batches take a known time, one rank twice as long from some step on; for `bench_rebalance`.

Sleeps stand for a device, so that a busy machine of few cores has little say. With ``--tensor-model-parallel-size 2``
a replica is two ranks that wait for each other in every micro-batch.
"""

from __future__ import annotations

import argparse
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from trainwarden import hook

NAP_S = 0.005


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tensor-model-parallel-size", type=int, default=1)
    parser.add_argument("--calculate-per-token-loss", action="store_true")
    parser.add_argument("--micro-batches", type=int, default=24)
    parser.add_argument("--micro-batch-ms", type=float, default=30.0)
    parser.add_argument("--steps", type=int, default=130)
    parser.add_argument("--slow-from", type=int, default=40)
    parser.add_argument("--factor", type=float, default=2.0)
    return parser.parse_args()


def groups(rank: int, ranks: int, width: int) -> tuple[tuple[int, ...], dist.ProcessGroup, dist.ProcessGroup]:
    """The data-parallel ranks of `rank`, their group, and the group of its replica."""
    data = [tuple(range(first, ranks, width)) for first in range(width)]
    replicas = [tuple(range(first, first + width)) for first in range(0, ranks, width)]
    made = [dist.new_group(members, group_desc="DATA_PARALLEL_GROUP") for members in data]
    others = [dist.new_group(members, group_desc="TENSOR_MODEL_PARALLEL_GROUP") for members in replicas]
    return data[rank % width], made[rank % width], others[rank // width]


def main() -> None:
    args = arguments()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, width = dist.get_rank(), args.tensor_model_parallel_size
    members, group, replica = groups(rank, dist.get_world_size(), width)
    torch.manual_seed(rank % width)
    model = DistributedDataParallel(torch.nn.Linear(8, 1), process_group=group)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    share = hook.TrainingShare(args.micro_batches, model, group=members)
    for step in range(args.steps):
        began_s = time.monotonic()
        slow = rank == 1 and step >= args.slow_from
        naps = int(args.micro_batch_ms / 1e3 * (args.factor if slow else 1.0) / NAP_S)
        for micro in share.step(step):
            with micro.sync():
                out = model(torch.ones(2, 8))
                for _ in range(naps):
                    time.sleep(NAP_S)
                if width > 1:
                    dist.all_reduce(torch.zeros(1), group=replica)
                (out.mean() * micro.weight).backward()
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0:
            print(f"paced {step} {time.monotonic() - began_s:.4f} {','.join(map(str, share.counts))}", flush=True)
    share.close()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
