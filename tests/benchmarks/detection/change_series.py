"""Series of iteration times with known changes: real recorded runs, and fail-slows injected into real healthy noise.

The shared real data lie outside the repository; `shared_data` finds them by the environment variable
``TRAINWARDEN_SHARED`` or beside the checkout. Halves are told by a hash of the run's or record's name: rules and
thresholds were chosen on ``tune``, numbers are reported on ``report``.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Kind = Literal["step", "staircase", "drift", "spell", "relief", "planned"]
Split = Literal["tune", "report"]
START: Final = 20  # samples at the start that count neither way
REACH: Final = (10, 30)  # iterations before and after a true change within which a report of it begins
REACH_SAMPLED: Final = (10, 10)
CLASSES: Final = ("healthy", "step", "staircase", "drift", "spell", "planned")


@dataclass(frozen=True, slots=True)
class TrueChange:
    """One change; places are indices into the series.

    Attributes
    ----------
    at : int
        Where it begins.
    by : int
        Where it is complete: of a staircase its last step, of a slow drift where 10 % is passed, else `at`.
    """

    at: int
    by: int
    ratio: float
    kind: Kind


@dataclass(frozen=True, slots=True)
class Series:
    """Iteration times of one run in seconds.

    Attributes
    ----------
    steps : int array [n]
        The job's own numbers of the iterations, perhaps sampled.
    durations : float array [n]
    ignores : tuple of (int, int)
        Stretches (first, last index) in which reports count neither way.
    group : str
        What the bootstrap draws: a run, or the record whose runs repeat each other.
    """

    name: str
    dataset: str
    group: str
    steps: Ints
    durations: Floats
    changes: tuple[TrueChange, ...] = ()
    ignores: tuple[tuple[int, int], ...] = ()
    reach: tuple[int, int] = REACH
    what: str = ""
    split: Split = field(default="tune")


def half(name: str) -> Split:
    """The half that a run or record belongs to, by its name alone."""
    return "tune" if hashlib.sha256(name.encode()).digest()[1] % 2 == 0 else "report"


def _table(path: Path) -> list[dict[str, str]]:
    raw = path.read_bytes()
    text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode()
    return list(csv.DictReader(text.splitlines()))


def nanogpt(data: Path) -> list[Series]:
    """Runs of modded-nanogpt records; planned changes of the batch-size and window schedule are the true ones."""
    folder = data / "modded_nanogpt_steps"
    labels: dict[tuple[str, str], list[dict[str, str]]] = defaultdict(list)
    for row in _table(folder / "changepoints.csv"):
        labels[row["record"], row["run"]].append(row)
    out = []
    for path in sorted(folder.glob("track*.csv.gz")):
        record = path.name.removesuffix(".csv.gz")
        rows = _table(path)
        for run in [name for name in rows[0] if name != "step"]:
            known = [row for row in rows if row[run] != ""]
            steps = np.array([int(row["step"]) for row in known])
            values = np.array([float(row[run]) for row in known]) / 1000.0
            changes, ignores = [], []
            for label in labels[record, run]:
                at = int(np.searchsorted(steps, int(label["step"])))
                if label["label"] == "planned":
                    changes.append(TrueChange(at, at, float(label["ratio"]), "planned"))
                else:
                    ignores.append((at - REACH[0], at + REACH[1]))
            name, marks = f"{record}/{run}", (tuple(changes), tuple(ignores))
            out.append(Series(name, "nanogpt", record, steps, values, *marks, split=half(record)))
    return out


def megatron(data: Path) -> list[Series]:
    """Megatron-LM's recorded test runs with their labelled slow spells."""
    folder = data / "megatron_step_times"
    events: dict[str, list[dict[str, str]]] = defaultdict(list)
    for row in _table(folder / "events.csv"):
        events[row["run"]].append(row)
    out = []
    for path in sorted(folder.glob("*__*.csv.gz")):
        run = path.name.removesuffix(".csv.gz")
        rows = [row for row in _table(path) if row["step_time_s"] != ""]
        steps = np.array([int(row["iteration"]) for row in rows])
        values = np.array([float(row["step_time_s"]) for row in rows])
        changes, ignores = [], []
        for event in events[run]:
            begin, end = (int(np.searchsorted(steps, int(event[f"{side}_iteration"]))) for side in ("start", "end"))
            ratio = float(event["ratio"])
            if event["kind"] == "failslow":
                changes += [TrueChange(begin, begin, ratio, "spell"), TrueChange(end, end, 1.0 / ratio, "relief")]
            else:
                ignores.append((begin - REACH[0], end + REACH[1]))
        reach = REACH if np.median(np.diff(steps)) == 1 else REACH_SAMPLED
        marks = (tuple(changes), tuple(ignores), reach)
        out.append(Series(run, "megatron", run, steps, values, *marks, split=half(run)))
    return out


def mlperf(data: Path) -> list[Series]:
    """GPT-3 submissions to MLPerf, all healthy."""
    out = []
    for path in sorted((data / "mlperf_gpt3_steps").glob("*.steps.csv.gz")):
        run = path.name.removesuffix(".steps.csv.gz")
        values = np.array([float(row["step_time_s"]) for row in _table(path)])
        group = run.rpartition("_result_")[0]
        out.append(Series(run, "mlperf", group, np.arange(len(values)), values, split=half(group)))
    return out


def recorded(data: Path) -> list[Series]:
    """All real runs."""
    return [*nanogpt(data), *megatron(data), *mlperf(data)]
