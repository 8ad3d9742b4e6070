"""What a pair of events around the last exchange of a sharded step (FSDP) could show of a slow rank: a toy, in numbers.

Every layer is gathered before it computes, one ahead at most, as the memory of the layer before is used again; what
reduces gradients behind it holds nobody up before the end. So all ranks go through the layers together, and whoever is
fast has waited long before the tail. Run: ``python -m tests.sharded_tail``.
"""

from __future__ import annotations

import random
import statistics
from typing import Final

LAYERS: Final = (1, 4, 12, 24, 48)
RANKS: Final = 8
NOISE: Final = 0.02
BACKWARD: Final = 2.0  # times the forward compute of a layer, which is the unit of time
GATHER: Final = 0.25


def times(layers: int, slow: float, *, ahead: bool = True, seed: int = 0) -> tuple[list[float], list[float]]:
    """How long each rank computes in one step, and what remains of the step for it without its tail.

    Rank 0 is `slow` times as slow; where not `ahead` a layer is gathered only when the one before has computed.
    """
    source = random.Random(seed)
    own, done, begun = [0.0] * RANKS, [0.0] * RANKS, [0.0] * RANKS
    gathered = 0.0
    for place in range(2 * layers):
        gathered = max(gathered, *(begun if ahead else done)) + GATHER
        begun = [max(end, gathered) for end in done]
        work = BACKWARD if place >= layers else 1.0
        took = [work * (slow if rank == 0 else 1.0) * source.lognormvariate(0.0, NOISE) for rank in range(RANKS)]
        own = [one + more for one, more in zip(own, took, strict=True)]
        done = [at + more for at, more in zip(begun, took, strict=True)]
    return own, done


def shown(layers: int, slow: float, *, ahead: bool = True, steps: int = 50) -> tuple[float, float]:
    """How many times as long as the median of the others rank 0 computes, and seems to by the step without its tail."""
    told = [times(layers, slow, ahead=ahead, seed=seed) for seed in range(steps)]
    own, seen = (statistics.median(one[lane][0] / statistics.median(one[lane][1:]) for one in told) for lane in (0, 1))
    return own, seen


if __name__ == "__main__":
    for layers in LAYERS:
        for slow in (1.1, 1.5, 2.0):
            own, seen = shown(layers, slow)
            at_need = shown(layers, slow, ahead=False)[1]
            print(f"{layers} layers: computes {own:.3f}, seems to {seen:.3f}, gathered at need {at_need:.3f}")
