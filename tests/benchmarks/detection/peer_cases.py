"""Ranks beside each other with known slow ones: shared real series, and slow ranks injected into real noise.

The shared data lie outside the repository, in the folder named by ``TRAINWARDEN_SHARED`` or ``../shared`` beside the
checkout. ``tune`` cases chose the rules and thresholds, numbers are reported on ``report``.
"""

from __future__ import annotations

import csv
import gzip
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Split = Literal["tune", "report"]
RATIOS: Final = (1.1, 1.15, 1.2, 1.3, 1.5, 2.0, 3.0)
MINOR: Final = 1.2  # smaller slowness is not scored, as in the labels of the real jobs
SHAPES: Final = ("healthy", "one", "two", "spell", "twice", "moving", "staircase", "different", "start", "intermittent")


@dataclass(frozen=True, slots=True)
class Spell:
    """Rows `first` to `last` (inclusive) in which `rank` is slow; `scored` False for what counts neither way."""

    rank: int
    first: int
    last: int
    ratio: float
    scored: bool = True
    basis: str = "self"


@dataclass(frozen=True, slots=True)
class Case:
    """One job.

    Attributes
    ----------
    steps : int array [rows]
    duration_s, compute_s, wait_s : float arrays [rows, ranks]; NaN = not measured
    parallel : dict
        ``tp``, ``dp``, ``pp`` where declared.
    row_s : float
        Real time between two rows.
    """

    name: str
    dataset: str
    steps: npt.NDArray[np.int64]
    duration_s: Floats
    spells: tuple[Spell, ...]
    row_s: float
    compute_s: Floats | None = None
    wait_s: Floats | None = None
    parallel: dict[str, int] | None = None
    ranks: tuple[int, ...] = ()
    shape: str = ""

    @property
    def ids(self) -> tuple[int, ...]:
        """Rank numbers."""
        return self.ranks or tuple(range(self.duration_s.shape[1]))


def _rows(path: Path) -> list[dict[str, str]]:
    with gzip.open(path, "rt", newline="") as file:
        return list(csv.DictReader(file))


def _table(rows: Sequence[dict[str, str]], row: str, column: str, value: str) -> tuple[list[int], list[int], Floats]:
    times, names = sorted({int(one[row]) for one in rows}), sorted({int(one[column]) for one in rows})
    at, of = ({key: place for place, key in enumerate(keys)} for keys in (times, names))
    table = np.full((len(times), len(names)), np.nan)
    for one in rows:
        if one[value]:
            table[at[int(one[row])], of[int(one[column])]] = float(one[value])
    return times, names, table


def alibaba(data: Path) -> list[Case]:
    """Workers of real jobs on shared GPUs (Alibaba PAI, CC BY 4.0), mini-batch times in tenths of the job's largest."""
    with (data / "alibaba_minibatch" / "events.csv").open(newline="") as file:
        events = list(csv.DictReader(file))
    cases = []
    for path in sorted((data / "alibaba_minibatch").glob("job_*.csv.gz")):
        number = path.name.split("_")[1].split(".")[0]
        times, names, table = _table(_rows(path), "time", "worker", "batch_time_norm")
        spells = [
            Spell(
                int(event["worker"]), int(np.searchsorted(times, int(event["start_iteration"]))),
                int(np.searchsorted(times, int(event["end_iteration"]))), float(event["ratio"]),
                event["kind"] not in {"minor", "ignore"},
            )
            for event in events if event["job"] == number
        ]  # fmt: skip
        name = f"alibaba_{number}"
        seconds = table / 1000.0
        cases.append(
            Case(
                name, "alibaba", np.array(times), seconds, _joined(spells), 10.0 * float(np.nanmedian(seconds)),
                ranks=tuple(names),
            )
        )  # fmt: skip
    return cases


def _joined(spells: Sequence[Spell]) -> tuple[Spell, ...]:
    """Parts of one spell, which the labels give one after the other, as one with the largest ratio."""
    out: list[Spell] = []
    for spell in sorted(spells, key=lambda one: (one.rank, one.first)):
        before = out[-1] if out else None
        if before and (before.rank, before.last) == (spell.rank, spell.first):
            out[-1] = Spell(spell.rank, before.first, spell.last, max(before.ratio, spell.ratio))
        else:
            out.append(spell)
    return tuple(out)


