"""People's words on nodes: of those that take a node out of use or put it back, the newest stands."""

from __future__ import annotations

from typing import Final

from trainwarden.records import CommandRecord

CLEARING: Final = frozenset({"set_healthy", "uncordon"})
"""Words after which older evidence against a node counts no more."""
CORDONING: Final = frozenset({"cordon", "uncordon"})
"""Words that whoever runs the jobs is to obey."""


class NodeWords:
    """The newest word on each node, by when it came to the bus: people's clocks may be apart.

    Examples
    --------
    >>> from trainwarden.commands.words import on_node
    >>> first, second = (on_node(word, "n7", "llama", "ann", at_s=0.0) for word in ("cordon", "uncordon"))
    >>> words = NodeWords()
    >>> for offset, word in enumerate((first, second, first)):
    ...     words.take(word, offset % 2, 5.0)
    >>> words.later(first) is second, words.later(second)
    (True, None)
    """

    def __init__(self) -> None:
        self._newest: dict[str, tuple[tuple[float, int], CommandRecord]] = {}

    def take(self, command: CommandRecord, offset: int, said_s: float) -> None:
        """Take a word in, which came to the bus at `said_s` and stands at `offset` there; repeats change nothing."""
        if command.kind in CORDONING and command.node is not None:
            known = self._newest.get(command.node)
            if known is None or (said_s, offset) >= known[0]:
                self._newest[command.node] = (said_s, offset), command

    def later(self, command: CommandRecord) -> CommandRecord | None:
        """The word that was said of the same node after `command`; None if that still stands."""
        newest = self._newest.get(command.node or "")
        return None if newest is None or newest[1].id == command.id else newest[1]
