"""Latches: in which jobs no more nodes are taken out until a person resets that."""

from __future__ import annotations

import math
from typing import NamedTuple

from trainwarden.commands.builders import EVERY_JOB
from trainwarden.records import CommandRecord


class _Place(NamedTuple):
    """Where a word lies in the partition of its job, and when it came there."""

    offset: float
    at_s: float


class Latches:
    """The newest latch and the newest reset of each job, and of all.

    Words on one job lie in one partition, where the bus keeps their order, whatever clocks say. A reset of all jobs
    lies elsewhere than the latch of one: the bus's times tell which came first, and where they do not the latch holds.

    Examples
    --------
    >>> def word(kind, job):
    ...     return CommandRecord(id=f"{kind}/{job}", job=job, at_s=0.0, kind=kind, by="ann")
    >>> latches = Latches()
    >>> latches.apply(word("latch", "a"), 0, 1.0)
    >>> latches.over("a").kind, latches.over("b")
    ('latch', None)
    >>> latches.apply(word("reset", EVERY_JOB), 0, 2.0)
    >>> latches.over("a") is None
    True
    """

    def __init__(self) -> None:
        self._latched: dict[str, tuple[_Place, CommandRecord]] = {}
        self._reset: dict[str, _Place] = {}

    def apply(self, command: CommandRecord, offset: int, at_s: float | None) -> None:
        """Take a latch or a reset in, which came to the bus at `at_s`; None: it has not come there yet."""
        place = _Place(math.inf, math.inf) if at_s is None else _Place(offset, at_s)
        if command.kind == "reset":
            self._reset[command.job] = max(place, self._reset.get(command.job, place))
        elif command.kind == "latch":
            known = self._latched.get(command.job)
            if known is None or place > known[0] or (known[0].at_s == math.inf and known[1].id == command.id):
                self._latched[command.job] = (place, command)

    def over(self, job: str) -> CommandRecord | None:
        """The latch that holds in `job`; None if there is none."""
        for name in (job, EVERY_JOB):
            if (latched := self._latched.get(name)) is None:
                continue
            place, command = latched
            own, of_all = self._reset.get(name), self._reset.get(EVERY_JOB)
            lifted = own is not None and own.offset > place.offset
            if not lifted and (name == EVERY_JOB or of_all is None or of_all.at_s <= place.at_s):
                return command
        return None

    def standing(self) -> list[CommandRecord]:
        """All that hold."""
        return [found for name in self._latched if (found := self.over(name)) is not None and found.job == name]
