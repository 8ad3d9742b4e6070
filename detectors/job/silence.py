"""How long nodes have not been heard and a job has not moved: watched by the service, so by no node's clock."""

from __future__ import annotations

from collections.abc import Container

from detectors.job.clocks import MAX_NODES


class Silence:
    """Watched time since each node was last heard, and since anybody last made a step or a collective call.

    Examples
    --------
    >>> silence = Silence()
    >>> silence.heard("a"), silence.heard("b"), silence.passed(2.0), silence.heard("b")
    (None, None, None, None)
    >>> silence.of({"a", "b"}), silence.still_s
    ({'a': 2.0, 'b': 0.0}, 2.0)
    """

    def __init__(self) -> None:
        self._nodes: dict[str, float] = {}
        self.still_s = 0.0

    def heard(self, node: str) -> None:
        """A heartbeat of `node` has come."""
        self._nodes[node] = 0.0

    def moved(self) -> None:
        """A step or a collective call of any rank has come."""
        self.still_s = 0.0

    def passed(self, elapsed_s: float) -> None:
        """`elapsed_s` of watched time have passed."""
        self.still_s += elapsed_s
        for node in self._nodes:
            self._nodes[node] += elapsed_s

    def of(self, nodes: Container[str]) -> dict[str, float]:
        """The silence of those of `nodes` that have ever been heard; of too many others nothing is known any more."""
        wanted = {node: silent_s for node, silent_s in self._nodes.items() if node in nodes}
        if len(self._nodes) > MAX_NODES:
            self._nodes = wanted.copy()
        return wanted
