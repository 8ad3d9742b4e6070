"""What torch.cuda.Event costs, how fine it measures, and what a capture does to it. Prints JSON lines.

    python events.py           Apache-2.0, the trainwarden project.
"""

from __future__ import annotations

import json
import statistics
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import torch


def median_us(function: Callable[[int], Any], times: int = 2000) -> float:
    taken = []
    for number in range(times):
        begun = time.perf_counter_ns()
        function(number)
        taken.append(time.perf_counter_ns() - begun)
    return statistics.median(taken) / 1e3


def main() -> int:
    if not torch.cuda.is_available():
        print("no CUDA here: nothing to measure")
        return 0
    torch.cuda.synchronize()
    for kind in (torch.cuda.Event, torch.Event):
        make = (lambda: torch.cuda.Event(enable_timing=True)) if kind is torch.cuda.Event else (lambda: torch.Event("cuda", enable_timing=True))
        pool = [make() for _ in range(2000)]
        cost = {"record first": median_us(lambda i: pool[i].record()), "record again": median_us(lambda i: pool[i].record())}
        torch.cuda.synchronize()
        cost["query done"] = median_us(lambda i: pool[i].query())
        cost["elapsed_time"] = median_us(lambda i: pool[i].elapsed_time(pool[i + 1]), 1999)
        torch.cuda._sleep(2_000_000_000)
        waiting = make()
        waiting.record()
        cost["query not ready"] = median_us(lambda _: waiting.query(), 200)
        torch.cuda.synchronize()
        cost["perf_counter_ns"] = median_us(lambda _: None)
        print(json.dumps({"event": str(kind), "median_us": cost}))
    pairs = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(500)]
    for first, second in pairs:
        first.record()
        torch.cuda._sleep(20_000)
        second.record()
    torch.cuda.synchronize()
    values = sorted({round(a.elapsed_time(b) * 1e6) for a, b in pairs})
    steps = sorted({b - a for a, b in zip(values, values[1:])})
    print(json.dumps({"elapsed_ns": values[:20], "steps_ns": steps[:10]}))
    capture()
    return 0


def capture() -> None:
    """A query from another thread, and of an event recorded inside, while a graph is being captured."""
    x = torch.ones(1024, device="cuda")
    for mode in ("global", "thread_local", "relaxed"):
        outside = torch.cuda.Event(enable_timing=True)
        outside.record()
        said: dict[str, Any] = {"capture_error_mode": mode}
        stop = threading.Event()

        def poll(said: dict[str, Any] = said, outside: Any = outside, stop: threading.Event = stop) -> None:
            while not stop.is_set():
                try:
                    outside.query()
                    said["other thread"] = "answered"
                except Exception as error:  # noqa: BLE001 - that is what is asked
                    said["other thread"] = f"{type(error).__name__}: {str(error)[:200]}"
                    return
                time.sleep(0.001)

        graph = torch.cuda.CUDAGraph()
        thread = threading.Thread(target=poll)
        try:
            with torch.cuda.graph(graph, capture_error_mode=mode):
                thread.start()
                inside = torch.cuda.Event(enable_timing=True)
                y = x
                for _ in range(200):
                    y = y * 1.0001
                    time.sleep(0.0005)
                inside.record()
            said["capture"] = "worked"
        except Exception as error:  # noqa: BLE001
            said["capture"] = f"{type(error).__name__}: {str(error)[:200]}"
        stop.set()
        thread.join()
        try:
            graph.replay()
            torch.cuda.synchronize()
            said["inside event"] = str(inside.query())
        except Exception as error:  # noqa: BLE001
            said["inside event"] = f"{type(error).__name__}: {str(error)[:200]}"
        print(json.dumps(said), flush=True)


if __name__ == "__main__":
    sys.exit(main())
