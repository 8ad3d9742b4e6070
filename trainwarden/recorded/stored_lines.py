"""Lines of a log as a sequence that takes little memory, however long the log is."""

from __future__ import annotations

import os
import tempfile
import weakref
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Final, overload

# Of the lines of a log: characters that are kept in memory, lines of a block in a file, blocks that are kept as text.
IN_MEMORY: Final = 32 * 1024 * 1024
BLOCK: Final = 256
KEPT: Final = 8


def stored(lines: Iterable[str], in_memory: int = IN_MEMORY) -> Sequence[str]:
    """`lines`, none of which holds a newline, as a sequence that takes no more than about `in_memory`.

    Raises
    ------
    OSError
        If there is no room for what is more.

    Examples
    --------
    >>> stored(["a", "b"]), list(stored(["a", "", "c"], in_memory=1)), stored(["a", "", "c"], in_memory=1)[-1]
    (['a', 'b'], ['a', '', 'c'], 'c')
    """
    kept: list[str] = []
    size, coming = 0, iter(lines)
    for line in coming:
        kept.append(line)
        size += len(line)
        if size > in_memory:
            return StoredLines(chain(kept, coming))
    return kept


class StoredLines(Sequence[str]):
    """Lines in a temporary file without a name; the blocks that were read last are kept as text."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._file = tempfile.TemporaryFile(prefix="trainwarden-")  # noqa: SIM115 - it lives as long as the lines
        weakref.finalize(self, self._file.close)
        self._starts = array("Q", [0])
        self._count = 0
        self._kept: dict[int, list[str]] = {}
        block: list[str] = []
        for line in lines:
            block.append(line)
            self._count += 1
            if len(block) == BLOCK:
                self._write(block)
                block = []
        if block:
            self._write(block)
        self._file.flush()

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[str]:
        for number in range(len(self._starts) - 1):
            yield from self._block(number)

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> list[str]: ...
    def __getitem__(self, place: int | slice) -> str | list[str]:
        if isinstance(place, slice):
            return [self[one] for one in range(*place.indices(self._count))]
        at = place + self._count if place < 0 else place
        if not 0 <= at < self._count:
            raise IndexError(place)
        return self._block(at // BLOCK)[at % BLOCK]

    def _write(self, block: list[str]) -> None:
        data = "\n".join(block).encode("utf-8", "replace")
        self._file.write(data)
        self._starts.append(self._starts[-1] + len(data))

    def _block(self, number: int) -> list[str]:
        found = self._kept.get(number)
        if found is None:
            start, end = self._starts[number], self._starts[number + 1]
            found = os.pread(self._file.fileno(), end - start, start).decode("utf-8").split("\n")
            if len(self._kept) >= KEPT:
                del self._kept[next(iter(self._kept))]
            self._kept[number] = found
        return found
