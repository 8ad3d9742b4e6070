"""Jobs of four ranks and one `ResilientStep`, whose ranks die where they are asked to."""

from __future__ import annotations

import datetime
import json
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.distributed import TCPStore

from tests.places import ROOT
from tests.torch_forks import Forked, TorchForks

SCRIPT = ROOT / "tests" / "scripts" / "resilient_step.py"
RANKS, STOP, TOTAL = 4, 8, 12
PATIENCE_S = 240.0


class Ended(NamedTuple):
    """What the ranks of a job left: exit codes of all processes, parameters and notes of those that came to the end."""

    codes: dict[int, list[int]]
    weights: list[dict[str, torch.Tensor]]
    notes: dict[int, Any]

    @classmethod
    def read(cls, out: Path, ranks: int) -> Ended:
        """What ranks left that somebody else has started; codes of processes are not known."""
        notes = {rank: json.loads((out / f"rank-{rank}.json").read_text()) for rank in range(ranks)}
        return cls({}, [torch.load(one) for one in sorted(out.glob("rank-*.pt"))], notes)

    def is_as(self, whole: dict[str, torch.Tensor]) -> bool:
        """Whether all parameters are those of a job that lost nobody, within 1e-6."""
        return all((one[name] - whole[name]).abs().max() <= 1e-6 for one in self.weights for name in whole)

    def again(self) -> list[list[int]]:
        """Step and micro-batch of all that was computed again."""
        return sorted(
            [number, index] for one in self.notes.values() for number, index, again in one["computed"] if again
        )


class Jobs:
    """Jobs of four ranks over a store of their own."""

    def __init__(self, folder: Path, forks: TorchForks) -> None:
        self.folder, self._forks, self._count = folder, forks, 0

    def run(self, *dies: str, renew: bool = False, stop: int = STOP) -> Ended:
        """Run a job to its end; with `renew`, a rank that has died is started again."""
        self._count += 1
        out = self.folder / str(self._count)
        out.mkdir()
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=datetime.timedelta(seconds=60))
        running = {rank: self._start(rank, store.port, out, stop, dies) for rank in range(RANKS)}
        codes: dict[int, list[int]] = {rank: [] for rank in running}
        deadline_s = time.monotonic() + PATIENCE_S
        while running:
            assert time.monotonic() < deadline_s, {one.name: one.read_text() for one in out.glob("*.log")}
            for rank, process in [*running.items()]:
                if (code := process.poll()) is None:
                    continue
                codes[rank].append(code)
                del running[rank]
                if code and renew:
                    running[rank] = self._start(rank, store.port, out, stop, dies)
            time.sleep(0.02)
        files = sorted(out.glob("rank-*.pt"))
        return Ended(
            codes, [torch.load(one) for one in files],
            {rank: json.loads((out / f"rank-{rank}.json").read_text()) for rank in codes if codes[rank][-1] == 0},
        )  # fmt: skip

    def _start(self, rank: int, port: int, out: Path, stop: int, dies: tuple[str, ...]) -> Forked:
        environ = {
            "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True", "PYTHONPATH": str(ROOT),
            "TRAINWARDEN_HOOK": "0",
        }  # fmt: skip
        words = [str(SCRIPT), str(stop), str(out), *dies]
        return self._forks.start(words, environ, folder=out, log=out / f"rank-{rank}.log")
