"""The period of the sequence of collective calls: what ends a step where nothing else can be seen.

After Falcon (Wu et al., 2024), section 4.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .memory import let_through
from .thread import Mark

_CALLS_WITHOUT_GAPS = 48
_CALLS_KEPT = 1024


class CallPeriod:
    """Finds the period of the sequence of collective calls and says which calls end a step.

    A call's symbol is its operation and number of elements, with a bit for a long gap before it where that
    helps (equal all-reduces in bursts). The period is the smallest lag at which at least 95% of the symbols of
    the whole window repeat (Falcon, section 4.2, takes the first lag with an autocorrelation of 0.95), seen at
    least three times. A step ends with the call before the longest gap.
    """

    __slots__ = ("at", "last_ns", "log", "long_ns", "next_try", "pattern")

    def __init__(self) -> None:
        self.log: list[tuple[Any, int, Mark]] = []
        self.next_try = 24
        self.pattern: list[Any] = []
        self.at = 0  # place in the pattern of the next call
        self.long_ns = 0
        self.last_ns = 0

    def forget(self) -> None:
        """Drop everything; a stronger source has been found."""
        self.__init__()  # type: ignore[misc]

    def add(self, symbol: Any, began: int, end: Mark) -> list[Mark]:
        """Take one call in; the ends of steps that are known by it, oldest first."""
        gap, self.last_ns = began - self.last_ns, end[0]
        if self.pattern:
            return self._follow(symbol, gap, end)
        self.log.append((symbol, gap, end))
        if len(self.log) < self.next_try:
            return []
        self.next_try = len(self.log) * 2
        found = self._search()
        if not found:
            del self.log[: max(0, len(self.log) - _CALLS_KEPT)]
            self.next_try = min(self.next_try, 2 * _CALLS_KEPT)
            return []
        self.log.clear()
        return found

    def _search(self) -> list[Mark]:
        symbols = [entry[0] for entry in self.log]
        gaps = [entry[1] for entry in self.log]
        # The third longest gap is that of a step even if two were checkpoints or the like.
        long_ns = sorted(gaps[1:])[-3] * 3 // 10
        # The gap before the very first call means nothing, so that one is left out.
        period = smallest_period([(symbols[place], gaps[place] >= long_ns) for place in range(1, len(symbols))])
        if period:
            self.long_ns = long_ns
        elif len(symbols) >= _CALLS_WITHOUT_GAPS:
            period = smallest_period(symbols[1:])
        if not period:
            return []
        means = [sum(gaps[1 + place :: period]) / len(gaps[1 + place :: period]) for place in range(period)]
        first = (1 + max(range(period), key=means.__getitem__)) % period  # the call after the longest gap opens a step
        opening = first + (len(symbols) - period - first) // period * period
        self.pattern = symbols[opening : opening + period]
        self.at = (len(symbols) - first) % period
        return [self.log[place][2] for place in range(period - 1, len(symbols)) if (place + 1 - first) % period == 0]

    def _follow(self, symbol: Any, gap: int, end: Mark) -> list[Mark]:
        if self.long_ns and gap >= self.long_ns and self.at and symbol == self.pattern[0]:
            self.at = 0  # a burst was cut short or had an extra call
        if symbol != self.pattern[self.at]:
            if symbol not in self.pattern:
                return []  # a call outside the training loop
            self.at = self.pattern.index(symbol)
        self.at = (self.at + 1) % len(self.pattern)
        return [end] if self.at == 0 else []


def smallest_period(symbols: Sequence[Any]) -> int:
    """Smallest lag at which 95% of `symbols` repeat, 0 if there is none that fits three times.

    Examples
    --------
    >>> smallest_period("abcabcabcabc"), smallest_period("abcdefghijkl")
    (3, 0)
    """
    size = len(symbols)
    for lag in range(1, size // 3 + 1):
        misses, allowed = 0, (size - lag) // 20
        for place in range(size - 1, lag - 1, -1):
            if symbols[place] != symbols[place - lag]:
                misses += 1
                if misses > allowed:
                    break
        else:
            return lag
    return 0


def numel(args: tuple[Any, ...]) -> int:
    """Elements of the first tensor among a call's arguments; 0 where there is none."""
    first: Any = args[0] if args else None
    while isinstance(first, (list, tuple)) and first:
        first = first[0]
    try:
        return int(first.numel())
    except Exception:
        let_through()
        return 0
