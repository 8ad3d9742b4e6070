"""Megatron-LM's shape: identical tensor-parallel layers, and a schedule that calls the autograd engine itself.

Outputs give up their memory before their backward pass (`deallocate_pipeline_outputs`), so the pass cannot go through
torch.autograd.backward, which compares shapes: it goes to the engine.
"""

import argparse
from typing import Any

import emulated_device
import torch
import torch.distributed as dist
from torch import nn
from torch.autograd.variable import Variable

WIDTH = 16


class Parallel(torch.autograd.Function):
    """The sum over ranks, on the way there and, as it leaves a layer or enters it, back."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.clone()
        dist.all_reduce(tensor)
        return tensor

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(WIDTH, WIDTH)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return torch.tanh(Parallel.apply(self.mix(inputs)) / dist.get_world_size())


def train(args: argparse.Namespace, device: emulated_device.Device) -> None:
    layers = nn.Sequential(*(Layer() for _ in range(args.layers)))
    optimizer = torch.optim.SGD(layers.parameters(), lr=1e-2)
    for step in range(args.steps):
        for _ in range(args.micro_batches):
            inputs = torch.randn(4, WIDTH)
            device.begin()
            outputs = layers(inputs)
            gradient = torch.ones_like(outputs)
            outputs.data = torch.empty((1,))
            Variable._execution_engine.run_backward(
                tensors=(outputs,),
                grad_tensors=(gradient,),
                keep_graph=False,
                create_graph=False,
                inputs=tuple(),
                allow_unreachable=True,
                accumulate_grad=True,
            )
            device.finish(args.work_ms / args.micro_batches)
        optimizer.step()
        optimizer.zero_grad()
        emulated_device.say(step, 0.0)


def main() -> None:
    parser = emulated_device.options(__doc__)
    parser.add_argument("--micro-batches", type=int, default=6)
    parser.add_argument("--layers", type=int, default=48)
    emulated_device.run(parser.parse_args(), train)


if __name__ == "__main__":
    main()
