"""Who belongs to a job: its ranks as columns, where they run, which of their processes is the present one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Final, Literal

import numpy as np

from trainwarden.detectors.job.step_numbers import widened
from trainwarden.parallelism.board import LayoutBoard
from trainwarden.parallelism.layout import Layout
from trainwarden.records import EventRecord

MAX_RANKS: Final = 65_536  # of one job; a record that names more is damage
LEAST_ALIKE: Final = 3  # ranks of one stage: fewer say nothing of what is usual there
MAX_IDENTITIES: Final = 100_000  # remembered event and metric identities

Life = Literal["same", "first", "next", "past"]


class Seen:
    """A bounded set of identities, oldest forgotten first."""

    def __init__(self, limit: int = MAX_IDENTITIES) -> None:
        self._limit = limit
        self._known: OrderedDict[object, None] = OrderedDict()

    def add(self, identity: object) -> bool:
        """True if it is new."""
        if identity in self._known:
            return False
        self._known[identity] = None
        if len(self._known) > self._limit:
            self._known.popitem(last=False)
        return True


class Roster:
    """The ranks of a job in the order in which they were first heard of.

    Attributes
    ----------
    ranks, nodes, roles, incarnations : lists, one entry a column
    bases : list of (str, str), one entry a column
        Where the newest steps' times come from, and what the rank computes on behind the host's back.
    column : dict of int to int
        Column of each rank.
    ended, clean : bool [room]
        Whether the present process has ended, and ended well.
    incarnation : int [room]
        How many processes the rank has had.
    layout : LayoutBoard
        What is said of the job's parallel groups.
    """

    def __init__(self) -> None:
        self.ranks: list[int] = []
        self.column: dict[int, int] = {}
        self.nodes: list[str] = []
        self.roles: list[str] = []
        self.bases: list[tuple[str, str]] = []
        self.incarnations: list[str] = []
        self.ended = np.zeros(0, dtype=np.bool_)
        self.clean = np.zeros(0, dtype=np.bool_)
        self.incarnation = np.zeros(0, dtype=np.int64)
        self.layout = LayoutBoard()
        self._staged, self._stages = "", tuple[str, ...]()
        self._past: set[tuple[int, str]] = set()
        self._beside: dict[str, None] = {}

    def has_room(self, ranks: Sequence[int]) -> bool:
        """False if `ranks` would be more than a job can have."""
        return len(self.column) + sum(rank not in self.column for rank in ranks) <= MAX_RANKS

    def columns(self, ranks: Sequence[int], node: str, role: str = "") -> list[int]:
        """Columns of `ranks`, made where they are new; they run on `node` now."""
        out = []
        for rank in ranks:
            column = self.column.get(rank)
            if column is None:
                column = self.column[rank] = len(self.ranks)
                self.ranks.append(rank)
                self.nodes.append(node)
                self.roles.append(role)
                self.bases.append(("", ""))
                self.incarnations.append("")
            elif self.nodes[column] != node:
                self.nodes[column] = node
            if role:
                self.roles[column] = role
            out.append(column)
        self._widen(len(self.ranks))
        return out

    def columns_of_window(self) -> dict[str, Any]:
        """What a window shows of the columns; by a layout that can be relied on, roles are pipeline stages."""
        layout = self.layout.layout()
        known = "" if layout is None else f"{len(self.ranks)} {layout.order} {layout.summary()}"
        if known != self._staged:  # names for tens of thousands of ranks are not made at every window
            self._staged, self._stages = known, stage_roles(layout, self.ranks)
        roles = self._stages or tuple(self.roles)
        return {"nodes": tuple(self.nodes), "roles": roles, "bases": tuple(self.bases), "layout": layout}

    def said_roles(self) -> dict[int, str]:
        """The role of every rank that has said one."""
        return {rank: role for rank, role in zip(self.ranks, self.roles, strict=True) if role}

    def live(self, column: int, incarnation: str) -> Life:
        """Whether `incarnation` is the column's present process; one that was never seen becomes it."""
        present = self.incarnations[column]
        if incarnation == present:
            return "same"
        if (column, incarnation) in self._past:
            return "past"
        self._past.add((column, incarnation))
        self.incarnations[column] = incarnation
        self.incarnation[column] += 1
        if not present:
            return "first"
        self.ended[column] = self.clean[column] = False
        return "next"

    def runs_beside(self, event: EventRecord) -> bool:
        """Whether `event` is of a process that has a rank's name beside its trainer: nothing it does is the rank's.

        The start of a process tells, and once more should it become the trainer after all.
        """
        incarnation = event.fields.get("incarnation")
        if incarnation is None:
            return False
        who = f"{event.node}/{incarnation}"
        if event.kind == "process_start":
            if event.fields.get("beside") is None:
                self._beside.pop(who, None)
            else:
                self._beside[who] = None
                if len(self._beside) > MAX_IDENTITIES:
                    del self._beside[next(iter(self._beside))]
        return who in self._beside

    def shrink(self, size: int) -> None:
        """The job goes on with `size` ranks: those beyond have ended."""
        for rank, column in self.column.items():
            if rank >= size:
                self.ended[column] = True

    def _widen(self, size: int) -> None:
        have = self.ended.size
        if size > have:
            room = max(size, have + have // 2)
            self.incarnation = widened(self.incarnation, room, 0)
            self.ended = widened(self.ended, room, False)
            self.clean = widened(self.clean, room, False)


def stage_roles(layout: Layout | None, ranks: Sequence[int]) -> tuple[str, ...]:
    """The pipeline stage of each rank as its role; empty where there are no stages whose ranks can be compared.

    The first and the last stage have an embedding and a head besides their layers: they are marked, as they differ
    from the others by design.

    Examples
    --------
    >>> stage_roles(Layout(world_size=12, sizes={"tp": 1, "cp": 1, "dp": 4, "pp": 3}), [0, 5, 11])
    ('stage0:first', 'stage1', 'stage2:last')
    """
    if layout is None or not layout.whole or layout.sizes["pp"] == 1:
        return ()
    if layout.world_size < LEAST_ALIKE * layout.sizes["pp"] or any(rank >= layout.world_size for rank in ranks):
        return ()
    ends = {0: ":first", layout.sizes["pp"] - 1: ":last"}
    stages = layout.stages()
    return tuple(f"stage{stages[rank]}{ends.get(stages[rank], '')}" for rank in ranks)
