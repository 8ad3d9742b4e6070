"""One rank of a small torch job, for recording: NCCL on a GPU, or gloo on the CPU to try the script out.

    RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29501 python worker.py MODE [--steps N] [...]

Prints one JSON line per step and at the end. Apache-2.0, the trainwarden project.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import sys
import time
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda", 0) if CUDA else torch.device("cpu")
KERNEL_CH = 64


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


class Recorder:
    """The recorder's own controls, where it is loaded."""

    def __init__(self) -> None:
        path = os.environ.get("NCCL_PROFILER_PLUGIN", "")
        self.library = ctypes.CDLL(path) if path.startswith("/") else None
        self.full = int(os.environ.get("TWREC_MASK", "1862"))

    def step(self, number: int) -> None:
        if self.library is not None:
            self.library.twrec_step(number)

    def mask(self, mask: int) -> None:
        if self.library is not None:
            self.library.twrec_mask(mask)


def sync() -> None:
    if CUDA:
        torch.cuda.synchronize()


def burn(ms: float) -> None:
    """Keep the device busy for about so long, without a host wait."""
    if ms <= 0:
        return
    if CUDA:
        torch.cuda._sleep(int(ms * 1.9e6))  # clock cycles at about 1.9 GHz
    else:
        time.sleep(ms / 1e3)


def model(width: int, depth: int) -> nn.Module:
    return nn.Sequential(*(layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.ReLU()))).to(DEVICE)


def loop(options: argparse.Namespace, recorder: Recorder, rank: int, world: int) -> None:
    """DDP or FSDP2 steps; the last rank may be late on the host or on its device, or leave a collective out."""
    torch.manual_seed(0)
    net = model(options.width, options.depth)
    if options.mode == "fsdp":
        from torch.distributed.fsdp import fully_shard

        for layer in net:
            if isinstance(layer, nn.Linear):
                fully_shard(layer)
        fully_shard(net)
        trained: nn.Module = net
    elif world > 1:
        trained = nn.parallel.DistributedDataParallel(net, device_ids=[0] if CUDA else None, bucket_cap_mb=4)
    else:
        trained = net
    if options.compile_model:
        trained = torch.compile(trained)
    optimizer = torch.optim.AdamW(trained.parameters(), lr=1e-3, capturable=CUDA and options.compile_optimizer)
    step_optimizer = torch.compile(optimizer.step) if options.compile_optimizer else optimizer.step
    scaler = torch.amp.GradScaler(DEVICE.type) if options.amp else None
    data = torch.randn(options.batch, options.width, device=DEVICE)
    late = rank == world - 1
    for step in range(1, options.steps + 1):
        recorder.step(step)
        if options.toggle:
            recorder.mask(recorder.full if step % options.toggle == 1 else recorder.full & ~KERNEL_CH)
        begun = time.perf_counter()
        if late:
            time.sleep(options.late_host_ms / 1e3)
            burn(options.late_gpu_ms)
        if late and options.skip_at == step:
            say(skipped=step)
            time.sleep(3600)
        events = [torch.cuda.Event(enable_timing=True) for _ in range(3)] if CUDA else []
        if events:
            events[0].record()
        with torch.autocast(DEVICE.type, dtype=torch.bfloat16) if options.amp else nullcontext():
            loss = trained(data).square().mean()
        (scaler.scale(loss) if scaler else loss).backward()
        if events:
            events[1].record()
        if scaler:
            scaler.step(optimizer)
            scaler.update()
        else:
            step_optimizer()
        optimizer.zero_grad(set_to_none=True)
        if events:
            events[2].record()
        enqueued = time.perf_counter()
        sync()
        took = time.perf_counter() - begun
        device = [events[0].elapsed_time(events[1]), events[1].elapsed_time(events[2])] if events else []
        say(rank=rank, step=step, host_ms=took * 1e3, enqueue_ms=(enqueued - begun) * 1e3, device_ms=device)


def pipeline(options: argparse.Namespace, recorder: Recorder, rank: int, world: int) -> None:
    tensor, other = (torch.ones(1 << 18, device=DEVICE) for _ in range(2))
    for step in range(1, options.steps + 1):
        recorder.step(step)
        burn(2 + (options.late_gpu_ms if rank == world - 1 else 0))
        ops = [dist.P2POp(dist.isend, tensor, (rank + 1) % world), dist.P2POp(dist.irecv, other, (rank - 1) % world)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        if rank % 2 == 0 and rank + 1 < world:
            dist.send(tensor, rank + 1)
        elif rank % 2:
            dist.recv(other, rank - 1)
        sync()
        say(rank=rank, step=step)


def graph(options: argparse.Namespace, recorder: Recorder, rank: int, world: int) -> None:
    """A captured all-reduce, replayed; `--mask-capture` and `--mask-replay` say what the recorder sees when."""
    tensor = torch.ones(1 << 20, device=DEVICE)
    for _ in range(3):
        dist.all_reduce(tensor)
    sync()
    recorder.mask(options.mask_capture)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        dist.all_reduce(tensor[: 1 << 18])
        tensor.mul_(0.5)
        dist.all_reduce(tensor[: 1 << 17])
    recorder.mask(options.mask_replay)
    for step in range(1, options.steps + 1):
        recorder.step(step)
        captured.replay()
        if options.mixed and step % 3 == 0:
            dist.all_reduce(tensor)
        sync()
        say(rank=rank, step=step)
    say(rank=rank, destroying=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("mode", choices=["ddp", "fsdp", "pipeline", "graph"])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--late-host-ms", type=float, default=0.0)
    parser.add_argument("--late-gpu-ms", type=float, default=0.0)
    parser.add_argument("--skip-at", type=int, default=0)
    parser.add_argument("--toggle", type=int, default=0, help="KernelCh in one step of so many")
    parser.add_argument("--mask-capture", type=int, default=1862)
    parser.add_argument("--mask-replay", type=int, default=1862)
    parser.add_argument("--mixed", action="store_true", help="graph: an eager all-reduce every third replay")
    parser.add_argument("--timeout", type=float, default=600.0, help="of the process group, seconds")
    parser.add_argument("--amp", action="store_true")
    parser.add_argument("--compile-model", action="store_true")
    parser.add_argument("--compile-optimizer", action="store_true")
    options = parser.parse_args()
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    recorder = Recorder()
    if not CUDA:  # only to try the script out
        torch.set_num_threads(1)
        options.width, options.batch = min(options.width, 128), min(options.batch, 32)
    if CUDA:
        torch.cuda.set_device(0)
    if world > 1 or options.mode != "ddp":
        dist.init_process_group("nccl" if CUDA else "gloo", timeout=timedelta(seconds=options.timeout),
                                device_id=DEVICE if CUDA else None)  # fmt: skip
    {"pipeline": pipeline, "graph": graph}.get(options.mode, loop)(options, recorder, rank, world)
    if dist.is_initialized():
        dist.destroy_process_group()
    say(rank=rank, done=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
