"""One rank of a job that goes wrong as it is told: on a GPU over NCCL, or on processors over gloo.

It knows nothing of any observer. Several ranks share one GPU: their kernels take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

WARM_UP = 20


def options(given: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", choices=("nccl", "gloo"), default="nccl")
    parser.add_argument("--mode", choices=("ddp", "fsdp2", "graph", "groups", "by-hand"), default="ddp")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--work-ms", type=float, default=40.0)
    parser.add_argument("--fault", choices=("none", "slow", "stop", "skip", "link"), default="none")
    parser.add_argument("--rank", type=int, default=1, help="whom the fault befalls")
    parser.add_argument("--at", type=int, default=60, help="the step at which it begins")
    parser.add_argument("--times", type=float, default=2.0, help="how much longer a slow rank computes")
    parser.add_argument("--hold-s", type=float, default=15.0, help="how long a hang lasts")
    parser.add_argument("--truth", type=Path, required=True, help="folder for what really happened")
    return parser.parse_args(given)


def share_the_gpu() -> None:
    """Let ranks of one GPU find each other: NCCL refuses two of a GPU unless it is told how."""
    import torch

    for name, value in {"NCCL_MAX_CTAS": "4", "NCCL_NVLS_ENABLE": "0", "NCCL_SOCKET_IFNAME": "lo"}.items():
        os.environ.setdefault(name, value)
    if torch.cuda.device_count() >= int(os.environ["WORLD_SIZE"]):
        return
    if torch.cuda.nccl.version() >= (2, 30):
        os.environ.setdefault("NCCL_MULTI_RANK_GPU_ENABLE", "1")
        return
    # Older ones take every rank for a host of its own, and talk over sockets.
    os.environ["NCCL_HOSTID"] = f"gpu-check-{os.environ['RANK']}"
    for name, value in {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_NET": "Socket"}.items():
        os.environ.setdefault(name, value)


class Rank:
    """This process: its device, what it is to do wrong, and what it did."""

    def __init__(self, args: argparse.Namespace) -> None:
        import torch
        import torch.distributed as dist

        self.args, self.torch, self.dist = args, torch, dist
        self.number = int(os.environ["RANK"])
        self.cuda = args.backend == "nccl"
        if self.cuda:
            share_the_gpu()
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
        self.device = torch.device("cuda" if self.cuda else "cpu")
        torch.set_num_threads(1)
        torch.manual_seed(0)
        dist.init_process_group(args.backend)
        self.cycles_per_ms = self._cycles_per_ms() if self.cuda else 0.0
        self.truth: dict[str, Any] = {"rank": self.number, "fault": args.fault}
        self.began_s = 0.0

    def _cycles_per_ms(self) -> float:
        """The best of a few tries: the other ranks take turns on the GPU."""
        cycles, took_ms = 2_000_000, []
        for _ in range(10):
            ends = [self.torch.cuda.Event(enable_timing=True) for _ in range(2)]
            ends[0].record()
            self.torch.cuda._sleep(cycles)
            ends[1].record()
            self.torch.cuda.synchronize()
            took_ms.append(ends[0].elapsed_time(ends[1]))
        return float(cycles / min(took_ms))

    def hit(self, step: int, fault: str) -> bool:
        return bool(self.args.fault == fault and self.number == self.args.rank and step >= self.args.at)

    def work(self, step: int) -> None:
        """Compute for a while, and fail as told."""
        if step == self.args.at and self.args.fault != "none":
            self.truth["fault_at_s"] = time.time()
            self.write()
        if step == self.args.at and self.args.fault in ("stop", "skip"):
            if self.hit(step, "stop"):
                self.stop()
            else:
                self.leave_later()
        work_ms = self.args.work_ms * (self.args.times if self.hit(step, "slow") else 1.0)
        if self.cuda:
            self.torch.cuda._sleep(int(work_ms * self.cycles_per_ms))
        else:
            time.sleep(work_ms / 1e3)

    def stop(self) -> None:
        """Stop this process; somebody else wakes it in the end."""
        wake = f"sleep {self.args.hold_s}; kill -CONT {os.getpid()}"
        subprocess.Popen(["sh", "-c", wake], start_new_session=True, stdout=subprocess.DEVNULL)
        os.kill(os.getpid(), signal.SIGSTOP)

    def leave_later(self) -> None:
        """What skipped a collective does not end by itself."""
        if self.args.fault == "skip":
            timer = threading.Timer(self.args.hold_s, os._exit, (3,))
            timer.daemon = True
            timer.start()

    def tick(self, step: int, loss: Any) -> None:
        """A step is over: every tenth the host waits for it, as trainers do to print."""
        if step == WARM_UP:
            self.wait()
            self.began_s = time.monotonic()
        if step % 10 == 0:
            self.truth["loss"] = loss.item()

    def wait(self) -> None:
        if self.cuda:
            self.torch.cuda.synchronize()

    def end(self) -> None:
        self.wait()
        steps = self.args.steps - 1 - WARM_UP
        if self.began_s and steps > 0:
            self.truth["wall_step_s"] = (time.monotonic() - self.began_s) / steps
        self.truth["done"] = True
        self.write()
        self.dist.destroy_process_group()

    def write(self) -> None:
        path = self.args.truth / f"rank-{self.number}.json"
        part = path.with_suffix(".part")
        part.write_text(json.dumps(self.truth))
        part.replace(path)


def model_of(rank: Rank, width: int = 256) -> Any:
    nn = rank.torch.nn
    layers = [nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1)]
    return nn.Sequential(*layers).to(rank.device)


def sharded(rank: Rank) -> None:
    """DDP, or parameters sharded by fully_shard."""
    torch, model = rank.torch, model_of(rank)
    if rank.args.mode == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(model)
    else:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh(rank.device.type, (rank.dist.get_world_size(),))
        for layer in model:
            if isinstance(layer, torch.nn.Linear):
                fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(rank.args.steps):
        inputs = torch.ones(32, 256, device=rank.device)
        loss = model(inputs).square().mean()
        rank.work(step)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        rank.tick(step, loss)


def by_hand(rank: Rank) -> None:
    """Gradients reduced by hand, in `graph` mode with forward and backward captured; `skip` leaves one out."""
    torch, dist, model = rank.torch, rank.dist, model_of(rank)
    replicas = dist.new_group(list(range(dist.get_world_size())))
    inputs = torch.ones(32, 256, device=rank.device)
    if rank.args.mode == "graph":
        model = torch.cuda.make_graphed_callables(model, (inputs,))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(rank.args.steps):
        loss = model(inputs).square().mean()
        rank.work(step)
        loss.backward()
        *others, last = model.parameters()
        for parameter in others:
            dist.all_reduce(parameter.grad, group=replicas)
        if not (step == rank.args.at and rank.hit(step, "skip")):
            dist.all_reduce(last.grad, group=replicas)
        told = loss.detach().clone()
        dist.all_reduce(told)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        rank.tick(step, loss)


def groups(rank: Rank) -> None:
    """Two like groups of half the ranks; with the fault `link` NCCL gives the second one a single channel."""
    torch, dist = rank.torch, rank.dist
    world = dist.get_world_size()
    mine = None
    for place, ranks in enumerate((range(world // 2), range(world // 2, world))):
        said: dict[str, Any] = {}
        if rank.cuda:
            said["pg_options"] = dist.ProcessGroupNCCL.Options()
            if place and rank.args.fault == "link":
                said["pg_options"].config.min_ctas = said["pg_options"].config.max_ctas = 1
        group = dist.new_group(list(ranks), group_desc=f"half{place}", **said)
        mine = group if rank.number in ranks else mine
    model = model_of(rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    bulk = torch.ones(16_000_000 if rank.cuda else 100_000, device=rank.device)
    for step in range(rank.args.steps):
        loss = model(torch.ones(32, 256, device=rank.device)).square().mean()
        rank.work(step)
        loss.backward()
        dist.all_reduce(bulk, group=mine)
        bulk.fill_(1.0)
        dist.all_reduce(loss.detach().clone())
        optimizer.step()
        optimizer.zero_grad()
        rank.tick(step, loss)


def main() -> None:
    args = options()
    rank = Rank(args)
    {"ddp": sharded, "fsdp2": sharded, "graph": by_hand, "by-hand": by_hand, "groups": groups}[args.mode](rank)
    rank.end()


if __name__ == "__main__":
    main()
