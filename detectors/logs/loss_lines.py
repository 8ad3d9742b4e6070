"""Losses and gradient norms as trainers print them: Megatron, DeepSpeed, Hugging Face, torchtitan, nanoGPT."""

from __future__ import annotations

import re
from typing import Final, Literal

from trainwarden.formats.text.trainers import step_line

Quantity = Literal["loss", "gradient norm"]
MAX_CHARS: Final = 2_000  # of a line; no trainer's are longer
# The word before "loss" says whose it is; these mean the training's own, any other (val, eval, aux) does not count.
_OWN: Final = frozenset({"", "lm", "train", "training", "mean", "average", "avg", "total", "the", "step", "batch"})
# Bounded repetition, so linear. Six times as fast here as RE2, which is slow where groups are asked for.
_PAIR: Final = re.compile(
    r"(?i)\b(?:([a-z]{1,16})[ _/-])?(loss|grad(?:ient)?[ _]norm|gnorm)\b['\"]?(?:\s{0,8}[:=]\s{0,8}|\s{1,8})['\"]?"
    r"([-+]?(?:[0-9]{1,30}(?:\.[0-9]{0,30})?(?:e[-+]?[0-9]{1,4})?|nan|inf(?:inity)?))(?:[^a-z0-9_]|$)"
)


def printed(line: str) -> list[tuple[Quantity, float]]:
    """What `line` says of the training's loss and gradient norm, NaN and infinities included.

    Examples
    --------
    >>> printed(" iteration 3/ 9 | lm loss: 1.2E+01 | loss scale: 12.0 | grad norm: nan | nan iterations: 0 |")
    [('loss', 12.0), ('gradient norm', nan)]
    >>> printed("{'loss': 2.5, 'grad_norm': 0.7, 'learning_rate': 1e-4}")
    [('loss', 2.5), ('gradient norm', 0.7)]
    >>> printed("step 9: train loss 4.2, val loss 4.3")
    [('loss', 4.2)]
    >>> printed("val_loss: 3.0"), printed("the loss is nan"), printed("0.5 loss of packets")
    ([], [], [])
    """
    if len(line) > MAX_CHARS or not ("oss" in line or "OSS" in line or "orm" in line or "ORM" in line):
        return []
    found: list[tuple[Quantity, float]] = []
    for owner, what, number in _PAIR.findall(line):
        if what.lower() != "loss":
            found.append(("gradient norm", float(number)))
        elif (owner or "").lower() in _OWN:
            found.append(("loss", float(number)))
    return found


def goes_on(line: str) -> bool:
    """Whether `line` shows that training goes on: a step of a known trainer, or a loss.

    Examples
    --------
    >>> goes_on("{'loss': 2.5, 'epoch': 0.1}"), goes_on("step 3 loss 2.0"), goes_on("RuntimeError: loss is nan")
    (True, True, False)
    """
    if "Error" in line or "Exception" in line:
        return False
    return step_line(line) is not None or bool(printed(line))
