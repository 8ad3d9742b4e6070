"""When a job that runs on too few nodes is stopped to take in more: at a whole checkpoint, once that is worth it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from actions.launchers.cluster.words import Grow
from trainwarden.checkpoints.newest import Checkpoint, Search

UNSEEN_RESTART_S: Final = 720.0  # of a restart that nobody has timed: TRANSOM's, from an error to running again
LOOK_S: Final = 2.0  # between two looks for a checkpoint: as much training is lost at most


class Growing:
    """What a job loses by being small, against what a restart costs; pure, told the time with each call.

    The rule is the ladder's (Falcon 5.2, algorithm 1): what is lost grows until it reaches the price of its remedy. On
    `there` nodes where `more` wait, of each second ``more / (there + more)`` is lost.

    Parameters
    ----------
    how : str
        See `actions.launchers.cluster.words.Shape`.

    Examples
    --------
    >>> growing = Growing("worth")
    >>> for now_s in (0.0, 30.0, 80.0):
    ...     growing.see(there=3, more=1, now_s=now_s)
    >>> growing.lost_s, growing.due(restart_s=25.0), growing.due(restart_s=20.0)
    (20.0, False, True)
    """

    def __init__(self, how: Grow) -> None:
        self._how = how
        self._seen_s: float | None = None
        self._share = 0.0
        self.lost_s = 0.0

    def see(self, there: int, more: int, now_s: float) -> None:
        """`more` nodes could take part beside those that are `there`."""
        if more < 1:
            self._seen_s, self.lost_s = None, 0.0
            return
        if self._seen_s is not None:
            self.lost_s += (now_s - self._seen_s) * self._share
        self._seen_s, self._share = now_s, more / (there + more)

    def due(self, restart_s: float | None) -> bool:
        """Whether the next whole checkpoint is to be used, where a restart takes `restart_s` seconds."""
        if self._seen_s is None or self._how == "restart":
            return False
        return self._how == "now" or self.lost_s >= (UNSEEN_RESTART_S if restart_s is None else restart_s)


class CheckpointWatch:
    """Looks for a checkpoint that has become whole since the watch began, again and again, without waiting."""

    def __init__(self, folder: Path, now_s: float) -> None:
        self._folder = folder
        self._began = False
        self._before: Checkpoint | None = None
        self._search, self._looked_s = Search(folder), now_s

    def newer(self, now_s: float) -> Checkpoint | None:
        """A checkpoint that is newer than all at the beginning, once there is one."""
        if not self._search.done:  # the folder may not answer: one look at a time
            return None
        found = self._search.found
        if not self._began:
            self._began, self._before = True, found
        elif found is not None and (self._before is None or found.step > self._before.step):
            return found
        if now_s - self._looked_s >= LOOK_S:
            self._search, self._looked_s = Search(self._folder), now_s
        return None
