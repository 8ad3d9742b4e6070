"""What the scripts of this folder share: options, and a little model with its data."""

import argparse

import torch
from torch import nn

WIDTH = 32
BATCH = 8


def options(description: str, **choices: tuple[str, ...]) -> argparse.Namespace:
    """The options that every script has, and `choices` of its own, the first by default; as they were given."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--steps", type=int, default=24, help="optimizer steps")
    parser.add_argument("--micro-batches", type=int, default=2, help="backward passes of one step")
    parser.add_argument("--pause-every", type=int, default=8, help="evaluate and save after so many steps")
    parser.add_argument("--folder", default="/tmp", help="where checkpoints go")
    for name, values in choices.items():
        parser.add_argument(f"--{name}", choices=values, default=values[0])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    return parser.parse_args()


class Rows(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Random inputs with the sum of each as its label."""

    def __init__(self, count: int) -> None:
        self.inputs = torch.randn(count, WIDTH)

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, place: int) -> dict[str, torch.Tensor]:
        return {"inputs": self.inputs[place], "labels": self.inputs[place].sum(0, keepdim=True)}


class Model(nn.Module):
    """A perceptron that returns its loss, as the models of trainers do."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(WIDTH, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        outputs = self.layers(inputs)
        return {"loss": (outputs - labels).square().mean(), "outputs": outputs}
