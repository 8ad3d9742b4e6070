"""One rank of an own run: a script of the repository as it is, its samples from a DataLoader, its faults from a thread.

Started as a file, by the launcher: ``python job.py SCRIPT [arguments of the script]``. What goes wrong stands in
``OWN_RUN_ORDERS`` (JSON); what is done to a process from outside needs its number, which goes to ``OWN_RUN_PIDS``.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from torch.utils.data import DataLoader, IterableDataset

ROOT: Final = Path(__file__).resolve().parents[4]
NAP_S: Final = 0.05  # longer than the scripts' own naps: dozens of sleeping ranks share two cores
LEAK_BYTES: Final = 8 << 20  # a second
THREADS: Final = 24
BUSY_S, REST_S = 0.001, 0.1  # of one more thread
STALL_S: Final = 0.6
WRITTEN_BYTES: Final = 8 << 20  # a second
LINES_PER_S: Final = 150


class Faults:
    """What goes wrong inside of this rank, each when its time has come."""

    def __init__(self, rank: int, orders: list[dict[str, Any]]) -> None:
        self.stall_s = 0.0
        self._kinds: dict[str, Callable[[float], None]] = {
            "leak": self._leak,
            "threads": self._threads,
            "data_stall": self._stall,
            "disk": self._disk,
            "log_storm": self._storm,
        }
        mine = [one for one in orders if one["rank"] == rank and one["kind"] in self._kinds]
        if mine:
            threading.Thread(target=self._run, args=(mine,), daemon=True).start()

    def _run(self, orders: list[dict[str, Any]]) -> None:
        for one in sorted(orders, key=lambda order: order["from_s"]):
            time.sleep(max(0.0, one["from_s"] - time.time()))
            self._kinds[one["kind"]](one["to_s"])

    def _leak(self, to_s: float) -> None:
        kept = []
        while time.time() < to_s:
            kept.append(b"x" * LEAK_BYTES)
            time.sleep(1.0)

    def _threads(self, to_s: float) -> None:
        def work() -> None:
            while time.time() < to_s:
                busy_to_s = time.thread_time() + BUSY_S
                while time.thread_time() < busy_to_s:
                    pass
                time.sleep(REST_S)

        for _ in range(THREADS):
            threading.Thread(target=work, daemon=True).start()
        time.sleep(max(0.0, to_s - time.time()))

    def _stall(self, to_s: float) -> None:
        self.stall_s = STALL_S
        time.sleep(max(0.0, to_s - time.time()))
        self.stall_s = 0.0

    def _disk(self, to_s: float) -> None:
        with tempfile.TemporaryFile() as file:
            while time.time() < to_s:
                file.seek(0)
                file.write(os.urandom(WRITTEN_BYTES))
                file.flush()
                os.fsync(file.fileno())
                time.sleep(1.0)

    def _storm(self, to_s: float) -> None:
        line = 0
        while time.time() < to_s:
            for _ in range(LINES_PER_S // 10):
                print(f"WARNING dataloader: sample {line} of shard {line % 7}: truncated record skipped", flush=True)
                line += 1
            time.sleep(0.1)


class Samples(IterableDataset[int]):
    """Numbers, which come late while the loader stalls."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults

    def __iter__(self) -> Iterator[int]:
        number = 0
        while True:
            time.sleep(self._faults.stall_s)
            yield number
            number += 1


def _fed(function: Callable[..., Any], loader: Iterator[int]) -> Callable[..., Any]:
    """`function` that first draws a sample."""

    def fed(*arguments: Any, **named: Any) -> Any:
        next(loader)
        return function(*arguments, **named)

    return fed


def _script(name: str, loader: Iterator[int]) -> ModuleType:
    """The script as a module, its naps longer and its samples drawn from `loader`."""
    sys.path[:0] = [str(ROOT / "tests" / "scripts"), str(ROOT / "examples")]
    module = importlib.import_module(name)
    if name == "train_gpt":
        module.NAP_S = NAP_S  # type: ignore[attr-defined]
        module.Text.micro_batch = _fed(module.Text.micro_batch, loader)
        return module
    shared = importlib.import_module("emulated_device")
    shared.SLEEP_S = NAP_S  # type: ignore[attr-defined]
    shared.Device.begin = _fed(shared.Device.begin, loader)
    return module


def main() -> None:
    """Train until the script ends."""
    name, *arguments = sys.argv[1:]
    rank = int(os.environ["RANK"])
    (Path(os.environ["OWN_RUN_PIDS"]) / str(rank)).write_text(str(os.getpid()))
    faults = Faults(rank, json.loads(os.environ["OWN_RUN_ORDERS"]))
    loader = iter(DataLoader(Samples(faults), batch_size=None))
    module = _script(name, loader)
    sys.argv = [name, *arguments]
    module.main()


if __name__ == "__main__":
    main()
