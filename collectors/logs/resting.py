"""Files that have not grown for long: let go of, so that others can be followed, and followed again where they grow."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from trainwarden.collectors.logs.rotation import stat_of
from trainwarden.collectors.logs.tail import Tail, TailState

GONE_S: Final = 60.0  # a file that is at its path no more is still read as long as it grows, and so much longer
MOST_PER_FILE: Final = 8  # so many states are kept for each file that may be followed

Sight = tuple[int, int, int] | None
"""Inode, size and time of change of what is at a path; None if nothing is."""


class Resting:
    """How far files had been read that are followed no more, by source; the oldest are forgotten.

    Positions of a source only grow, so whoever begins with it again needs to know where they had come to.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._states: OrderedDict[str, tuple[TailState, Path, Sight]] = OrderedDict()

    def __contains__(self, source: str) -> bool:
        return source in self._states

    def lay(self, source: str, tail: Tail) -> None:
        """Let go of `tail`."""
        tail.close()
        state, found = tail.state, sight(tail.path)
        if found is None:  # what comes under its name is another file, whatever inode it is given
            state = TailState(base=state.base + state.offset)
        self._states[source] = state, tail.path, found

    def trim(self) -> None:
        """Forget the oldest of too many: of files that are gone first, as one that is there would be read once more."""
        over = len(self._states) - self._most
        if over > 0:
            gone = [source for source, (_, _, found) in self._states.items() if found is None]
            for source in (gone + [one for one in self._states if one not in set(gone)])[:over]:
                del self._states[source]

    def pop(self, source: str) -> TailState | None:
        """The state of `source`, which is followed again; None if it did not rest."""
        found = self._states.pop(source, None)
        return None if found is None else found[0]

    def grown(self) -> list[tuple[str, Path]]:
        """Sources at whose paths something else is than when they were let go of."""
        return [
            (source, path)
            for source, (_, path, before) in self._states.items()
            if (now := sight(path)) is not None and now != before
        ]

    def position(self) -> dict[str, Any]:
        """For `restore`, as plain JSON."""
        return {source: msgspec.to_builtins(state) for source, (state, _, _) in self._states.items()}

    def restore(self, position: Mapping[str, Any], run_dir: Path) -> None:
        """Go on from `position`; what has grown meanwhile is seen by the sizes."""
        for source, raw in position.items():
            state, path = msgspec.convert(raw, TailState), run_dir / source
            found = sight(path)
            same = found is not None and found[0] == state.inode and found[1] == state.offset
            self._states[source] = state, path, found if same else None


def sight(path: Path) -> Sight:
    """What is at `path`."""
    found = stat_of(path)
    return None if found is None else (found.st_ino, found.st_size, found.st_mtime_ns)
