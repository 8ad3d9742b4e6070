"""How fast six models of Unicron's table 3 train on so many GPUs: a model of Megatron, as no profile was published.

Assumed: A800 with 312 TFLOP/s of which a GPU alone reaches 55 % (the paper: "over 50 %"), 80 GB, 8 to a node with four
200 Gb/s cards; the batches of GPT-3; 16 bytes of state a parameter and 4 GB of activations.
Of all layouts of exactly x GPUs the best counts, so curves dip where x divides badly, as in the paper's figure 4.
"""

from __future__ import annotations

from functools import cache

PEAK_FLOPS = 312e12
ALONE = 0.55
GPUS_PER_NODE = 8
MEMORY_BYTES, STATE_BYTES, ACTIVATION_BYTES = 80e9, 16.0, 4e9
TOKENS = 2048
SEQUENCES = {1.3: 512, 7.0: 1024, 13.0: 1024}  # a batch of 1 and 2 million tokens, as GPT-3's models of these sizes
NETWORK_BYTES_S = 4 * 200e9 / 8 / GPUS_PER_NODE  # of one GPU, all of a node sending
TENSOR = {1: 1.0, 2: 0.95, 4: 0.90, 8: 0.82}  # what is left of a GPU's speed in such a group
STAGES = (1, 2, 4, 8)

# Sizes in billions of parameters and weights; the last task of cases 2, 4 and 5 is cut off in the paper's text.
MIXED = (1.3, 1.3, 1.3, 7.0, 7.0, 13.0)
RISING = (0.5, 0.8, 1.1, 1.4, 1.7, 2.0)
CASES = {
    1: ((7.0,) * 6, (1.0,) * 6),
    2: (MIXED, (1.0,) * 6),
    3: ((7.0,) * 6, RISING),
    4: (MIXED, RISING),
    5: (MIXED, RISING[::-1]),
}


@cache
def throughput(billions: float, gpus: int) -> float:
    """FLOP/s of a model on `gpus` GPUs; 0 where no layout fits."""
    layouts = ((tp, pp) for tp in TENSOR for pp in STAGES if gpus % (tp * pp) == 0 and gpus)
    return max((_of(billions, tp, pp, gpus // (tp * pp)) for tp, pp in layouts), default=0.0)


def _of(billions: float, tp: int, pp: int, dp: int) -> float:
    parameters, sequences = billions * 1e9, SEQUENCES[billions]
    if STATE_BYTES * parameters / (tp * pp) + ACTIVATION_BYTES > MEMORY_BYTES or dp > sequences:
        return 0.0
    micro_batches = -(-sequences // dp)
    work = 6.0 * parameters * TOKENS / (tp * pp)
    compute_s = (micro_batches + pp - 1) * work / (PEAK_FLOPS * ALONE * TENSOR[tp])
    across_nodes = tp * pp * dp > GPUS_PER_NODE and dp > 1
    gradients = 2.0 * 2.0 * parameters / (tp * pp) * (dp - 1) / dp  # ring, half precision
    reduce_s = gradients / NETWORK_BYTES_S if across_nodes else 0.0
    return 6.0 * parameters * TOKENS * sequences / (compute_s + reduce_s)
