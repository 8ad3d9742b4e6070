"""A small GPT trained by torch DDP on gloo, as an example of a job that trainwarden watches.

    trainwarden launch --nproc 4 --checkpoints ckpt -- python examples/train_gpt.py --steps 200
    torchrun --nproc-per-node 4 examples/train_gpt.py --steps 200

It learns to write its own source text, byte by byte. Everything is seeded: the same arguments print the same
losses. Two things make it a fair test job on a small machine without accelerators:

* **Emulated device time.** A real accelerator would be busy for `--micro-batch-ms` a micro-batch while the host
  waits. Here the host computes a few milliseconds for real and sleeps the rest in many short sleeps, each counted:
  a process that is stopped and continued at a duty cycle loses the time it was stopped, as a slow device would,
  where one long sleep until a deadline would hide it. Four ranks leave a two-core machine mostly idle.
* **Uneven micro-batches.** `trainwarden.hook.TrainingShare` says which micro-batches of a step are this rank's and how
  their losses are weighted, so that what DDP averages is the mean over all: the loss does not depend on who computes
  what.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.nn.parallel import DistributedDataParallel

try:
    from trainwarden import hook
except ImportError:  # the job runs without trainwarden as well
    hook = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from trainwarden.hook import MicroBatch

CONTEXT, SEQUENCES, WIDTH, HEADS, LAYERS = 32, 4, 48, 3, 2
NAP_S = 0.004  # one counted sleep: the most that a stop can hide in


class Block(nn.Module):
    """Causal self-attention, then a two-layer perceptron, each added to its normalised input."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        mixed = scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """Bytes in, logits of the next byte out."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(128, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 128)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1]))
        return self.head(self.norm(self.blocks(x)))


class Text:
    """The global batch of any step: a function of seed and step alone, whoever asks for which part."""

    def __init__(self, seed: int, total: int) -> None:
        self.bytes = torch.tensor(list(Path(__file__).read_bytes()), dtype=torch.long)
        self.seed, self.total = seed, total

    def micro_batch(self, step: int, index: int) -> tuple[Tensor, Tensor]:
        """Number `index` of the `total` micro-batches of `step`, as (inputs, targets)."""
        source = torch.Generator().manual_seed(self.seed * 1_000_003 + step)
        starts = torch.randint(len(self.bytes) - CONTEXT, (self.total, SEQUENCES, 1), generator=source)
        window = self.bytes[starts[index] + torch.arange(CONTEXT + 1)]
        return window[:, :-1], window[:, 1:]


class EmulatedDevice:
    """Makes every micro-batch take `micro_batch_s` of this process's own running time."""

    def __init__(self, micro_batch_s: float) -> None:
        self.micro_batch_s, self.backward_s = micro_batch_s, 0.0

    def work(self, computed_s: float) -> None:
        """Sleep what is left of a micro-batch after `computed_s` of forward and as much backward as last time.

        CPU time is subtracted, not wall time: what the process lost to others or to a stop is not made up for.
        """
        left_s = self.micro_batch_s - computed_s - self.backward_s
        for _ in range(int(left_s / NAP_S)):
            time.sleep(NAP_S)
        time.sleep(max(0.0, left_s % NAP_S if left_s > 0 else 0.0))


class EvenShare:
    """In place of `hook.TrainingShare` where trainwarden is not installed: the same part in every step."""

    def __init__(self, total: int, model: DistributedDataParallel) -> None:
        self.total, self.model, self.ranks = total, model, dist.get_world_size()
        self.counts = tuple(total // self.ranks + (rank < total % self.ranks) for rank in range(self.ranks))

    def step(self, number: int) -> Iterator[SimpleNamespace]:
        rank = dist.get_rank()
        first, count = sum(self.counts[:rank]), self.counts[rank]
        for index in range(first, first + count):
            last = index == first + count - 1
            sync = contextlib.nullcontext if last else self.model.no_sync
            yield SimpleNamespace(index=index, last=last, weight=self.ranks / self.total, sync=sync)

    def close(self) -> None:
        """Nothing is under way."""


def summed(loss: float) -> float:
    """`loss` over all ranks."""
    everyone = torch.tensor(loss, dtype=torch.float64)
    dist.all_reduce(everyone)
    return float(everyone)


def train_step(
    model: DistributedDataParallel, optimizer: torch.optim.Optimizer, device: EmulatedDevice, text: Text,
    micro_batches: Iterable[MicroBatch], step: int,
) -> float:  # fmt: skip
    """One optimizer step over this rank's micro-batches; its share of the step's mean loss."""
    share = 0.0
    for micro in micro_batches:
        inputs, targets = text.micro_batch(step, micro.index)
        with micro.sync():
            began_s = time.process_time()
            loss = cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
            # The device's time passes before the backward pass, whose last one waits for the other ranks.
            device.work(time.process_time() - began_s)
            began_s = time.process_time()
            (loss * micro.weight).backward()
            if not micro.last:
                device.backward_s = time.process_time() - began_s
        share += loss.item() / text.total
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return share


def train_resilient(args: argparse.Namespace) -> None:
    """The same steps; when a rank dies the others finish its step, and its next process joins before another."""
    from trainwarden.transition import ResilientStep

    network = GPT()
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3)
    text, device = Text(args.seed, args.micro_batches), EmulatedDevice(args.micro_batch_ms / 1e3)
    first_step = 0
    if path := os.environ.get("TRAINWARDEN_RESUME_FROM"):  # the launcher gives all ranks the same
        state = torch.load(path, weights_only=True)
        network.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first_step = int(state["step"])
    steps = ResilientStep(args.micro_batches, network, optimizer, first_step=first_step)
    for step in steps.numbers(args.steps):
        began_s, losses = time.monotonic(), []
        for micro in steps.micro_batches():
            inputs, targets = text.micro_batch(step, micro.index)
            computing_s = time.process_time()
            loss = cross_entropy(network(inputs).flatten(0, 1), targets.flatten())
            device.work(time.process_time() - computing_s)
            (loss * micro.weight).backward()
            losses.append(loss.item())
        if steps.due:
            optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if steps.is_first and losses and step % args.log_every == 0:  # of its own micro-batches
            loss_now, took_s = sum(losses) / len(losses), time.monotonic() - began_s
            print(f"step {step} loss {loss_now:.6f} iteration_s {took_s:.3f}", flush=True)
        if args.checkpoint_dir and (step + 1) % args.checkpoint_every == 0 and steps.is_first:
            save_checkpoint(args.checkpoint_dir, step + 1, network, optimizer)
    steps.close()


