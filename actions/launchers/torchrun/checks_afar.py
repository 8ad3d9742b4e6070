"""What is measured of a job by its agents, each on its own node, while the ranks of all stand still after one step.

Each word of the service says what an agent has to do. Where a word says nothing of it, or none comes, its ranks go on:
so the job goes on though no agent can be reached.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from trainwarden.actions.launchers.restart_check.measuring import JobPlace, outcome_of
from trainwarden.actions.launchers.restart_check.messages import Outcome
from trainwarden.actions.launchers.restart_check.validating import Validating
from trainwarden.actions.launchers.torchrun.in_job import MeasuredInJob, RanksOfTable
from trainwarden.actions.launchers.torchrun.members import Member
from trainwarden.actions.launchers.torchrun.messages import CheckBeat, CheckWord
from trainwarden.clock import Clock
from trainwarden.launching import Check, Operation, Report, refused
from trainwarden.torchrun.standing import Progress, joined

LEAD_S: Final = 3.0  # agents look twice a second at how far ranks are; a beat, a tick and a word come after that


class _Part:
    """One validation: what all agents are told, and what they say of it."""

    def __init__(self, ranks: _RanksAfar, number: int, checks: tuple[Check, ...]) -> None:
        self._ranks, self.number, self._checks = ranks, number, checks
        self.pid = 0  # none of this machine
        self.stand: tuple[float, int | None] | None = None
        self._measures = False

    def word(self, life: str) -> CheckWord | None:
        """What the agent `life` has to do."""
        members = self._ranks.members()
        place = next((number for number, one in enumerate(members) if one.life == life), None)
        if place is None:
            return None
        first = self._said(members[0])
        for_s, step = self.stand or (None, None)
        return CheckWord(
            number=self.number, place=place, nodes=len(members), checks=self._checks, host=members[0].host,
            port=0 if first is None else first.port, for_s=for_s, step=step, measures=self._measures,
        )  # fmt: skip

    def _said(self, member: Member) -> CheckBeat | None:
        said = member.beat.check
        return said if said is not None and said.number == self.number else None

    @property
    def _error(self) -> str | None:
        said = [(one.node, self._said(one)) for one in self._ranks.members()]
        return next((f"{node}: {one.error}" for node, one in said if one is not None and one.error is not None), None)

    @property
    def _result(self) -> str | None:
        members = self._ranks.members()
        first = self._said(members[0]) if members else None
        return None if first is None else first.result

    @property
    def ended(self) -> bool:
        return (self._error or self._result) is not None

    @property
    def ready(self) -> bool:
        said = [self._said(one) for one in self._ranks.members()]
        return bool(said) and all(one is not None and one.ready for one in said)

    def begin(self) -> None:
        self._measures = True

    def kill(self) -> None:
        self._ranks.part = None

    def outcome(self) -> Outcome:
        if (result := self._result) is not None:
            return outcome_of(result.encode())
        return Outcome(None, self._error)


class _RanksAfar(RanksOfTable):
    """The ranks, by what their agents say."""

    lead_s = LEAD_S

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock
        self.part: _Part | None = None

    @property
    def world(self) -> int:
        return 0 if self.table is None else self.table.memory.world

    @property
    def lost(self) -> str | None:
        """See `RanksOfTable.lost`."""
        if self.failed:
            return "the job failed, or another round was wanted, before all was measured"
        lost = next((node for node, member in self.seats() if member is None), None)
        return None if lost is None else f"nothing is heard of {lost}"

    def seats(self) -> list[tuple[str, Member | None]]:
        """The nodes of the round, with their agents, None for one that is lost."""
        if self.table is None:
            return []
        now_s, table = self._clock.monotonic_s(), self.table
        absent = table.members.absence
        return [
            (seat.node, None if absent(seat.life, now_s) is not None else table.members.get(seat.life))
            for seat in table.memory.roster
        ]

    def members(self) -> list[Member]:
        """The agents of the round in the order of their nodes; none while one of them is lost."""
        found = [member for _, member in self.seats()]
        return [one for one in found if one is not None] if None not in found else []

    def stands(self) -> Mapping[int, int | None]:
        found: dict[int, int | None] = {}
        for one in self.members():
            said = one.beat.check
            number = self.part.number if self.part is not None else 0
            standing = said.stands if said is not None and said.number == number else ()
            found |= {rank: (number if rank in standing else 0) if one.beat.holds else None for rank in one.beat.alive}
        return found

    def progress(self) -> Progress | None:
        checks = [one.beat.check for one in self.members()]
        said = [one.progress for one in checks if one is not None and one.progress is not None]
        return joined([Progress(*msgspec.structs.astuple(one)) for one in said]) if len(said) == len(checks) else None

    def ask(self, before: int, for_s: float, step: int | None) -> int:
        assert self.part is not None
        self.part.stand = (for_s, step)
        return self.part.number

    def go_on(self) -> None:
        self.part = None


class ChecksAfar(MeasuredInJob):
    """See the module. Between rounds nothing is measured."""

    here = False
    failed = False

    def __init__(self, clock: Clock) -> None:
        self._ranks = _RanksAfar(clock)
        super().__init__(self._ranks, Validating(JobPlace.nowhere(), self._ranks, clock, self._measure))

    def word(self, life: str) -> CheckWord | None:
        """See `MeasuredInJob.word`."""
        return None if self._ranks.part is None else self._ranks.part.word(life)

    def announce(self, number: int) -> None:
        """Nothing is measured before that round."""

    def is_open(self, number: int) -> bool:
        """A round waits for no measurement."""
        return True

    def refusal(self, operation: Operation) -> Report | None:
        """See `MeasuredInJob.refusal`."""
        nodes = {node for node, _ in self._ranks.seats()}
        strangers = [f"node '{node[:80]}'" for node in operation.targets.nodes if node not in nodes]
        strangers += [f"rank {rank}" for rank in operation.targets.ranks or () if rank >= self._ranks.world]
        if strangers:
            return refused(operation, "unknown_target", f"{strangers[0]} is none of this job's")
        return super().refusal(operation)

    def _measure(self, place: JobPlace, checks: object) -> _Part:
        table = self._ranks.table
        assert table is not None
        # Rises with each operation, also over services: so no rank has heard of it.
        self._ranks.part = _Part(self._ranks, table.memory.generation + 1, tuple(checks))  # type: ignore[arg-type]
        return self._ranks.part
