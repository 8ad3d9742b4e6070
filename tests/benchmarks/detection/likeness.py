"""Who is unlike its peers by metrics, on day one: `metric_peers` on real healthy peers, with faults put in and without.

The peers are the nodes of shared ``smc_node_power`` (power alone; of identical series one) and the ranks of recorded
folders, such as those of ``trainwarden demo --fault none --ranks 8 --steps 400 --mode observe --keep FOLDER``:

    python -m tests.benchmarks.detection.likeness [--speed] [--seed N] [FOLDER...]
"""

from __future__ import annotations

import argparse
import csv
import gzip
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits

from tests.places import shared_data
from trainwarden.catalogue import lookup
from trainwarden.detectors.devices.metric_peers import MetricPeers
from trainwarden.detectors.job.samples import Entity, FamilySamples
from trainwarden.detectors.job.state import JobState
from trainwarden.detectors.metrics.scores import MetricScorer
from trainwarden.detectors.own_models.learner import learnt
from trainwarden.detectors.own_models.own_models import MAX_ENTITIES, MOST_THINNED, STAGES, shown

Floats = npt.NDArray[np.float64]
CASES: Final = 300
BEFORE, AFTER = 40, 60  # samples before a fault and from it on


@dataclass(frozen=True, slots=True)
class Fleet:
    """Healthy peers: ``values [peers, metrics, samples]``, counters as rates, one sample every `every_s`."""

    name: str
    family: str
    metrics: tuple[str, ...]
    values: Floats
    every_s: float


@dataclass(frozen=True, slots=True)
class Told:
    """An entity was told `sample` samples after the beginning; `verified` if an incident may rest on it."""

    row: int
    sample: int
    verified: bool


def nodes_of_smc() -> Fleet:
    """Power of the distinct nodes, as of one device each."""
    series: dict[int, list[float]] = {}
    (path,) = (shared_data() / "smc_node_power").glob("*.csv.gz")
    with gzip.open(path, "rt", newline="") as file:
        for row in csv.DictReader(file):
            series.setdefault(int(row["node"]), []).append(float(row["power_w"]))
    least = min(len(one) for one in series.values())
    distinct = np.unique(np.array([one[:least] for one in series.values()]), axis=0)
    return Fleet("smc", "gpu", ("gpu_power_watts",), distinct[:, None], 2.005)


