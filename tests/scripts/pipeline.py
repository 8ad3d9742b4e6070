"""Pipeline parallelism by send and receive: one stage a rank, all forwards of the micro-batches, then all backwards."""

import argparse

import emulated_device
import torch
import torch.distributed as dist
from torch import nn

WIDTH = 64


def train(args: argparse.Namespace, device: emulated_device.Device) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    first, last = rank == 0, rank == world - 1
    stage = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())
    optimizer = torch.optim.SGD(stage.parameters(), lr=1e-2)
    for step in range(args.steps):
        device.faults(step)
        flights = []
        total = 0.0
        for _ in range(args.micro_batches):
            inputs = torch.randn(8, WIDTH)
            if not first:
                dist.recv(inputs, rank - 1)
                inputs.requires_grad_()
            device.begin()
            outputs = stage(inputs)
            device.finish(args.work_ms / args.micro_batches)
            if not last:
                dist.send(outputs.detach(), rank + 1)
            flights.append((inputs, outputs))
        for inputs, outputs in flights:
            if last:
                loss = outputs.square().mean()
                total += loss.item()
                loss.backward()
            else:
                gradient = torch.empty_like(outputs)
                dist.recv(gradient, rank + 1)
                outputs.backward(gradient)
            if not first:
                dist.send(inputs.grad, rank - 1)
        optimizer.step()
        optimizer.zero_grad()
        if last:
            print(f"step {step} loss {total:.4f}", flush=True)


def main() -> None:
    parser = emulated_device.options(__doc__)
    parser.add_argument("--micro-batches", type=int, default=2)
    emulated_device.run(parser.parse_args(), train)


if __name__ == "__main__":
    main()