def save_checkpoint(folder: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer, keep: int = 3) -> None:
    """Write ``step-N.pt`` whole or not at all, then drop all but the newest `keep`."""
    folder.mkdir(parents=True, exist_ok=True)
    state = {
        "step": step,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "rng": torch.get_rng_state(),
    }
    part = folder / f".step-{step:08d}.part"
    torch.save(state, part)
    with part.open("rb") as file:
        os.fsync(file.fileno())
    part.replace(folder / f"step-{step:08d}.pt")
    for old in sorted(folder.glob("step-*.pt"))[:-keep]:
        old.unlink()


def newest_good_checkpoint(folder: Path) -> tuple[int, Path | None]:
    """Step and file of the newest checkpoint that can be read; (0, None) if there is none."""
    for path in sorted(folder.glob("step-*.pt"), reverse=True):
        try:
            return int(torch.load(path, weights_only=True)["step"]), path
        except Exception as error:  # noqa: BLE001 - a damaged file raises whatever its bytes lead to
            print(f"checkpoint {path.name} is damaged ({type(error).__name__}); trying the one before", flush=True)
    return 0, None


def resume(folder: Path, rank: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Load what rank 0 found to be the newest good checkpoint, on every rank; the step to go on from."""
    step, _ = newest_good_checkpoint(folder) if rank == 0 else (0, None)
    agreed = torch.tensor(step)
    dist.broadcast(agreed, src=0)
    if int(agreed):
        state = torch.load(folder / f"step-{int(agreed):08d}.pt", weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["rng"])
    return int(agreed)


def obey(fault_file: Path, rank: int) -> None:
    """Fail as `fault_file` says, once: the demo can kill or stop a rank from outside, but not make it raise."""
    try:
        order = json.loads(fault_file.read_text())
    except FileNotFoundError:  # not asked; or the rank that was has taken it away just now
        return
    if order["rank"] != rank:
        return
    fault_file.unlink()
    if order["kind"] == "exception":
        raise RuntimeError("the loss of this micro-batch is not finite")
    for line in range(order["lines"]):
        print(f"ERROR dataloader: sample {line} of shard {line % 7} could not be decoded: bad checksum", flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=100, help="train until this step")
    parser.add_argument("--micro-batches", type=int, default=24, help="of the global batch, over all ranks")
    parser.add_argument("--micro-batch-ms", type=float, default=50.0, help="emulated device time of one")
    named = os.environ.get("TRAINWARDEN_CHECKPOINTS")
    parser.add_argument(
        "--checkpoint-dir", type=Path, default=Path(named) if named else None, help="else that of launch --checkpoints"
    )
    parser.add_argument("--checkpoint-every", type=int, default=20, help="steps")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log-every", type=int, default=1, help="steps")
    parser.add_argument("--resilient", action="store_true", help="go on when a rank dies")
    parser.add_argument("--fault-file", type=Path, default=None, help="what the demo asks a rank to fail with")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    if args.resilient:
        train_resilient(args)
        return
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if args.micro_batches < ranks:
        raise SystemExit(f"--micro-batches {args.micro_batches} leaves some of {ranks} ranks without any")
    network = GPT()
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3)
    first_step = resume(args.checkpoint_dir, rank, network, optimizer) if args.checkpoint_dir else 0
    model = DistributedDataParallel(network)
    text, device = Text(args.seed, args.micro_batches), EmulatedDevice(args.micro_batch_ms / 1e3)
    share = (hook.TrainingShare if hook else EvenShare)(args.micro_batches, model)
    if rank == 0:
        print(f"training from step {first_step} to {args.steps} on {ranks} ranks", flush=True)
    counts: tuple[int, ...] = ()
    for step in range(first_step, args.steps):
        began_s = time.monotonic()
        if args.fault_file:
            obey(args.fault_file, rank)
        loss = summed(train_step(model, optimizer, device, text, share.step(step), step))
        if rank == 0 and share.counts != counts:
            counts = share.counts
            print(f"split {counts} from step {step}", flush=True)
        if rank == 0 and step % args.log_every == 0:
            print(f"step {step} loss {loss:.6f} iteration_s {time.monotonic() - began_s:.3f}", flush=True)
        if args.checkpoint_dir and (step + 1) % args.checkpoint_every == 0 and rank == 0:
            save_checkpoint(args.checkpoint_dir, step + 1, network, optimizer)
    share.close()
    # gloo's threads abort the process if a peer hangs up while they wait, or if they still hold tensors when the
    # interpreter ends: leave together, and let go of everything first.
    dist.barrier()
    del model, network, optimizer
    gc.collect()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