def bytedance(data: Path) -> list[Case]:
    """Compute time of ranks of two real jobs (ByteDance, Apache-2.0): a long last stage, and uneven sequences."""
    cases = []
    for name, parallel in (("ST", {"tp": 1, "dp": 2, "pp": 4}), ("SE", {"tp": 1, "dp": 32, "pp": 2})):
        path = data / "bytedance_straggler" / f"compute_per_rank-{name}.csv.gz"
        with gzip.open(path, "rt", newline="") as file:
            head, *rows = list(csv.reader(file))
        ranks = tuple(int(one) for one in head[1:])
        table = np.array([[float(value) if value else np.nan for value in row[1:]] for row in rows])
        slow = (6, 7) if name == "ST" else ()
        spells = tuple(Spell(ranks.index(rank), 0, len(rows) - 1, 1.63, basis="peers") for rank in slow)
        steps = np.array([int(row[0]) for row in rows])
        # Steps take as long for all ranks of a synchronous job; what they wait is not among these columns.
        whole = np.repeat(table.max(axis=1, keepdims=True) * 1.6, len(ranks), axis=1)
        step_s = float(np.median(whole))
        for declared in (None, parallel):
            label = f"bytedance_{name}{'_roles' if declared else ''}"
            cases.append(
                Case(
                    label, f"bytedance_{name}", steps, whole, spells, step_s, compute_s=table, ranks=ranks,
                    parallel=declared,
                )
            )  # fmt: skip
    return cases


def smc(data: Path) -> Case:
    """Power of nodes that train together (MLCommons, Apache-2.0), healthy; nodes that repeat one series count once."""
    (path,) = sorted((data / "smc_node_power").glob("*.csv.gz"))
    series: dict[str, list[float]] = defaultdict(list)
    for row in _rows(path):
        series[row["node"]].append(float(row["power_w"]))
    length = min(len(values) for values in series.values())
    distinct = np.unique(np.array([values[:length] for values in series.values()]), axis=0).T
    return Case("smc", "smc", np.arange(length), distinct / 1000.0, (), 2.005)


def smc_parts(data: Path) -> list[Case]:
    """The nodes' power cut into parts of 10 minutes, and its inverse: a node that does less may be the slow one."""
    whole = smc(data)
    cases = []
    for part in range(0, len(whole.steps) - 299, 300):
        rows = slice(part, part + 300)
        for name, values in (("power", whole.duration_s[rows]), ("inverse", 1.0 / whole.duration_s[rows])):
            cases.append(Case(f"smc_{name}_{part}", "smc", whole.steps[rows], values, (), whole.row_s))
    return cases


@cache
def _real_noise(root: str) -> tuple[Floats, ...]:
    """Log deviations of healthy ranks from what they share and from their own level [rows, ranks], of several jobs."""
    data = Path(root)
    noises = []
    for case in alibaba(data):
        logs = np.log(case.duration_s[:170])
        noises.append(_residual(logs[:, np.isfinite(logs).all(axis=0)]))
    compute = bytedance(data)[0].compute_s
    noises += [_residual(np.log(compute))] if compute is not None else []
    noises.append(_residual(np.log(smc(data).duration_s[200:500])))
    return tuple(noises)


def _residual(logs: Floats) -> Floats:
    apart = logs - np.median(logs, axis=1, keepdims=True)
    return np.asarray(apart - np.median(apart, axis=0))


def synthetic(seed: int, root: Path | None = None) -> Case:
    """One seeded job of 8 to 64 ranks; its noise is drawn in blocks from real ranks where the shared data are there."""
    random = np.random.default_rng((4, seed))
    shape = SHAPES[seed % len(SHAPES)]
    ranks, rows = int(random.choice([8, 16, 32, 64])), int(random.integers(150, 400))
    noise = _noise(random, rows, ranks, root)
    factor, spells = _slowness(random, shape, rows, ranks)
    level = np.exp(random.normal(0.0, 0.06, ranks)) if shape == "different" or random.random() < 0.3 else np.ones(ranks)
    shared = np.exp(np.cumsum(random.normal(0.0, 0.004, rows)) + random.normal(0.0, 0.02, rows))
    # Stalls of one step hit single ranks now and then.
    stalls = np.where(random.random((rows, ranks)) < 0.002, random.uniform(1.5, 4.0, (rows, ranks)), 1.0)
    base_s = float(random.choice([0.2, 0.5, 2.0]))
    compute = base_s * shared[:, None] * level * np.exp(noise) * factor * stalls
    missing = random.random((rows, ranks)) < 0.01
    how = ("split", "durations", "waits")[int(random.integers(3))]
    known = partial(
        Case, name=f"synthetic_{seed}", dataset="synthetic", steps=np.arange(rows), spells=spells, row_s=base_s * 1.3,
        shape=shape,
    )  # fmt: skip
    if how == "durations":  # ranks that do not wait for each other
        return known(duration_s=np.where(missing, np.nan, compute))
    whole = np.repeat((compute.max(axis=1) + 0.2 * base_s)[:, None], ranks, axis=1)
    wait = np.where(missing, np.nan, whole - compute)
    split = np.where(missing, np.nan, compute) if how == "split" else None
    return known(duration_s=np.where(missing, np.nan, whole), wait_s=wait, compute_s=split)


