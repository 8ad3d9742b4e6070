"""Seeded deaths of ranks in a step that goes on: ``python -m tests.benchmarks.transition_kills --kills 20``.

Each job of four ranks loses one or two of them, at a drawn step and place, the second one perhaps in the transition.
Its parameters have to be those of a job that lost nobody, within 1e-6 in float64. Where one rank died before all had
its step, exactly its own micro-batches have to be computed again.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
from pathlib import Path

from tests.torch_forks import TorchForks
from tests.transition_jobs import RANKS, STOP, TOTAL, Jobs

PLACES = ("forward", "backward", "reduce", "commit")


def main(kills: int, seed: int) -> int:
    """Print what became of the jobs; the number of those that did not end as they should."""
    wrong, lost_s, again = 0, list[float](), 0
    forks = TorchForks()
    try:
        with tempfile.TemporaryDirectory() as folder:
            jobs = Jobs(Path(folder), forks)
            whole = jobs.run().weights[0]
            for number in range(kills):
                chance = random.Random(f"{seed} {number}")
                ranks = chance.sample(range(RANKS), chance.choice((1, 1, 2)))
                dies = [f"{rank}:{chance.randrange(STOP)}:{chance.choice(PLACES)}" for rank in ranks]
                if len(ranks) == 2 and chance.random() < 0.5:  # the second one in the transition after the first
                    dies[1] = f"{ranks[1]}:{dies[0].split(':')[1]}:agree"
                ended = jobs.run(*dies)
                left, others = RANKS - len(ranks), len(dies) == 1 and ended.again() != owned(dies[0])
                if len(ended.weights) != left or not ended.is_as(whole) or others:
                    wrong += 1
                    what = f"exit codes {ended.codes}, computed again {ended.again()}"
                    print(f"seed {seed}, job {number} ({', '.join(dies)}): wrong, {what}", flush=True)
                again += len(ended.again())
                lost_s += [max(times) for one in ended.notes.values() if (times := one["lost_s"])]
    finally:
        forks.close()
    print(f"{kills} jobs, {wrong} wrong, {again} micro-batches computed again")
    if lost_s:
        print(
            f"from a failed call to the next one: median {statistics.median(lost_s):.2f} s, worst {max(lost_s):.2f} s"
        )
    return wrong


def owned(dies: str) -> list[list[int]]:
    """Step and micro-batch of all that a rank had to do in the step that it does not live to see.

    Examples
    --------
    >>> owned("1:5:reduce"), owned("1:5:commit")
    ([[5, 3], [5, 4], [5, 5]], [])
    """
    rank, number, place = dies.split(":")
    share = TOTAL // RANKS
    first = int(rank) * share
    return [] if place == "commit" else [[int(number), index] for index in range(first, first + share)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    sys.exit(min(1, main(chosen.kills, chosen.seed)))