def ranks_of(folder: Path) -> Fleet:
    """The ranks of a recorded folder on a grid of their own median interval, without the job's start and end."""
    with (folder / "metrics.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["device"].startswith("rank-")]
    metrics = tuple(name for name in rows[0] if name.startswith("rank_"))
    ranks = sorted({row["device"] for row in rows})
    times = {rank: np.array([float(row["time_s"]) for row in rows if row["device"] == rank]) for rank in ranks}
    every_s = float(np.median(np.diff(times[ranks[0]])))
    grid = np.arange(max(one[0] for one in times.values()) + 5.0, min(one[-1] for one in times.values()) - 5.0, every_s)
    values = np.full((len(ranks), len(metrics), grid.size), np.nan)
    for place, rank in enumerate(ranks):
        own = [row for row in rows if row["device"] == rank]
        for column, metric in enumerate(metrics):
            lane = np.array([float(row[metric] or "nan") for row in own])
            known = lookup(metric)
            if known is not None and known.kind == "counter":
                lane = np.append(np.nan, np.diff(lane) / np.diff(times[rank]))
            values[place, column] = lane[np.searchsorted(times[rank], grid, side="right") - 1]
    return Fleet(folder.name, "rank", metrics, values, every_s)


def told(fleet: Fleet) -> list[Told]:
    """What the detector says of a fleet, by the order in which entities are first told, and first told verified."""
    detector, blank = MetricPeers(MetricPeers.Config()), JobState("job").window(0.0)
    peers = fleet.values.shape[0]
    who = tuple(Entity("n", f"{fleet.family}-{row}", row) for row in range(peers))
    found: dict[tuple[int, bool], Told] = {}
    for sample in range(fleet.values.shape[2]):
        now_s = 1e6 + fleet.every_s * sample
        new = FamilySamples(
            fleet.family, fleet.metrics, np.arange(peers), who, ("",) * peers, fleet.values[:, :, sample : sample + 1],
            np.full((peers, 1), now_s),
        )  # fmt: skip
        window = replace(blank, now_s=now_s, end_s=now_s, samples=(new,))
        detector.update(window)
        vote = detector.score(window)
        for suspect in vote.suspects:
            if suspect.rank is not None:
                one = Told(suspect.rank, sample, vote.verified)
                found.setdefault((one.row, one.verified), one)
    return list(found.values())


# -- faults: values [metrics, samples] of one entity from the fault on, by metric name --------------------------

Fault = Callable[[dict[str, Floats], np.random.Generator], None]


def loses_power(lanes: dict[str, Floats], random: np.random.Generator) -> None:
    """A node draws 30 to 60 % less (twice the least distance and more), at once or over twenty samples."""
    fall = np.minimum(1.0, np.arange(AFTER) / random.choice([0.5, 20.0]))
    lanes["gpu_power_watts"] *= 1.0 - random.uniform(0.3, 0.6) * fall


def starves(lanes: dict[str, Floats], random: np.random.Generator) -> None:
    """Another process takes 50 to 90 % of a rank's CPU time."""
    share = random.uniform(0.5, 0.9)
    lanes["rank_cpu_ratio"] *= 1.0 - share
    lanes["rank_run_queue_wait_ratio"] += (1.0 - lanes["rank_run_queue_wait_ratio"]) * share
    lanes["rank_cpu_satisfaction_ratio"] *= 1.0 - share
    lanes["rank_involuntary_switches_count"] *= random.uniform(3.0, 8.0)


def leaks(lanes: dict[str, Floats], random: np.random.Generator) -> None:
    """A rank grows by 20 to 100 MB a sample and pages in."""
    lanes["rank_resident_memory_bytes"] += random.uniform(2e7, 1e8) * np.arange(AFTER)
    lanes["rank_major_faults_count"] += random.uniform(300.0, 3_000.0)


def spawns(lanes: dict[str, Floats], random: np.random.Generator) -> None:
    """A rank has 16 to 200 more threads, which compute."""
    more = random.uniform(16.0, 200.0)
    lanes["rank_threads_count"] += more
    lanes["rank_cpu_ratio"] += 0.02 * more


RANKS: Final[tuple[Fault, ...]] = (starves, leaks, spawns)


def case(fleets: Sequence[Fleet], random: np.random.Generator) -> tuple[Fleet, int]:
    """A stretch of a healthy fleet with a fault in one entity, and which; another one lags three samples behind."""
    fleet = fleets[int(random.integers(len(fleets)))]
    size = int(random.integers(min(6, len(fleet.values)), min(len(fleet.values), 24) + 1))
    rows = random.permutation(len(fleet.values))[:size]
    start = int(random.integers(fleet.values.shape[2] - BEFORE - AFTER + 1))
    values = fleet.values[rows][:, :, start : start + BEFORE + AFTER].copy()
    sick, lags = random.permutation(size)[:2]
    values[lags, :, 3:] = values[lags, :, :-3].copy()
    lanes = {name: values[sick, place, BEFORE:] for place, name in enumerate(fleet.metrics)}
    fault = loses_power if fleet.family == "gpu" else RANKS[int(random.integers(len(RANKS)))]
    fault(lanes, random)
    return replace(fleet, values=values), int(sick)


def speed() -> None:
    """Processor time of one round of 16,384 GPUs with 20 metrics in 16 roles, and the memory of all of it."""
    peers, random, blank = 16_384, np.random.default_rng(0), JobState("job").window(0.0)
    names = tuple(name for name in MetricPeers.role.metrics if name.startswith("gpu_"))[:20]
    who = tuple(Entity(f"n{row // 8}", f"GPU-{row}", row) for row in range(peers))
    roles = tuple(f"stage{row % 16}" for row in range(peers))
    detector, taken_s = MetricPeers(MetricPeers.Config()), []
    for second in range(70):
        values, times_s = random.normal(size=(peers, len(names), 1)), np.full((peers, 1), float(second))
        values[77] += 9e9 if second > 36 else 0.0
        new = FamilySamples("gpu", names, np.arange(peers), who, roles, values, times_s)
        begun_s = time.process_time()
        detector.update(window := replace(blank, now_s=float(second), samples=(new,)))
        assert detector.score(window).opinion == "abstain" or second > 29
        taken_s.append(time.process_time() - begun_s)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0
    print(f"peers, 16,384 x 20: median {np.median(taken_s):.2f} s, at most {max(taken_s):.2f} s, peak {peak:.0f} MB")
    _speed_of_own_models(names, who)


def _speed_of_own_models(names: tuple[str, ...], who: tuple[Entity, ...]) -> None:
    """Processor time of scoring one sample of each of `who` by models of a job's own."""
    random = np.random.default_rng(0)

    def samples(rows: int, first: float, past: int, fresh: int) -> FamilySamples:
        values = random.normal(size=(rows, len(names), past + fresh))
        times_s = np.tile(first + np.arange(fresh), (rows, 1))
        return FamilySamples("gpu", names, np.arange(rows), who[:rows], ("",) * rows, values, times_s)

    with threadpool_limits(1, user_api="blas"):
        few = samples(MAX_ENTITIES * MOST_THINNED, 0.0, 0, STAGES[1])
        part = shown(replace(few, rows=np.linspace(0, len(who) - 1, len(few.rows)).astype(np.int64)))
        assert part is not None
        scorer, taken_s = MetricScorer(learnt([part])), []
        for second in range(200, 240):
            new = samples(len(who), float(second), 60, 1)
            new = replace(new, past_s=new.times_s[:, :1] + np.arange(-60.0, 0.0))
            begun_s = time.process_time()
            scorer.score((new,), float(second))
            taken_s.append(time.process_time() - begun_s)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0
    thin, mean_s = STAGES[1] // part.times_s.shape[1], np.mean(taken_s)
    said = f"the first {taken_s[0]:.2f} s, then at most {max(taken_s[1:]):.2f} s, mean {mean_s:.2f} s a sample"
    print(f"own models, the same, one sample in {thin} scored: {said}, peak {peak:.0f} MB")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("folders", nargs="*", type=Path)
    asked = parser.parse_args()
    if asked.speed:
        speed()
        return
    fleets = [nodes_of_smc(), *(ranks_of(folder) for folder in asked.folders)]
    random = np.random.default_rng(asked.seed)
    for group in (fleets[:1], fleets[1:]):
        if group:
            _cases(group, random, CASES // (1 + (len(fleets) > 1)))
    for fleet in fleets:
        false = told(fleet)
        hours = fleet.values.shape[0] * fleet.values.shape[2] * fleet.every_s / 3600.0
        alone = sum(one.verified for one in false)
        print(f"healthy {fleet.name}: {hours:.2f} entity-hours, {len(false) - alone} votes, {alone} that open alone")


def _cases(fleets: Sequence[Fleet], random: np.random.Generator, number: int) -> None:
    first, right, total, alone, delays = 0, 0, 0, 0, []
    for _ in range(number):
        fleet, sick = case(fleets, random)
        found = told(fleet)
        hits = [one for one in found if one.row == sick and one.sample >= BEFORE]
        first += bool(found) and found[0].row == sick and found[0].sample >= BEFORE
        right, total = right + len(hits), total + len(found)
        alone += any(one.verified for one in hits)
        delays += [(hits[0].sample - BEFORE) * fleet.every_s] if hits else []
    print(
        f"{'/'.join(one.name for one in fleets)}: {number} cases, top-1 {first / number:.3f}, precision "
        f"{right / max(total, 1):.3f}, open alone {alone / number:.2f}, delay median {np.median(delays):.0f} s, "
        f"at most {max(delays):.0f} s"
    )


if __name__ == "__main__":
    main()