def _noise(random: np.random.Generator, rows: int, ranks: int, root: Path | None) -> Floats:
    if root is None:
        return np.asarray(random.normal(0.0, random.uniform(0.01, 0.06), (rows, ranks)))
    real = _real_noise(str(root))[int(random.integers(4))]
    block = min(20, len(real))
    out = np.empty((rows + block, ranks))
    for rank in range(ranks):
        source = real[:, int(random.integers(real.shape[1]))]
        for start in range(0, rows, block):
            at = int(random.integers(len(source) - block + 1))
            out[start : start + block, rank] = source[at : at + block]
    return out[:rows]


def _slowness(random: np.random.Generator, shape: str, rows: int, ranks: int) -> tuple[Floats, tuple[Spell, ...]]:
    """Factors [rows, ranks] and the spells they make."""
    factor = np.ones((rows, ranks))
    first, second = (int(rank) for rank in random.choice(ranks, 2, replace=False))
    ratio = float(random.choice(RATIOS))
    onset = int(random.integers(45, rows - 40))
    plans: list[tuple[int, int, int, float]] = []
    if shape == "one":
        plans = [(first, onset, rows - 1, ratio)]
    elif shape == "two":
        plans = [(first, onset, rows - 1, ratio), (second, int(random.integers(45, rows - 40)), rows - 1, ratio)]
    elif shape == "spell":
        plans = [(first, onset, min(rows - 1, onset + int(random.integers(12, 80))), ratio)]
    elif shape == "twice":
        middle = (45 + rows) // 2
        plans = [(first, 45, middle - 15, ratio), (first, middle + 15, rows - 1, ratio)]
    elif shape == "moving":
        middle = int(random.integers(70, rows - 40))
        plans = [(first, 45, middle, ratio), (second, middle + 1, rows - 1, ratio)]
    elif shape == "start":
        plans = [(first, 0, rows - 1, max(ratio, 1.3))]
    elif shape == "intermittent":
        plans = [(first, at, at + 14, ratio) for at in range(45, rows - 15, 45)]
    elif shape == "staircase":
        return _staircase(random, factor, first)
    for rank, begin, end, much in plans:
        factor[begin : end + 1, rank] *= much
    basis = "peers" if shape == "start" else "self"
    spells = [Spell(rank, begin, end, much, much >= MINOR, basis) for rank, begin, end, much in plans]
    return factor, tuple(spells)


def _staircase(random: np.random.Generator, factor: Floats, rank: int) -> tuple[Floats, tuple[Spell, ...]]:
    """Steps of 8 % each, none of which would be believed alone; the truth begins with the first."""
    rows = len(factor)
    at = np.sort(random.choice(np.arange(80, rows - 40), 4, replace=False))
    for begin in at:
        factor[begin:, rank] *= 1.08
    return factor, (Spell(rank, int(at[0]), rows - 1, 1.08**4),)


def cases(split: Split, data: Path | None, count: int = 300) -> list[Case]:
    """All cases of one half; without the shared data only synthetic ones."""
    first = 0 if split == "tune" else 50_000
    found = [synthetic(seed, data) for seed in range(first, first + count)]
    if data is None:
        return found
    parts = smc_parts(data)
    real = [case for case in alibaba(data) if case.name == ("alibaba_1" if split == "tune" else "alibaba_2")]
    real += [case for place, case in enumerate(parts) if (place // 2 % 2 == 0) == (split == "tune")]
    return real + (bytedance(data) if split == "report" else []) + found
