"""One node's side: whose commands it obeys. This, not the lease, is what keeps two leaders from acting at once.

A lease is no mutual exclusion: its holder may stand still between looking at the clock and acting. So every command
carries the epoch of its sender's lease, and a node that has obeyed a higher one refuses it (the fencing token of
Kleppmann 2016, checked at the resource).
"""

from __future__ import annotations

import msgspec


class Allegiance(msgspec.Struct, frozen=True, kw_only=True):
    """The leader that a node obeys, by the epoch of its lease."""

    epoch: int
    holder: str


class EpochFence:
    """Refuses whoever's epoch is lower than one that was obeyed; and another one, as long as the leader is heard of.

    The second rule lets two lease services that know nothing of each other make no two leaders that take turns: who
    has been granted a higher epoch by the wrong one gets no node away from a leader that is there.

    Parameters
    ----------
    allegiance : Allegiance, optional
        What a process of this node before this one obeyed.

    Examples
    --------
    >>> fence = EpochFence()
    >>> fence.admit(Allegiance(epoch=2, holder="a"), left_s=4.0, now_s=0.0)
    True
    >>> fence.admit(Allegiance(epoch=3, holder="b"), left_s=4.0, now_s=3.9)
    False
    >>> fence.admit(Allegiance(epoch=3, holder="b"), left_s=4.0, now_s=4.0)
    True
    >>> fence.admit(Allegiance(epoch=2, holder="a"), left_s=4.0, now_s=9.0)
    False
    """

    def __init__(self, allegiance: Allegiance | None = None) -> None:
        self._allegiance = allegiance
        self._heard_until_s = float("-inf")

    @property
    def allegiance(self) -> Allegiance | None:
        """Whom this node obeys, or obeyed last."""
        return self._allegiance

    def admit(self, sender: Allegiance, *, left_s: float, now_s: float) -> bool:
        """Whether a command of `sender` is obeyed; its lease stands for `left_s` seconds more, it says.

        What the leader was told of its own end holds here from when it is heard, which is no earlier.
        """
        own = self._allegiance
        if own is not None and sender != own:
            hears_another = sender.holder != own.holder and now_s < self._heard_until_s
            if sender.epoch <= own.epoch or hears_another:
                return False
        self._allegiance = sender
        self._heard_until_s = now_s + left_s
        return True

    def farewell(self, sender: Allegiance) -> None:
        """The leader says that it resigns: the next one need not wait."""
        if sender == self._allegiance:
            self._heard_until_s = float("-inf")
