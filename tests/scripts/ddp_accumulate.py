"""DDP with gradient accumulation under no_sync, evaluation pauses and checkpoints by rank 0."""

import argparse
import contextlib
import tempfile
import time
from pathlib import Path

import emulated_device
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def train(args: argparse.Namespace, device: emulated_device.Device) -> None:
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    folder = Path(tempfile.mkdtemp())
    for step in range(args.steps):
        device.faults(step)
        total = 0.0
        for micro in range(args.micro_batches):
            device.begin()
            inputs = torch.randn(32, 64)
            last = micro == args.micro_batches - 1
            with contextlib.nullcontext() if last else model.no_sync():
                loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean() / args.micro_batches
                device.finish(args.work_ms / args.micro_batches)
                loss.backward()
            total += loss.item()
        optimizer.step()
        optimizer.zero_grad()
        emulated_device.say(step, total)
        if args.evaluate_every and (step + 1) % args.evaluate_every == 0:
            model.eval()
            device.begin()
            with torch.no_grad():
                model(torch.randn(32, 64))
            device.finish(args.evaluate_ms)
            model.train()
        if args.save_every and (step + 1) % args.save_every == 0:
            if device.rank == 0:
                torch.save(SlowState(model.state_dict(), args.save_ms), folder / "checkpoint.pt")
            dist.barrier()


class SlowState:
    """A checkpoint that takes `save_ms` to write, like a large one."""

    def __init__(self, state: dict, save_ms: float) -> None:
        self.state = state
        self.save_ms = save_ms

    def __getstate__(self) -> dict:
        time.sleep(self.save_ms / 1000.0)
        return self.__dict__


def main() -> None:
    parser = emulated_device.options(__doc__)
    parser.add_argument("--micro-batches", type=int, default=2)
    parser.add_argument("--evaluate-every", type=int, default=0)
    parser.add_argument("--evaluate-ms", type=float, default=100.0)
    parser.add_argument("--save-every", type=int, default=0)
    parser.add_argument("--save-ms", type=float, default=100.0)
    emulated_device.run(parser.parse_args(), train)


if __name__ == "__main__":
    main()
