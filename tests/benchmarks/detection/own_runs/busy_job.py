"""One rank of a job beside busy loops: a fixed work per step, computed or slept; the last rank does more later on.

Started as a file: ``python busy_job.py cpu|sleep TIMES FROM_S UNTIL_S WORK``.
``BUSY_BEGUN`` is the time, in seconds since 1970, that times count from; without it they count from step `WARM`.
Where `FIRST_HOUR_FOLDER` is set, the last rank notes there when it becomes slow.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import torch
import torch.distributed as dist

SIDE: Final = 256  # of the matrices whose products are the work
NAP_S: Final = 0.02
WARM: Final = 5
STOP_EVERY: Final = 10  # steps


class Rows(torch.utils.data.IterableDataset[torch.Tensor]):
    """Noise without end."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        while True:
            yield torch.randn(8, 64)


def work(kind: str, amount: float) -> None:
    """`amount` matrix products, or seconds of sleep."""
    if kind == "cpu":
        matrix = torch.randn(SIDE, SIDE)
        for _ in range(int(amount)):
            matrix = torch.tanh(matrix @ matrix * 1e-3)
    else:
        until_s = time.monotonic() + amount
        while (left_s := until_s - time.monotonic()) > 0.0:
            time.sleep(min(left_s, NAP_S))


def main(kind: str, times: float, from_s: float, until_s: float, amount: float) -> None:
    """Train until `until_s`."""
    torch.set_num_threads(1)
    folder = os.environ.get("FIRST_HOUR_FOLDER")
    dist.init_process_group("gloo")
    begun_s, last = float(os.environ.get("BUSY_BEGUN", "inf")), dist.get_rank() == dist.get_world_size() - 1
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 1))
    optimizer, stop = torch.optim.SGD(model.parameters(), 1e-3), torch.zeros(1)
    for step, batch in enumerate(torch.utils.data.DataLoader(Rows(), batch_size=None)):
        if step == WARM and "BUSY_BEGUN" not in os.environ:
            begun_s = time.time()
        now_s = time.time() - begun_s
        if last and now_s >= from_s and folder:
            Path(folder, "fault_at").touch()
        outputs = model(batch)
        work(kind, amount * (times if last and now_s >= from_s else 1.0))
        outputs.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        stop[0] = float(now_s > until_s)
        if step % STOP_EVERY == 0:
            dist.broadcast(stop, 0)
            if stop[0]:
                break
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], *(float(one) for one in sys.argv[2:]))
