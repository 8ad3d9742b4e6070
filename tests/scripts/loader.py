"""DDP that reads a DataLoader; one sample of rank 1 takes as long as a storage that does not answer."""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.rank = dist.get_rank()

    def __len__(self) -> int:
        return self.args.steps

    def __getitem__(self, index: int) -> torch.Tensor:
        if (self.rank, index) == (1, self.args.stall_at):
            time.sleep(self.args.stall_s)
        return torch.randn(16)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--stall-at", type=int, default=30)
    parser.add_argument("--stall-s", type=float, default=20.0)
    parser.add_argument("--work-ms", type=float, default=100.0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for inputs in DataLoader(Rows(args), batch_size=1):
        optimizer.zero_grad()
        time.sleep(args.work_ms / 1000.0)
        model(inputs).square().mean().backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
