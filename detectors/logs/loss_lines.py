"""Losses and gradient norms under the names that trainers print, of one line or of one line of several."""

from __future__ import annotations

import math
import re
from typing import Final, Literal

from trainwarden.formats.names import OTHER_LOSSES
from trainwarden.formats.text.trainers import step_line
from trainwarden.log_shapes import by_shape, unmasked

Quantity = Literal["loss", "gradient norm"]
MAX_CHARS: Final = 8_192  # of a line; verl's have thousands
# These mean the training's own also where nothing but a space stands before the number.
_OWN: Final = frozenset({
    "", "lm", "train", "training", "mean", "average", "avg", "total", "the", "step", "batch", "reduced", "ce",
    "crossentropy",
})  # fmt: skip
_WORD: Final = re.compile(r"(?i)loss(?:es)?|norm|perplexity|\bppl\b|\bnll\b|cross[_ ]?entropy\b")
_WORDS: Final = ("loss", "norm", "perplexity", "ppl", "nll", "entropy")
_BEFORE_CHARS: Final = 48
_JOINED: Final = re.compile(r"[A-Za-z0-9/_.-]{0,48}\Z")
_SPACED: Final = re.compile(r"(?<![A-Za-z0-9])([A-Za-z]{1,16}) \Z")
_APART: Final = re.compile(r"[/_.-]")
_GRADIENT: Final = re.compile(r"(?i)(?:\bg|grad(?:ient)?s?[ _/-](?:global[ _/-])?)\Z")
# The rest of a name, what stands between it and its number, and the number. Bounded repetition, so linear.
_VALUE: Final = re.compile(
    r"(?i)(?:[_/ ](?:step|train|training|total|mean|avg|average|batch|ce|lm|all|reduced|global)\b){0,3}['\"]?"
    r"(?P<between>\s{0,8}[:=]\s{0,8}|, {0,2}\"value\": {0,2}|\s{1,8})['\"]?(?:(?:tensor|Array)\()?"
    r"(?P<number>[-+]?(?:[0-9]{1,30}(?:\.[0-9]{0,30})?(?:e[-+]?[0-9]{1,4})?|nan|inf(?:inity)?))"
    r"(?:\.0)?(?:[^a-z0-9_]|\Z)"  # Lightning writes nan.0
)


def printed(line: str) -> list[tuple[Quantity, float]]:
    """What `line` says of the training's loss and gradient norm, NaN and infinities included; the first of each.

    Examples
    --------
    >>> printed(" iteration 3/ 9 | lm loss: 1.2E+01 | loss scale: 12.0 | grad norm: nan | nan iterations: 0 |")
    [('loss', 12.0), ('gradient norm', nan)]
    >>> printed("{'loss': 2.5, 'grad_norm': 0.7, 'learning_rate': 1e-4}")
    [('loss', 2.5), ('gradient norm', 0.7)]
    >>> printed("step 9: train loss 4.2, val loss 4.3"), printed("    train/CrossEntropyLoss=nan")
    ([('loss', 4.2)], [('loss', nan)])
    >>> printed("val_loss: 3.0"), printed("the loss is nan"), printed("0.5 loss of packets")
    ([], [], [])
    """
    if len(line) > MAX_CHARS:
        return []
    found: dict[Quantity, float] = {}
    for what, start, end, level_counts in _places_of(line):
        if what not in found and (level_counts or not math.isfinite(float(line[start:end]))):
            found[what] = float(line[start:end])
    return list(found.items())


_Place = tuple[Quantity, int, int, bool]
"""Of what a number is, where it stands, and whether it counts where it is finite."""


def _find_places(line: str) -> tuple[_Place, ...]:
    """Where `line` tells of the training's loss or gradient norm; no digit means anything for that."""
    lower = line.lower()
    if line.isascii() and not any(word in lower for word in _WORDS):
        return ()
    found: list[_Place] = []
    for word in _WORD.finditer(line):
        if (value := _VALUE.match(line, word.end())) is None:
            continue
        what: Quantity = "gradient norm" if word[0].lower() == "norm" else "loss"
        before = line[max(0, word.start() - _BEFORE_CHARS) : word.start()]
        named = what == "gradient norm" or word[0][:4].lower() == "loss"
        if what == "gradient norm":
            meant = _GRADIENT.search(before) is not None
        elif named:
            meant = _is_own(before, spaced=not value["between"].strip())
        else:  # of these a level says little, what is no number says as much as for a loss
            meant = bool(value["between"].strip()) and _is_own(before, spaced=False)
        if meant:
            found.append((what, *value.span("number"), named))
    return tuple(found)


_places_of = by_shape(lambda shape: _find_places(unmasked(shape)))


def _is_own(before: str, *, spaced: bool) -> bool:
    """Whether a loss is the training's own, by the words of its name; `spaced` if only spaces part it from its number.

    Examples
    --------
    >>> _is_own("step 3 | reduced_train_", spaced=False), _is_own("train/CE ", spaced=False)
    (True, True)
    >>> _is_own("val_", spaced=False), _is_own("packet ", spaced=True), _is_own("g", spaced=False)
    (False, False, False)
    """
    joined = _JOINED.search(before)
    words = [word.lower() for word in _APART.split(joined[0])] if joined else []
    if spaced_word := _SPACED.search(before):
        words = [spaced_word[1].lower()]
    if words and words[-1] and not before[-1:].isspace() and before[-1:] not in "/_.-" and words[-1] not in _OWN:
        return False  # letters of another word: gloss
    return not OTHER_LOSSES.intersection(words) and (not spaced or all(word in _OWN for word in words))


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
