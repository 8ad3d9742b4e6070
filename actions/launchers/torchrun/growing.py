"""When a job that runs on too few nodes is stopped to take in more: once the loss by that is worth a restart."""

from __future__ import annotations

from typing import Final

from trainwarden.actions.launchers.torchrun.messages import Grow

UNSEEN_RESTART_S: Final = 720.0  # of a restart that nobody has timed: TRANSOM's, from an error to running again


class Growing:
    """What a job loses by being small, against what a restart costs; pure, given the time with each call.

    The rule is the ladder's (Falcon 5.2, algorithm 1): what is lost grows until it reaches the price of its remedy. On
    `there` nodes where `more` wait, of each second ``more / (there + more)`` is lost.

    Parameters
    ----------
    how : str
        See `trainwarden.actions.launchers.torchrun.messages.Hello`.

    Examples
    --------
    >>> growing = Growing("worth")
    >>> for now_s in (0.0, 30.0, 80.0):
    ...     growing.observe(there=3, more=1, now_s=now_s)
    >>> growing.lost_s, growing.is_due(restart_s=25.0), growing.is_due(restart_s=20.0)
    (20.0, False, True)
    """

    def __init__(self, how: Grow = "worth") -> None:
        self.how = how
        self._seen_s: float | None = None
        self._share = 0.0
        self.lost_s = 0.0

    def observe(self, there: int, more: int, now_s: float) -> None:
        """`more` nodes could take part beside those that are `there`."""
        if more < 1:
            self._seen_s, self.lost_s = None, 0.0
            return
        if self._seen_s is not None:
            self.lost_s += (now_s - self._seen_s) * self._share
        self._seen_s, self._share = now_s, more / (there + more)

    def is_due(self, restart_s: float | None) -> bool:
        """Whether the next whole checkpoint is to be used, where a restart takes `restart_s` seconds."""
        if self._seen_s is None or self.how == "restart":
            return False
        return self.how == "now" or self.lost_s >= (UNSEEN_RESTART_S if restart_s is None else restart_s)
