"""Faults that the demo does to its own training job, from outside and without root."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from trainwarden import rundir

# One stop and one run per period. Long against the 4 ms sleeps that emulate device work (a sleep that ends
# while stopped is time won back), short against an iteration.
DUTY_PERIOD_S = 0.08
STORM_LINES = 4000


def pid_of_rank(run_dir: Path, rank: int) -> int | None:
    """Process id of the living process of `rank`, by its hook file; None if there is none now."""
    found: list[tuple[float, int]] = []
    for path in (run_dir / rundir.HOOK).glob(f"rank-{rank}-*.hook"):
        pid = int(path.stem.rpartition("-")[2])
        with suppress(OSError):
            os.kill(pid, 0)
            found.append((path.stat().st_mtime, pid))
    return max(found)[1] if found else None


class Fault:
    """One fault on one rank.

    Parameters
    ----------
    kind : str
        ``slow-rank``, ``hang``, ``crash``, ``exception``, ``log-storm`` or ``none``.
    slowdown : float
        How many times slower the rank gets, for ``slow-rank`` (> 1).
    fault_file : Path
        File by which the demo's training script is asked to fail from inside.
    """

    def __init__(self, kind: str, rank: int, slowdown: float, run_dir: Path, fault_file: Path) -> None:
        self.kind = kind
        self.rank = rank
        self.injected_at_s: float | None = None
        self.injected_at_step: int | None = None
        self._slowdown = slowdown
        self._run_dir = run_dir
        self._fault_file = fault_file
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def inject(self, step: int) -> bool:
        """Do it; False if the rank has no process now (then try again later)."""
        pid = pid_of_rank(self._run_dir, self.rank)
        if pid is None:
            return False
        self.injected_at_step = step
        self.injected_at_s = time.time()
        match self.kind:
            case "slow-rank":
                self._thread = threading.Thread(target=self._duty_cycle, daemon=True)
                self._thread.start()
            case "hang":
                os.kill(pid, signal.SIGSTOP)
            case "crash":
                os.kill(pid, signal.SIGKILL)
            case _:
                order = {"kind": self.kind, "rank": self.rank, "lines": STORM_LINES}
                part = self._fault_file.with_suffix(".part")
                part.write_bytes(msgspec.json.encode(order))
                part.replace(self._fault_file)
        return True

    def _duty_cycle(self) -> None:
        """Stop and continue the rank so that it runs 1/slowdown of the time; it follows a restarted rank."""
        stopped_s = DUTY_PERIOD_S * (1.0 - 1.0 / self._slowdown)
        while not self._stop.is_set():
            pid = pid_of_rank(self._run_dir, self.rank)
            if pid is None:
                self._stop.wait(0.05)
                continue
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                self._stop.wait(stopped_s)
                os.kill(pid, signal.SIGCONT)
            self._stop.wait(DUTY_PERIOD_S - stopped_s)

    def end(self) -> None:
        """Leave nothing stopped behind."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(5.0)
        pid = pid_of_rank(self._run_dir, self.rank)
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def as_object(self) -> dict[str, Any] | None:
        """The `fault` object of contracts; null for ``none``."""
        if self.kind == "none":
            return None
        parameters = {"slowdown": self._slowdown} if self.kind == "slow-rank" else {}
        if self.kind == "log-storm":
            parameters = {"lines": STORM_LINES}
        return {
            "kind": self.kind,
            "rank": self.rank,
            "injected_at_s": self.injected_at_s,
            "injected_at_step": self.injected_at_step,
            "parameters": parameters,
        }
