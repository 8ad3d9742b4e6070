"""How far the operation of a ledger that has its turn is, and what is to be done for it next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from actions.launchers.cluster.ledger import LedgerEntry, LedgerKeeper, Stage
from actions.launchers.cluster.words import Attempt, Report, node_of

Step = Literal["stop", "end", "done", "wait"]
"""``stop``: all ranks are to stop, to be started again or not. ``end``: the job is over."""


def next_step(asked: LedgerKeeper, running: Attempt | None, living: Sequence[Report]) -> Step:
    """The next step of what has its turn, which all nodes know of.

    Parameters
    ----------
    asked : LedgerKeeper
        Nodes are set aside in it, or taken back; all nodes have to know that before there is another step.
    running : Attempt, optional
        The newest attempt, where its ranks are to run.
    living : sequence of Report
        What the nodes that are there have said last.
    """
    turn = asked.turn
    assert turn is not None
    if turn.kind == "stop":
        return "end"
    if turn.node is not None and (turn.node in asked.aside) != (turn.kind != "uncordon"):
        asked.put(turn.node, aside=turn.kind != "uncordon")
        return "wait"
    if turn.kind in ("cordon", "uncordon"):
        return "done"
    if running is None:  # a pause lasts, and no attempt is due that an eviction could wait for
        over = turn.kind == "pause" or (turn.kind == "evict" and asked.paused)
        return "done" if over and not any(one.alive for one in living) else "wait"
    return "stop" if _against(turn, running, living) else _runs(running, living)


def _against(turn: LedgerEntry, running: Attempt, living: Sequence[Report]) -> bool:
    """Whether `running` is what `turn` was said against; an attempt that began since is not."""
    if turn.kind == "evict":
        names = {one.life: one.node for one in living}
        return turn.node in {names.get(life, node_of(life)) for life in running.roster}
    return turn.kind == "pause" or (turn.kind in ("restart", "move") and running.id == (turn.epoch, turn.attempt))


def order_after(asked: LedgerKeeper, before: Attempt | None) -> tuple[str, ...]:
    """The nodes of the attempt `before` in the order that the next one is to have: as they were, unless all move."""
    if before is None:
        return ()
    turn = asked.turn
    if turn is None or turn.kind != "move" or (turn.epoch, turn.attempt) != before.id:
        return before.roster
    return tuple(before.roster[place] for place in turn.order)


def _runs(running: Attempt, living: Sequence[Report]) -> Step:
    ran = {one.life: one.ran for one in living}
    return "done" if all(ran.get(life) == running.id for life in running.roster) else "wait"


def sentence_of(entry: LedgerEntry, stage: Stage = "accepted") -> str:
    """What `entry` asks for, who did, and whether it is done.

    Examples
    --------
    >>> sentence_of(LedgerEntry(id="o", kind="evict", attempt=1, node="n2", by="ann (act)", why="its fan is loud"))
    'an evict of n2 was asked for by ann (act): its fan is loud'
    >>> sentence_of(LedgerEntry(id="o", kind="pause", attempt=1), "done")
    'a pause is done, which was asked for by somebody without a name'
    """
    of_node = "" if entry.node is None else f" of {entry.node}"
    what = f"{'an' if entry.kind in ('evict', 'uncordon') else 'a'} {entry.kind}{of_node}"
    return f"{what} {'is done, which was' if stage == 'done' else 'was'} asked for by {entry.asker}"
