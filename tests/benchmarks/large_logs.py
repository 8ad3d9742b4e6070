"""How fast and in how much memory `detect` reads a large log: ``python -m tests.benchmarks.large_logs [--mb N]``."""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

MB: Final = 100
START_S: Final = 1_767_323_045.0  # 2026-01-02
RANKS: Final = 8
_PIECE_LINES: Final = 10_000
_WARNINGS: Final = (
    "UserWarning: The given NumPy array is not writable, and PyTorch does not support non-writable tensors.",
    "FutureWarning: `torch.cuda.amp.autocast(args...)` is deprecated.",
    "Token indices sequence length is longer than the specified maximum sequence length for this model (5012 > 4096).",
)
_FRAME: Final = '[rank3]:   File "/opt/megatron/training.py", line 412, in train'
_TRACEBACK: Final = (
    "[rank3]: Traceback (most recent call last):",
    _FRAME,
    "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 3 has a total capacity of "
    "79.10 GiB of which 1.06 GiB is free.",
)
_XID: Final = "gpu-07 kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=7001, name=python, GPU has fallen off the bus."


def megatron(rng: random.Random) -> Iterator[str]:
    """What eight ranks of Megatron print under torchrun, a step a second; endless."""
    step, time_s = 0, START_S
    while True:
        step += 1
        time_s += rng.uniform(0.95, 1.05)
        stamp = datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%d %H:%M:%S")
        loss = 2.0 + 8.0 / step**0.3 + rng.gauss(0.0, 0.01)
        took_ms, norm = rng.uniform(950.0, 1050.0), rng.uniform(0.8, 1.2)
        yield (
            f"[default7]: [{stamp}] iteration {step:8d}/ 9000000 | consumed samples: {step * 256:12d} | "
            f"elapsed time per iteration (ms): {took_ms:.1f} | throughput per GPU (TFLOP/s/GPU): 412.3 | "
            f"learning rate: 3.000000E-04 | global batch size:   256 | lm loss: {loss:.6E} | loss scale: 1.0 | "
            f"grad norm: {norm:.3f} | number of skipped iterations:   0 | number of nan iterations:   0 |"
        )
        for rank in range(RANKS):
            at, took_ms = f"{stamp},{rng.randrange(1000):03d}", rng.uniform(1.0, 9.0)
            yield f"[default{rank}]:{at} - megatron.data - INFO - rank {rank} fetched batch {step} in {took_ms:.2f} ms"
        if step % 10 == 0:
            yield f"[rank{rng.randrange(RANKS)}]: {rng.choice(_WARNINGS)}"
            yield "  warnings.warn("
        if step % 100 == 0:
            yield f"[default0]:saving checkpoint at iteration {step:7d} to /checkpoints/run-7 in torch_dist format"
            yield f"[default0]:  successfully saved checkpoint from iteration {step:7d} to /checkpoints/run-7"


def syslog(rng: random.Random) -> Iterator[str]:
    """Lines of a node's kernel and services, all well; endless."""
    time_s, up_s = START_S, 1000.0
    while True:
        passed_s = rng.expovariate(2.0)
        time_s, up_s = time_s + passed_s, up_s + passed_s
        stamp = datetime.fromtimestamp(time_s, UTC).strftime("%b %e %H:%M:%S")
        pid, number = rng.randrange(1000, 90_000), rng.randrange(10_000)
        kernel, port = f"gpu-07 kernel: [{up_s:12.6f}]", f"10.0.0.{number % 250} port {pid}"
        yield f"{stamp} " + rng.choice((
            f'{kernel} audit: type=1400 audit({time_s:.3f}:{number}): apparmor="STATUS" pid={pid}',
            f"{kernel} nvidia-uvm: Loaded the UVM driver, major device number 510.",
            f"{kernel} mlx5_core 0000:a8:00.0: mlx5_pcie_event:{number}: Detected PCIe bandwidth 252 Gb/s",
            f"gpu-07 systemd[1]: Started Session {number} of user train.",
            f"gpu-07 sshd[{pid}]: Accepted publickey for train from {port} ssh2",
            f'gpu-07 dockerd[1201]: time="{number}" level=info msg="ignoring event" topic=/tasks/delete',
        ))  # fmt: skip


def transformers(rng: random.Random) -> Iterator[str]:
    """Dictionaries of Hugging Face's trainer between states of its bar, no stamp; endless."""
    step = 0
    while True:
        step += 10
        loss = 1.0 + 3.0 / step**0.2 + rng.gauss(0.0, 0.01)
        yield (
            f"{{'loss': {loss:.4f}, 'grad_norm': {rng.uniform(0.5, 1.5)}, 'learning_rate': {rng.uniform(1e-6, 1e-5)}, "
            f"'epoch': {step / 100_000:.2f}}}"
        )
        yield f" 12%|#2        | {step}/9000000 [{step // 3600}:23:01<14:06:00,  1.07s/it]"


KINDS: Final[dict[str, Callable[[random.Random], Iterator[str]]]] = {
    "megatron": megatron,
    "syslog": syslog,
    "transformers": transformers,
}


def write_log(path: Path, kind: str, size: int) -> int:
    """Write a log of `size` bytes that ends in a traceback (of the kernel: in an Xid); how many lines it has."""
    lines, written = 0, 0
    source = KINDS[kind](random.Random(7))
    with path.open("w", encoding="utf-8") as file:
        while written < size:
            piece = [next(source) for _ in range(_PIECE_LINES)]
            text = "\n".join(piece) + "\n"
            file.write(text)
            written, lines = written + len(text), lines + len(piece)
        stamp = piece[-1][:15]
        last = (f"{stamp} {_XID}",) if kind == "syslog" else _TRACEBACK
        file.write("\n".join(last) + "\n")
    return lines + len(last)


def _measured(command: list[str], lines: int) -> dict[str, object]:
    """One run: processor time and highest resident memory of the process alone."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    out, _ = process.communicate()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    answer = json.loads(out)
    return {
        "lines": lines,
        "cpu_s": round(cpu_s, 1),
        "lines_per_cpu_s": round(lines / cpu_s),
        "peak_mb": round(after.ru_maxrss / 1024),
        "incidents": [one["kind"] for job in answer["jobs"] for one in job["incidents"]],
    }


def main() -> int:
    """Have a process of its own read each kind, write one JSON object; exit code 1 if one misses its fault."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=int, default=MB)
    parser.add_argument("--kind", choices=[*KINDS], action="append")
    asked = parser.parse_args()
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for kind in asked.kind or KINDS:
            path = Path(folder) / f"{kind}.log"
            lines = write_log(path, kind, asked.mb * 1_000_000)
            command = [sys.executable, "-m", "trainwarden.cli.main", "detect", "--data", str(path), "--json"]
            found[kind] = _measured(command, lines)
            path.unlink()
    sys.stdout.write(f"{json.dumps(found, indent=1)}\n")
    return 0 if all(one["incidents"] for one in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
