"""The numbers of steps: a script's own as long as they rise, else counted on.

A script's number is a label. It may begin again in each epoch, jump ahead once by mistake, or be given twice; the steps
are there all the same, and no two of one process are one.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

MAX_SKIP: Final = 1_000  # a number further ahead of the one before is a mistake, unless the next one goes on from there


class StepNumbers:
    """Rising numbers of the steps of each column, equal on all ranks that are given equal ones.

    Attributes
    ----------
    high : int64 [columns]
        The highest number so far; -1 before the first.
    epoch : int64 [columns]
        How often the rank has gone back to an earlier step; numbers of different epochs are not comparable.

    Examples
    --------
    >>> numbers = StepNumbers()
    >>> numbers.resize(1)
    >>> numbers.begin(0, 5)
    >>> [numbers.of(0, label, float(at)) for at, label in enumerate([5, 6, 10**12, 8, 0, 1, 2])]
    [5, 6, 7, 8, 9, 10, 11]
    """

    def __init__(self) -> None:
        self.high = np.zeros(0, dtype=np.int64)
        self.epoch = np.zeros(0, dtype=np.int64)
        self._begun = np.zeros(0, dtype=np.bool_)
        self._first = np.zeros(0, dtype=np.int64)  # the lowest number of the process
        self._shift = np.zeros(0, dtype=np.int64)  # a step's number less its label
        self._odd = np.zeros(0, dtype=np.int64)  # the label before, where it did not fit; -1 where it did
        self._newest_s = np.zeros(0)

    def resize(self, room: int) -> None:
        """Make room for `room` columns."""
        self.high = widened(self.high, room, -1)
        self.epoch = widened(self.epoch, room, int(self.epoch.max(initial=0)))
        self._begun = widened(self._begun, room, False)
        self._first = widened(self._first, room, 0)
        self._shift = widened(self._shift, room, 0)
        self._odd = widened(self._odd, room, -1)
        self._newest_s = widened(self._newest_s, room, np.nan)

    def begin(self, column: int, label: int, epoch: int = 0) -> None:
        """A process of the rank of `column` begins `epoch` with `label`: it may go back to earlier steps."""
        self.epoch[column] = epoch
        others = self._others(column)
        wild = others.size and label > int(others.max()) + MAX_SKIP
        self.high[column] = int(others.min()) - 1 if wild else label - 1
        self._first[column] = int(self.high[column]) + 1
        self._shift[column] = int(self._first[column]) - label
        self._begun[column], self._odd[column] = True, -1
        self._newest_s[column] = np.nan

    def of(self, column: int, label: int, end_s: float) -> int | None:
        """The number of the step that the rank of `column` ended at `end_s`; None if it was there before.

        One that is not above the highest was there before as well, or comes late.
        """
        high, shift = int(self.high[column]), int(self._shift[column])
        number, again = label + shift, end_s <= self._newest_s[column]
        self._newest_s[column] = np.fmax(self._newest_s[column], end_s)
        fits = high < number <= high + MAX_SKIP
        if again and not (fits and shift == 0):  # a clock may be set back, where numbers rise
            return number if self._first[column] <= number <= high else None
        if fits:
            self._odd[column] = -1
        elif self._was_wild(column, number):
            self._first[column] = min(int(self._first[column]), number)
        else:
            number = self._counted_on(column, label, number)
        self.high[column] = number
        return number

    def _was_wild(self, column: int, number: int) -> bool:
        """Whether it was the numbers before `number` that did not fit to those of others."""
        most = int(self._others(column).max(initial=-1))
        return most >= 0 and int(self.high[column]) > most + MAX_SKIP >= number

    def _others(self, column: int) -> npt.NDArray[np.int64]:
        """The highest numbers of the other ranks that are in the epoch of `column`."""
        beside = self._begun & (self.epoch == self.epoch[column])
        beside[column] = False
        found: npt.NDArray[np.int64] = self.high[beside]
        return found

    def _counted_on(self, column: int, label: int, number: int) -> int:
        odd, following = int(self._odd[column]), int(self.high[column]) + 1
        lasts = odd >= 0 and 0 < label - odd <= MAX_SKIP
        self._odd[column] = -1 if lasts else label
        if lasts and number > following:
            return number  # the script has gone on from there
        if lasts:
            self._shift[column] = following - label
        return following


def widened(array: npt.NDArray[Any], room: int, empty: object) -> npt.NDArray[Any]:
    """`array` with `room` elements, new ones `empty`."""
    fresh = np.full(room, empty, dtype=array.dtype)
    fresh[: array.size] = array
    return fresh
