"""Latches: in which jobs no more nodes are taken out until a person resets that."""

from __future__ import annotations

import math

from trainwarden.commands.words import EVERY_JOB
from trainwarden.records import CommandRecord


class Latches:
    """The newest latch and the newest reset of each job, and of all, by the bus's time of them.

    Examples
    --------
    >>> def word(kind, job):
    ...     return CommandRecord(id=f"{kind}/{job}", job=job, at_s=0.0, kind=kind, by="ann")
    >>> latches = Latches()
    >>> latches.take(word("latch", "a"), 1.0)
    >>> latches.over("a").kind, latches.over("b")
    ('latch', None)
    >>> latches.take(word("reset", EVERY_JOB), 2.0)
    >>> latches.over("a") is None
    True
    """

    def __init__(self) -> None:
        self._latched: dict[str, tuple[float, CommandRecord]] = {}
        self._reset_s: dict[str, float] = {}

    def take(self, command: CommandRecord, at_s: float | None) -> None:
        """Take a latch or a reset in; `at_s` is when it came to the bus, None if it has not come there yet."""
        said_s = math.inf if at_s is None else at_s
        if command.kind == "reset":
            self._reset_s[command.job] = max(said_s, self._reset_s.get(command.job, -math.inf))
        elif command.kind == "latch":
            known = self._latched.get(command.job)
            if known is None or known[1].id == command.id or said_s > known[0]:
                self._latched[command.job] = (said_s, command)

    def over(self, job: str) -> CommandRecord | None:
        """The latch that holds in `job`; None if there is none."""
        for name in (job, EVERY_JOB):
            latched_s, command = self._latched.get(name, (-math.inf, None))
            resets_s = (self._reset_s.get(other, -math.inf) for other in (name, EVERY_JOB))
            if command is not None and latched_s > max(resets_s):
                return command
        return None

    def standing(self) -> list[CommandRecord]:
        """All that hold."""
        return [found for name in self._latched if (found := self.over(name)) is not None and found.job == name]
