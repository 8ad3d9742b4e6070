"""A data-parallel job that notes when each step is made: ``MODE OUT``, until the file ``OUT/end`` exists.

``resilient`` goes on by `ResilientStep`. ``memory`` is DistributedDataParallel that saves each step to the folder of
``TRAINWARDEN_CHECKPOINTS`` and goes on from there; without that variable it saves nothing. ``torchft`` is that peer, of
which each rank is a replica group. Every mode computes the same micro-batches: a sleep stands for the device.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

TOTAL, ROWS, WIDTH = 12, 4, 512
DEVICE_S = 0.02


def model_and_optimizer() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, WIDTH), *(nn.Linear(WIDTH, WIDTH) for _ in range(4)), nn.Linear(WIDTH, 1))
    model = model.double()
    return model, torch.optim.Adam(model.parameters(), lr=1e-4)


def loss(model: nn.Module, number: int, index: int) -> torch.Tensor:
    inputs = torch.randn(ROWS, 8, generator=torch.Generator().manual_seed(1000 * number + index), dtype=torch.float64)
    time.sleep(DEVICE_S)
    return (model(inputs) - inputs.sum(1, keepdim=True)).square().mean() / TOTAL


def noting(out: Path) -> Callable[[int], None]:
    """What appends a step and its time to this rank's file; the file's name has the process to be killed."""
    rank = os.environ["RANK"]
    file = os.open(out / f"{rank}-{os.getpid()}.steps", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    return lambda number: void(os.write(file, f"{number} {time.time():.6f}\n".encode()))


def void(_: int) -> None: ...


def resilient(out: Path) -> None:
    from trainwarden.transition import ResilientStep

    model, optimizer = model_and_optimizer()
    steps, note = ResilientStep(TOTAL, model, optimizer, timeout_s=60.0), noting(out)
    for number in steps.numbers(sys.maxsize):
        for micro in steps.micro_batches():
            loss(model, number, micro.index).backward()
        if steps.due:
            optimizer.step()
            note(number)
        optimizer.zero_grad()
        if (out / "end").exists():
            os._exit(0)


def memory(out: Path) -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank, world, first = dist.get_rank(), dist.get_world_size(), 0
    model, optimizer = model_and_optimizer()
    folder = os.environ.get("TRAINWARDEN_CHECKPOINTS")
    if newest := os.environ.get("TRAINWARDEN_RESUME_FROM"):
        saved = torch.load(newest, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["step"]
    ddp, note, own = nn.parallel.DistributedDataParallel(model), noting(out), TOTAL // world
    for number in range(first, sys.maxsize):
        for index in range(rank * own, rank * own + own - 1):
            with ddp.no_sync():
                (loss(ddp, number, index) * world).backward()
        (loss(ddp, number, rank * own + own - 1) * world).backward()
        optimizer.step()
        note(number)
        optimizer.zero_grad()
        if folder and rank == 0:
            whole = {"step": number + 1, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
            save(Path(folder), number + 1, whole)
        if (out / "end").exists():
            os._exit(0)


def save(folder: Path, step: int, whole: dict[str, object]) -> None:
    part = folder / "unfinished.part"
    torch.save(whole, part)
    part.replace(folder / f"step-{step}.pt")
    for old in folder.glob("step-*.pt"):
        if int(old.stem.removeprefix("step-")) < step - 1:
            old.unlink(missing_ok=True)


def torchft(out: Path) -> None:
    from torchft import Manager, Optimizer, ProcessGroupGloo  # type: ignore[import-not-found]

    model, optimizer = model_and_optimizer()

    def load(saved: dict[str, dict[str, torch.Tensor]]) -> None:
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])

    rank = os.environ["RANK"]
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=5)), load_state_dict=load, min_replica_size=1,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
        replica_id=f"replica_{rank}", rank=0, world_size=1, timeout=timedelta(seconds=30),
        store_addr="localhost", store_port=store.port,
        heartbeat_interval=timedelta(milliseconds=50),
    )  # fmt: skip
    managed, note = Optimizer(manager, optimizer), noting(out)
    while not (out / "end").exists():
        number = manager.current_step()
        managed.zero_grad()
        world, place = manager.num_participants(), manager.participating_rank() or 0
        own = TOTAL // world
        for index in range(place * own, place * own + own):
            (loss(model, number, index) * world).backward()
        # Its DistributedDataParallel ends the process where a peer dies within a reduction (0.2.0, ddp.py, _comm_hook).
        grads = [one.grad for one in model.parameters() if one.grad is not None]
        flat = torch.cat([one.flatten() for one in grads])
        manager.allreduce(flat).wait()
        for grad, reduced in zip(grads, flat.split([one.numel() for one in grads]), strict=True):
            grad.copy_(reduced.view_as(grad))
        managed.step()
        if manager.current_step() > number:
            note(number)
    os._exit(0)


if __name__ == "__main__":
    {"resilient": resilient, "memory": memory, "torchft": torchft}[sys.argv[1]](Path(sys.argv[2]))
