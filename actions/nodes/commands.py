"""People's words on nodes: of those that take a node out of use or put it back, the newest stands."""

from __future__ import annotations

from operator import itemgetter
from typing import Final

from trainwarden.records import CommandRecord

CLEARING: Final = frozenset({"set_healthy", "uncordon"})
"""Words after which older evidence against a node counts no more."""
CORDONING: Final = frozenset({"cordon", "uncordon"})
"""Words that whoever runs the jobs is to obey."""


class NodeCommands:
    """The newest word on each node: of one job by its place on the bus, of several by when they came to it.

    Examples
    --------
    >>> from trainwarden.commands.builders import on_node
    >>> first, second = (on_node(word, "n7", "llama", "ann", at_s=0.0) for word in ("cordon", "uncordon"))
    >>> words = NodeCommands()
    >>> for offset, word in enumerate((first, second, first)):
    ...     words.apply(word, offset % 2, 5.0)
    >>> words.later(first) is second, words.later(second)
    (True, None)
    """

    def __init__(self) -> None:
        self._words: dict[str, dict[str, tuple[int, float, CommandRecord]]] = {}  # by node and job

    def apply(self, command: CommandRecord, offset: int, said_s: float) -> None:
        """Take a word in, which came to the bus at `said_s` and stands at `offset` there; repeats change nothing."""
        if command.kind in CORDONING and command.node is not None:
            words = self._words.setdefault(command.node, {})
            if command.job not in words or offset >= words[command.job][0]:
                words[command.job] = offset, said_s, command

    def later(self, command: CommandRecord) -> CommandRecord | None:
        """The word that was said of the same node after `command`; None if that still stands."""
        words = self._words.get(command.node or "")
        newest = max(words.values(), key=itemgetter(1))[2] if words else None
        return None if newest is None or newest.id == command.id else newest
