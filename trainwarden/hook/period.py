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
_STRAYS = 3  # times that a call outside the pattern comes again before the pattern is taken for a part of the step
_SYMBOLS = 64
_ODD_OF = 128  # calls, of which a quarter may be out of turn before another pattern is looked for
_LONGER = 2  # times as long as the others is a gap that ends a step


class CallPeriod:
    """Finds the period of the sequence of collective calls and says which calls end a step.

    A call's symbol is its operation and number of elements, with a bit for a long gap before it where that
    helps (equal all-reduces in bursts). The period is the smallest lag at which at least 95% of the symbols of
    the whole window repeat (Falcon, section 4.2, takes the first lag with an autocorrelation of 0.95), seen at
    least three times; a longer lag takes its place if it explains what that one leaves, as layers repeat within a
    step. A step ends with the call before the longest gap. If calls outside the pattern come again and again, or a
    quarter of its own out of turn, it was of a part of the step, and another is looked for over more calls.
    """

    __slots__ = (
        "again", "at", "followed", "last_ns", "log", "long_ns", "next_try", "odd", "odd_from", "patience", "pattern",
        "strays",
    )  # fmt: skip

    def __init__(self) -> None:
        self.log: list[tuple[Any, int, Mark]] = []
        self.next_try = 24
        self.pattern: list[Any] = []
        self.at = 0  # place in the pattern of the next call
        self.long_ns = 0
        self.last_ns = 0
        self.strays: dict[Any, tuple[int, int]] = {}  # how often, and at which call last
        self.patience = _STRAYS
        self.followed = 0
        self.odd_from = 0  # calls followed before such a search
        self.odd = 0  # calls of the pattern that came out of turn, of the newest `_ODD_OF`
        self.again = False  # whether a longer pattern is looked for while this one is followed

    def forget(self) -> None:
        """Drop everything; a stronger source has been found."""
        self.__init__()  # type: ignore[misc]

    def add(self, symbol: Any, began: int, end: Mark) -> list[Mark]:
        """Take one call in; the ends of steps that are known by it, oldest first."""
        gap, self.last_ns = began - self.last_ns, end[0]
        if self.pattern:
            if self.again:
                self._look_again(symbol, gap, end)
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
        plain = smallest_period(symbols[1:]) if period or len(symbols) >= _CALLS_WITHOUT_GAPS else 0
        if plain and not _gaps_tell(gaps[1:], period, plain):
            period = plain
        # Where the calls themselves tell their places, gaps are no sign: within a step of a pipeline some are long too.
        self.long_ns = long_ns if period != plain else 0
        if not period:
            return []
        means = [sum(gaps[1 + place :: period]) / len(gaps[1 + place :: period]) for place in range(period)]
        first = (1 + max(range(period), key=means.__getitem__)) % period  # the call after the longest gap opens a step
        opening = first + (len(symbols) - period - first) // period * period
        self.pattern = symbols[opening : opening + period]
        self.at = (len(symbols) - first) % period
        return [self.log[place][2] for place in range(period - 1, len(symbols)) if (place + 1 - first) % period == 0]

    def _astray(self, symbol: Any) -> None:
        """A call outside the pattern: an evaluation's, many at once, or every time that the whole step comes round."""
        times, last = self.strays.get(symbol, (0, -_CALLS_KEPT))
        if self.followed - last < len(self.pattern) or (not times and len(self.strays) >= _SYMBOLS):
            return
        self.strays[symbol] = times + 1, self.followed
        if times + 1 >= self.patience:
            self.next_try = min(max(24, 4 * (self.followed // self.patience + 1)), 2 * _CALLS_KEPT)
            self.patience *= 4  # evaluations come again too
            self.strays, self.followed, self.again = {}, 0, True

    def _look_again(self, symbol: Any, gap: int, end: Mark) -> None:
        """Take another pattern if the newest calls have one of another length; the old one is followed until then."""
        self.log.append((symbol, gap, end))
        if len(self.log) < self.next_try:
            return
        old = self.pattern, self.at, self.long_ns
        self._search()
        if len(self.pattern) == len(old[0]):
            self.pattern, self.at, self.long_ns = old
        else:
            self.at = (self.at - 1) % len(self.pattern)  # the newest call is followed next
        self.log.clear()
        self.again = False

    def _follow(self, symbol: Any, gap: int, end: Mark) -> list[Mark]:
        self.followed += 1
        if self.long_ns and gap >= self.long_ns and self.at and symbol == self.pattern[0]:
            self.at = 0  # a burst was cut short or had an extra call
        if symbol != self.pattern[self.at]:
            if symbol not in self.pattern:
                self._astray(symbol)
                return []
            self.at = self.pattern.index(symbol)
            self.odd += 1
        if self.followed % _ODD_OF == 0:
            if self.odd > _ODD_OF // 4 and not self.again and self.followed >= self.odd_from:
                self.odd_from = 4 * self.followed  # programs without a period are not searched again and again
                self.next_try = min(max(2 * _ODD_OF, 2 * self.next_try), 2 * _CALLS_KEPT)
                self.again = True
            self.odd = 0
        self.at = (self.at + 1) % len(self.pattern)
        return [end] if self.at == 0 else []


def _gaps_tell(gaps: Sequence[int], period: int, plain: int) -> bool:
    """Whether gaps make a `period` of several that calls alone have: one is far longer than those in its place there.

    Gaps that are now shorter and now longer than what counts as long have a period by chance.
    """
    if period <= plain or period % plain:
        return period > plain
    means = [sum(gaps[place::period]) / len(gaps[place::period]) for place in range(period)]
    longest = max(range(period), key=means.__getitem__)
    others = [means[place] for place in range(longest % plain, period, plain) if place != longest]
    return means[longest] * len(others) >= _LONGER * sum(others)


def smallest_period(symbols: Sequence[Any]) -> int:
    """Smallest lag at which 95% of `symbols` repeat, 0 if there is none that fits three times.

    A longer lag at which a quarter or less of the others do not repeat is the period instead.

    Examples
    --------
    >>> smallest_period("abcabcabcabc"), smallest_period("abcdefghijkl")
    (3, 0)
    >>> smallest_period(("a" * 40 + "b") * 4)
    41
    """
    size, found, left = len(symbols), 0, 0
    for lag in range(1, size // 3 + 1):
        misses, allowed = 0, left // 4 if found else (size - lag) // 20
        for place in range(size - 1, lag - 1, -1):
            if symbols[place] != symbols[place - lag]:
                misses += 1
                if misses > allowed:
                    break
        else:
            found, left = lag, misses
            if not misses:
                break
    return found


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
