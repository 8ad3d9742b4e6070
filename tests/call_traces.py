"""Sequences of collective calls whose steps are known: recorded and simulated, and what `CallPeriod` makes of them."""

from __future__ import annotations

import csv
import gzip
import random
import statistics
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from trainwarden.hook.period import CallPeriod

Call = tuple[Any, int, int]
"""What kind of call, and when it began and ended, in nanoseconds."""
BAR: Final = 0.005
LATEST: Final = 30  # steps after which the period must be known
_COMPUTES: Final = frozenset({"forward-compute", "backward-compute", "gc", "optimizer"})


@dataclass(frozen=True)
class Found:
    """How the ends of steps that were found compare with the true ones.

    Attributes
    ----------
    error : float or None
        Of the time between ends, each beside what lies between that call and its twin one true step earlier (median).
    mean_error : float or None
        Of their mean, which steps that are lost make larger, and calls that are taken for ends smaller.
    first, last : int or None
        The steps in which the first and the last end were found.
    """

    error: float | None = None
    mean_error: float | None = None
    first: int | None = None
    last: int | None = None

    def right(self, steps: int) -> bool:
        """Whether both errors are within the bar, from early on and to the end of all `steps`."""
        if self.error is None or self.mean_error is None or self.first is None or self.last is None:
            return False
        return max(self.error, self.mean_error) <= BAR and self.first <= LATEST and self.last >= steps - 2


def found_in(steps: list[list[Call]], since: int = 0) -> Found:
    """What the period of the calls of `steps`, one after the other, says of those from number `since` on."""
    period, ends, place = CallPeriod(), list[int](), dict[int, tuple[int, int]]()
    for step, calls in enumerate(steps):
        for number, (symbol, began_ns, end_ns) in enumerate(calls):
            place[end_ns] = step, number
            ends += [mark[0] for mark in period.add(symbol, began_ns, (end_ns, 0, 0, 0))]
    ends = [end_ns for end_ns in ends if place[end_ns][0] >= since]
    if len(ends) < 2:
        return Found()
    ratios = []
    for before_ns, end_ns in pairwise(ends):
        step, number = place[end_ns]
        if step and number < len(steps[step - 1]):
            ratios.append((end_ns - before_ns) / (end_ns - steps[step - 1][number][2]))
    first, last = place[ends[0]][0], place[ends[-1]][0]
    mean = (last - first) / (len(ends) - 1)
    return Found(abs(statistics.median(ratios) - 1.0) if ratios else None, abs(mean - 1.0), first, last)


def recorded(data: Path) -> Iterator[tuple[str, list[list[Call]]]]:
    """The communication of every rank of ByteDance's two traces; sampled steps stand one after another."""
    for job in ("ST", "SE"):
        with gzip.open(data / "bytedance_straggler" / f"trace-{job}.csv.gz", "rt") as file:
            rows = list(csv.DictReader(file))
        took_s: dict[int, float] = defaultdict(float)
        ranks: dict[tuple[int, int], dict[int, list[tuple[float, float, str]]]] = defaultdict(lambda: defaultdict(list))
        for row in rows:
            step, began_s = int(row["step"]), float(row["start_ts"])
            end_s = began_s + float(row["duration"])
            took_s[step] = max(took_s[step], end_s)
            if row["optype"] not in _COMPUTES:
                ranks[int(row["dp_rank"]), int(row["stage"])][step].append((began_s, end_s, row["optype"]))
        for (replica, stage), by_step in sorted(ranks.items()):
            steps, at_s = [], 0.0
            for step in sorted(took_s):
                calls = sorted(by_step[step])
                steps.append([(kind, int((at_s + a) * 1e9), int((at_s + b) * 1e9)) for a, b, kind in calls])
                at_s += took_s[step]
            yield f"{job} replica {replica} stage {stage}", steps


def calls_of_a_step(source: random.Random) -> list[tuple[str, int]]:
    """The collective calls of one step of DDP, tensor parallel, FSDP or pipeline parallel training."""
    layers, parts = source.randint(1, 24), source.randint(2, 8)
    tail = [("all_reduce", 1 << 25)] * source.randint(1, 4)
    return source.choice([
        [("all_reduce", source.choice([1 << 20, 1 << 22, 25 << 20])) for _ in range(layers)] + [("all_reduce", 1)],
        [("all_reduce", 1 << 22)] * 4 * layers + [("reduce_scatter", 1 << 26), ("all_gather", 1 << 26)],
        [("all_gather", 1 << 20)] + [("all_gather", 1 << 24)] * layers
        + [("all_gather", 1 << 24), ("reduce_scatter", 1 << 24)] * layers,
        [("recv", 1 << 20), ("send", 1 << 20)] * parts + [("recv", 1 << 21), ("send", 1 << 21)] * parts + tail,
    ])  # fmt: skip


def simulated(seed: int, *, computes_between: bool) -> list[list[Call]]:
    """200 steps with jitter of 3 %, equal calls of layers within a step, and an evaluation every 50 steps.

    Most of a step's compute lies before its first call; with `computes_between` before any of its calls, as in
    pipelines, where receives wait for other stages.
    """
    source, at_ns, steps = random.Random(seed), 0, list[list[Call]]()
    calls, step_s = calls_of_a_step(source), source.uniform(0.05, 5.0)
    shares = [source.uniform(0.2, 1.0) if computes_between and source.random() < 0.4 else 0.0 for _ in calls]
    shares[0] = max(1.0, sum(shares[1:])) if not computes_between else 1.0
    for step in range(200):
        took_ns, done = 1e9 * step_s * source.lognormvariate(0.0, 0.03), list[Call]()
        for symbol, share in zip(calls, shares, strict=True):
            at_ns += int(0.7 * took_ns * share / sum(shares) * source.uniform(0.9, 1.1))
            began_ns, at_ns = at_ns, at_ns + int(0.3 * took_ns / len(calls) * source.uniform(0.8, 1.2))
            done.append((symbol, began_ns, at_ns))
        for _ in range(source.randint(2, 9) if step % 50 == 49 else 0):
            began_ns, at_ns = at_ns, at_ns + 20_000_000
            done.append((("all_reduce", 7), began_ns, at_ns))
        steps.append(done)
    return steps
