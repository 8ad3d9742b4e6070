"""Data parallelism by hand: backward, all_reduce of every gradient, parameters stepped without torch.optim."""

import argparse

import emulated_device
import torch
import torch.distributed as dist
from torch import nn


def train(args: argparse.Namespace, device: emulated_device.Device) -> None:
    model = nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 1))
    world = dist.get_world_size()
    for parameter in model.parameters():
        dist.broadcast(parameter.data, 0)
    for step in range(args.steps):
        device.faults(step)
        for _ in range(args.micro_batches):
            device.begin()
            inputs = torch.randn(32, 64)
            loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean() / args.micro_batches
            device.finish(args.work_ms / args.micro_batches)
            loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.data -= 1e-2 / world * parameter.grad
            parameter.grad = None
        emulated_device.say(step, loss.item())


def main() -> None:
    parser = emulated_device.options(__doc__)
    parser.add_argument("--micro-batches", type=int, default=1)
    emulated_device.run(parser.parse_args(), train)


if __name__ == "__main__":
    main()
