"""Templates of log lines, mined online: what stays the same when numbers, paths and names change.

A fixed-depth parse tree (He, Zhu, Zheng and Lyu, Drain, ICWS 2017, section III), bounded in every direction: lines are
cut, leaves and templates are limited, and what no longer fits falls into one template that nobody judges. A cache of
masked lines in front makes repetitions cost one dictionary look-up.
"""

from __future__ import annotations

import re
from typing import Final

from trainwarden.errors import DetectorError
from trainwarden.log_shapes import by_shape, unmasked

MAX_CHARS: Final = 300
MAX_TOKENS: Final = 32
MAX_LEAF: Final = 48  # templates that share length and first words
OVERFLOW: Final = 0  # the template of everything that found no place
WILDCARD: Final = "<*>"
_NUMBERS: Final = re.compile(r"0x[0-9a-fA-F]+|[0-9]+")  # one pass, nothing nested
_without_numbers = by_shape(lambda shape: None if b"0x" in shape else _NUMBERS.sub("#", unmasked(shape)[:MAX_CHARS]))


class LogTemplates:
    """A bounded store of templates; `find` gives the number of a line's template, making one if need be.

    Parameters
    ----------
    limit : int
        Most templates kept.
    similarity : float
        Share of words that must agree (Drain's ``st``).

    Examples
    --------
    >>> store = LogTemplates(100)
    >>> first = store.find("step 12 loss 3.21")
    >>> store.find("step 13 loss 3.20") == first, store.text(first)
    (True, 'step # loss #.#')
    >>> store.find("cannot reach peer node7") == first
    False
    """

    NOT_KEPT = ("_limit", "_similarity", "_cache")

    def __init__(self, limit: int, similarity: float = 0.6) -> None:
        self._limit = limit
        self._similarity = similarity
        self._words: list[list[str]] = [[WILDCARD]]
        self._leaves: dict[str, list[int]] = {}
        self._cache: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._words)

    def find(self, line: str) -> int:
        """Number of the template of `line`; `OVERFLOW` once there is no room for new ones."""
        masked = _without_numbers(line[:MAX_CHARS])
        if masked is None:  # a hexadecimal number begins with a digit that means something
            masked = _NUMBERS.sub("#", line[:MAX_CHARS])
        known = self._cache.get(masked)
        if known is None:
            known = self._parse(masked)
            if len(self._cache) >= 4 * self._limit:
                self._cache.clear()
            self._cache[masked] = known
        return known

    def text(self, number: int) -> str:
        """The template as one line."""
        return " ".join(self._words[number])

    def _restored(self) -> None:
        if not self._words or any(not 0 < one < len(self._words) for leaf in self._leaves.values() for one in leaf):
            raise DetectorError("leaves name templates that are not there")
        self._cache = {}

    def _parse(self, masked: str) -> int:
        words = masked.split(maxsplit=MAX_TOKENS)[:MAX_TOKENS]
        if not words:
            return OVERFLOW
        # The first word with letters alone leads to the leaf: prefixes with ranks and times differ too easily.
        lead = next((word for word in words if "#" not in word), WILDCARD)
        leaf = self._leaves.setdefault(f"{len(words)} {lead}", []) if self._room() else self._leaves.get(
            f"{len(words)} {lead}", []
        )  # fmt: skip
        best, alike = OVERFLOW, 0.0
        for number in leaf:
            share = _share(self._words[number], words)
            if share > alike:
                best, alike = number, share
        if alike >= self._similarity:
            merged = self._words[best]
            for place, word in enumerate(words):
                if merged[place] != word:
                    merged[place] = WILDCARD
            return best
        if not self._room() or len(leaf) >= MAX_LEAF:
            return OVERFLOW
        self._words.append(words)
        leaf.append(len(self._words) - 1)
        return len(self._words) - 1

    def _room(self) -> bool:
        return len(self._words) < self._limit


def _share(template: list[str], words: list[str]) -> float:
    """Share of equal words; a wildcard counts half, so that templates of wildcards do not swallow everything."""
    equal = 0.0
    for left, right in zip(template, words, strict=True):
        if left == right:
            equal += 1.0
        elif left == WILDCARD:
            equal += 0.5
    return equal / len(words)
