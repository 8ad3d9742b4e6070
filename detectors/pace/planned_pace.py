"""Where a job may keep another pace by plan: after a new split of micro-batches, a program started anew, a resize."""

from __future__ import annotations

from typing import Final

import msgspec

PLANNED_ROWS: Final = (-1, 5)  # a change that begins this near to a row of the plan is the plan taking effect


class PlannedPace(msgspec.Struct):
    """The newest row of a plan. A restart explains a pause, not a new pace: by itself it is none.

    Attributes
    ----------
    row : int, optional
        Sequence number of that row.
    team : int
        Ranks that took part in the newest step that was not quiet.
    """

    row: int | None = None
    team: int = 0
    after_quiet: bool = False

    def quiet(self, seq: int, *, repaced: bool) -> None:
        """Row `seq` is one in which slowness is planned; `repaced`: and what comes after may be, too."""
        if repaced and self.team:
            self.row = seq
        self.after_quiet = True

    def closed(self, seq: int, team: int) -> None:
        """Row `seq` is an ordinary one; another number of ranks than before the quiet ones goes at another pace."""
        if self.after_quiet and self.team not in {0, team}:
            self.row = seq - 1
        self.team, self.after_quiet = team, False

    def explains(self, onset: int) -> bool:
        """True if a change that begins in row `onset` is planned."""
        low, high = PLANNED_ROWS
        return self.row is not None and low <= onset - self.row <= high
