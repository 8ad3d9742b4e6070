"""Sharded data parallelism on gloo: fully_shard, or with --wrapper the older FullyShardedDataParallel."""

import argparse

import emulated_device
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard


def build(wrapper: bool) -> nn.Module:
    layers = [nn.Linear(64, 128), nn.Linear(128, 128), nn.Linear(128, 1)]
    if wrapper:
        return FullyShardedDataParallel(
            nn.Sequential(*(FullyShardedDataParallel(layer, device_id=torch.device("cpu")) for layer in layers)),
            device_id=torch.device("cpu"),
        )
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in layers:
        fully_shard(layer, mesh=mesh)
    model = nn.Sequential(*layers)
    fully_shard(model, mesh=mesh)
    return model


def train(args: argparse.Namespace, device: emulated_device.Device) -> None:
    model = build(args.wrapper)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(args.steps):
        device.faults(step)
        device.begin()
        inputs = torch.randn(32, 64)
        loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        device.finish(args.work_ms)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        emulated_device.say(step, loss.item())


def main() -> None:
    parser = emulated_device.options(__doc__)
    parser.add_argument("--wrapper", action="store_true", help="FSDP1 instead of fully_shard")
    emulated_device.run(parser.parse_args(), train)


if __name__ == "__main__":
    main()
