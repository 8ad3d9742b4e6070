"""What each node was blamed for within a week, by whichever job and engine, and what people said of it since.

Few nodes make most of the trouble: in one cluster 3 of 63 made half of all exclusions (arXiv 2605.09370). An engine
sees the incidents of its own jobs alone but hears the actions of all, and every action names the node that was blamed.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Final

import msgspec

from trainwarden.actions.brakes.history import NODES_OUT, carried_out
from trainwarden.actions.brakes.nodes import targets
from trainwarden.actions.nodes.commands import CLEARING
from trainwarden.records import ActionRecord, CommandRecord

WEEK_S: Final = 7 * 86_400.0
OFTEN: Final = 5  # incidents within a week: NVSentinel's limit of remediations
TWICE: Final = 2  # evictions: it was taken out, came back, and was taken out again


def cleared_text(word: CommandRecord) -> str:
    """Why evidence from before `word` counts no more."""
    by = word.by or "somebody"
    said = "set it healthy" if word.kind == "set_healthy" else "uncordoned it"
    return f"{word.node} is not taken out: {by} has {said} since that was seen; what comes new counts"


class Blame(msgspec.Struct, frozen=True):
    """One incident that blamed a node: of which job, and whether the node was taken out.

    `at_s` is when that came to the bus; None: it is on its way.
    """

    at_s: float | None
    job: str
    evicted: bool


class NodePasts:
    """The past of all nodes, from records in any number of repeats.

    Examples
    --------
    >>> pasts = NodePasts()
    >>> for n in range(5):
    ...     pasts.take_action(ActionRecord(id=f"i{n}/restart/1", incident=f"i{n}", job=f"j{n % 2}", at_s=9.0,
    ...         kind="restart_process", outcome="done", why="crash", blames="n7"), 9.0)
    >>> pasts.advice("n7", 60.0)
    'n7 was blamed in 5 incidents of 2 jobs within 7 days: have it tested before it is used again'
    >>> pasts.advice("n8", 60.0) is None
    True
    """

    def __init__(self) -> None:
        self._blames: dict[str, dict[str, Blame]] = defaultdict(dict)
        self._cleared: dict[str, tuple[float, CommandRecord]] = {}

    def take_action(self, action: ActionRecord, at_s: float | None) -> None:
        """Take one record in; `at_s` is when it came to the bus, whose clock is one for all. The first time counts."""
        out = targets(action) if action.kind in NODES_OUT and carried_out(action) else set()
        for node in out | ({action.blames} if action.blames else set()):
            known = self._blames[node].get(action.cause)
            evicted = node in out or (known is not None and known.evicted)
            first_s = at_s if known is None or known.at_s is None else known.at_s
            self._blames[node][action.cause] = Blame(first_s, action.job, evicted)

    def take_command(self, command: CommandRecord, at_s: float | None) -> None:
        """Take a person's word in; that a node is well counts from when it came to the bus."""
        if command.kind in CLEARING and command.node is not None:
            said_s = command.at_s if at_s is None else at_s
            if said_s >= self._cleared.get(command.node, (float("-inf"), None))[0]:
                self._cleared[command.node] = (said_s, command)

    def cleared(self, node: str | None, evidence_s: float | None) -> CommandRecord | None:
        """The word of a person that `node` is well, if it is younger than evidence that came to the bus then."""
        if node is None or evidence_s is None or (found := self._cleared.get(node)) is None:
            return None
        return found[1] if evidence_s <= found[0] else None

    def blames(self, node: str, now_s: float) -> list[Blame]:
        """What it was blamed for within a week, and since a person has said that it is well."""
        since_s = max(now_s - WEEK_S, self._cleared.get(node, (float("-inf"), None))[0])
        known = self._blames.get(node, {}).values()
        return [blame for blame in known if blame.at_s is None or blame.at_s > since_s]

    def advice(self, node: str | None, now_s: float) -> str | None:
        """One sentence about a node that is blamed again and again; None about any other."""
        blames = [] if node is None else self.blames(node, now_s)
        evictions = sum(blame.evicted for blame in blames)
        if len(blames) < OFTEN and evictions < TWICE:
            return None
        jobs = len({blame.job for blame in blames})
        taken = f" and taken out {evictions} times" if evictions else ""
        told = f"{len(blames)} incidents of {jobs} job{'s' if jobs != 1 else ''}"
        return f"{node} was blamed in {told}{taken} within 7 days: have it tested before it is used again"

    def forget(self, before_s: float) -> None:
        """Let go of what was blamed before `before_s`; words of people stay, as there are few."""
        for node, of_node in list(self._blames.items()):
            for incident in [name for name, one in of_node.items() if one.at_s is not None and one.at_s < before_s]:
                del of_node[incident]
            if not of_node:
                del self._blames[node]
