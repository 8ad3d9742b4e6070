"""What an event costs from Python on this device; prints a JSON object. Needs a GPU."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

ROUNDS = 2000


def each_us(call: Callable[[], object]) -> float:
    """Microseconds of one call."""
    began = time.perf_counter()
    for _ in range(ROUNDS):
        call()
    return (time.perf_counter() - began) / ROUNDS * 1e6


def main() -> None:
    import torch

    torch.cuda.init()
    first, second = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    second.record()
    torch.cuda.synchronize()
    told = {
        "event_query_us": each_us(second.query),
        "event_elapsed_us": each_us(lambda: first.elapsed_time(second)),
        "event_record_us": each_us(second.record),
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main()
