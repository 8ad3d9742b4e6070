"""Two hundred seeded kills of ranks, keepers and nodes: what all ranks restore after each, and whether it is torn.

A rank dies after so many bytes of its shard, a keeper between two rounds or in the midst of a copy to its neighbour, a
node with all of its memory. Files, locks and checks are the real ones; processes and the network are calls. Each
restore has to be the newest checkpoint of which every shard is left, bit by bit what was saved.

    python -m tests.benchmarks.checkpoint_kills --kills 200
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.property.test_checkpoint_commit import SIZE, World

VICTIMS = ("rank", "keeper", "keeper that copies", "node")


def kill(seed: int, folder: Path) -> tuple[str, str]:
    """Train, kill and restore once; the victim, and what was restored.

    Raises
    ------
    AssertionError
        If another checkpoint than the newest whole one was restored, or other bytes.
    """
    draw, world = random.Random(seed), World(folder)
    victim, rank = draw.choice(VICTIMS), draw.randrange(3)
    for _ in range(draw.randrange(3, 12)):
        draw.choice((world.save, world.tick, world.tick, world.tick))(draw.randrange(3), 0)
    if victim == "rank":
        world.one_dies(rank, draw.randrange(SIZE))
    elif victim == "keeper":
        world.kill_keeper(rank, 0)
    elif victim == "keeper that copies":
        world.save(rank, 0)
        world.nodes.dies_after = draw.randrange(SIZE)
        world.tick(rank, 0)
        world.nodes.dies_after = None
        world.kill_keeper(rank, 0)
    else:
        world.lose_node(rank, 0)
    expected = world.newest_intact()
    world.restart(0, 0)  # it asserts the id and the bytes of all ranks
    return victim, "nothing was whole yet" if expected is None else "the newest whole checkpoint"


def counted(kills: int) -> dict[str, dict[str, int]]:
    """How often each end was seen, by victim."""
    ends: dict[str, Counter[str]] = {victim: Counter() for victim in VICTIMS}
    for seed in range(kills):
        with tempfile.TemporaryDirectory() as name:
            victim, end = kill(seed, Path(name))
            ends[victim][end] += 1
    return {victim: dict(found) for victim, found in ends.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    print(json.dumps(counted(parser.parse_args().kills), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
