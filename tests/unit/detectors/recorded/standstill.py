"""Recorded folders of a job of four nodes with two GPUs each, whose steps stop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from trainwarden.detectors.recorded.facts import read_facts
from trainwarden.detectors.recorded.replay import replay
from trainwarden.recorded.folder import read_folder
from trainwarden.records import EventRecord, IncidentRecord
from trainwarden.settings import DetectionSettings

START_S = 1_700_000_000.0
STEP_S = 5.0
EVERY_S = 10.0
RANKS = 8
WORK_S = 1200.0  # of steps
Cell = tuple[float, float] | None
"""Utilisation (percent) and power of a GPU; None: no row."""


def works(rank: int, at: float) -> Cell:
    """A GPU at work."""
    return 97.0 + (rank + at / EVERY_S) % 3, 600.0 + (7 * rank + at) % 23


def spins(rank: int, at: float) -> Cell:
    """A GPU that waits in a kernel."""
    return 100.0, 130.0 + (rank + at) % 3


def idles(rank: int, at: float) -> Cell:
    """A GPU of a job that has ended."""
    return 0.0, 70.0 + (rank + at) % 2


def one_idles(rank: int, at: float) -> Cell:
    """The GPU of rank 5 does nothing, and the others wait for it."""
    return idles(rank, at) if rank == 5 else spins(rank, at)


@dataclass
class Written:
    """What is written; times are seconds after the start.

    Attributes
    ----------
    after : function of rank and time
        What GPUs do once no step is made.
    pauses : mapping of float to float
        Begin and length of pauses in which no step is made.
    paused : function of rank and time
        What GPUs do in them.
    """

    after: Callable[[int, float], Cell] = spins
    until_s: float = WORK_S + 720.0
    stop_s: float = WORK_S
    pauses: Mapping[float, float] = field(default_factory=lambda: {600.0: 15.0})
    paused: Callable[[int, float], Cell] = one_idles
    columns: tuple[str, ...] = ("DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_POWER_USAGE")
    every_s: float = EVERY_S
    logs: tuple[tuple[float, str, str], ...] = ()
    timed: bool = True
    going_on: tuple[int, ...] = ()

    def to(self, folder: Path) -> Path:
        """Write it all."""
        self._metrics(folder)
        self._steps(folder)
        if self.logs:
            lines = [
                f'{{"time_s": {START_S + at}, "node": "{node}", "line": "{line}"}}\n' for at, node, line in self.logs
            ]
            (folder / "logs.jsonl").write_text("".join(lines))
        return folder

    def _metrics(self, folder: Path) -> None:
        rows = ["time_s,node,device,rank," + ",".join(self.columns)]
        for number in range(int(self.until_s / self.every_s) + 1):
            at = number * self.every_s
            for rank in range(RANKS):
                paused = any(at - long < begin <= at for begin, long in self.pauses.items())
                cell = (self.after if at > self.stop_s else self.paused if paused else works)(rank, at)
                if cell is not None:
                    cells = [f"{one:g}" for one in cell][: len(self.columns)]
                    rows.append(f"{START_S + at},n{rank // 2},{rank % 2},{rank}," + ",".join(cells))
        (folder / "metrics.csv").write_text("\n".join(rows) + "\n")

    def _steps(self, folder: Path) -> None:
        rows, at, step = ["step,rank,node,duration_s" + (",time_s" if self.timed else "")], 0.0, 0
        last_s = self.until_s if self.going_on else self.stop_s
        while at + STEP_S <= last_s:
            at += STEP_S + sum(long for begin, long in self.pauses.items() if at <= begin < at + STEP_S)
            step += 1
            for rank in range(RANKS) if at <= self.stop_s else self.going_on:
                wobble = 0.01 * ((3 * step + rank) % 5)
                time_s = f",{START_S + at + wobble}" if self.timed else ""
                rows.append(f"{step},{rank},n{rank // 2},{STEP_S + wobble}{time_s}")
        (folder / "iterations.csv").write_text("\n".join(rows) + "\n")


def told(folder: Path) -> list[EventRecord]:
    """Events that the recording's files do not hold themselves."""
    return [fact for fact in read_facts(read_folder(folder)) if isinstance(fact, EventRecord)]


def incidents(folder: Path) -> list[IncidentRecord]:
    """What `detect --data` opens."""
    job = read_folder(folder)
    return replay(job, DetectionSettings(), facts=read_facts(job)).incidents
