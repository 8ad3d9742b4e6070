"""What is measured of a job whose ranks are all on this machine: while they stand still, and before they start again.

It sees the job by its table, once at each of the service's looks; nothing here waits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import psutil

from trainwarden import rundir
from trainwarden.actions.launchers.restart_check.here import CheckHere
from trainwarden.actions.launchers.restart_check.measuring import JobPlace, Measurement
from trainwarden.actions.launchers.restart_check.messages import Suspicions
from trainwarden.actions.launchers.restart_check.validating import Validating
from trainwarden.actions.launchers.torchrun.in_job import MeasuredInJob, RanksOfTable
from trainwarden.actions.launchers.torchrun.operations import STARTS
from trainwarden.actions.launchers.torchrun.table import GAVE_UP_CODE
from trainwarden.clock import Clock
from trainwarden.hook import Header, files_in
from trainwarden.launching import Operation, Report, refused
from trainwarden.torchrun.standing import LEAD_S, Progress, progress_of, put_pause


class _RanksHere(RanksOfTable):
    """The ranks, by the table and by their hooks."""

    lead_s = LEAD_S

    def __init__(self, place: JobPlace, clock: Clock, say: Callable[[str], None]) -> None:
        super().__init__()
        self._hooks = place.run_dir / rundir.HOOK
        self._pause = place.run_dir / rundir.PAUSE
        self._clock, self.say = clock, say
        self.world = place.ranks

    def files(self) -> Mapping[int, tuple[Path, Header]]:
        """The hook files of the ranks that run."""
        running = self.running
        found = {one[1].rank: one for one in files_in(self._hooks) if psutil.pid_exists(one[1].pid)}
        return {rank: one for rank, one in found.items() if rank in running}

    def stands(self) -> Mapping[int, int | None]:
        files = self.files()
        return {rank: files[rank][1].stands if rank in files else None for rank in self.running}

    def progress(self) -> Progress | None:
        return progress_of(self.files().values())

    def ask(self, before: int, for_s: float, step: int | None) -> int:
        number = before + 1  # none of these ranks has heard of it: they end with this service
        put_pause(self._pause, number, self._clock.now_s() + for_s, step, self.files().values())
        return number

    def go_on(self) -> None:
        self._pause.unlink(missing_ok=True)


class JobChecks(MeasuredInJob):
    """At most one measurement at a time.

    Parameters
    ----------
    suspicions : Suspicions, optional
        Who is to be measured before all ranks start again; None: nobody ever.
    say : callable
        Shows a person a sentence; called in the service's own thread.
    person_s : float, optional
        How long a job whose ranks have failed waits for a restart that somebody asks for; None: it starts by itself.
    clean : callable
        Has what the ranks of the last round have left behind ended; whether nothing is left.
    """

    def __init__(
        self, place: JobPlace, clock: Clock, suspicions: Suspicions | None, say: Callable[[str], None],
        clean: Callable[[], bool] = lambda: True, *, person_s: float | None = None,
    ) -> None:  # fmt: skip
        self.job, self._place, self._clean = place.job, place, clean
        self._clock, self._person_s = clock, person_s
        self._failed_s: float | None = None  # since when somebody is waited for
        self._ranks = _RanksHere(place, clock, say)
        super().__init__(self._ranks, Validating(place, self._ranks, clock))
        self._check = CheckHere(place.node, self._ranks, clock, lambda one: Measurement(place, one.checks), suspicions)
        self._announced = self._cleaned = 0  # rounds

    @property
    def pid(self) -> int | None:
        """The process that measures now."""
        return self._ranks.beside

    # --- between rounds ----------------------------------------------------------------------------------------------

    def announce(self, number: int) -> None:
        """Ask who is suspected, while the ranks of the round before `number` end; of a first round nobody is."""
        if number < 2 or self._waits_for_a_person(number):
            return
        if number != self._announced:
            self._announced = number
            self._check.begin(str(number))

    def is_open(self, number: int) -> bool:
        """Whether the round `number` may begin: nobody is measured, nothing is left, and who is suspected is known."""
        if self._current is not None:
            return False
        if self._cleaned != number:  # once: whoever cleans has patience with what does not end, each time anew
            if not self._clean():
                return False
            self._cleaned = number
        return number < 2 or (self._announced == number and self._check.advance(str(number)) is None)

    @property
    def failed(self) -> bool:
        """Whether the job is down until somebody asks for its restart."""
        return self._failed_s is not None

    def _waits_for_a_person(self, number: int) -> bool:
        table, now_s = self._ranks.table, self._clock.monotonic_s()
        asked = table is None or any(one.until == number and one.kind in STARTS for one in table.memory.kept)
        if self._person_s is None or asked:
            self._failed_s = None
            return False
        assert table is not None
        self._failed_s = now_s if self._failed_s is None else self._failed_s
        if now_s - self._failed_s >= self._person_s:
            table.end(GAVE_UP_CODE, f"{table.memory.reason}; nobody asked for a restart within {self._person_s:.0f} s")
        return True

    # --- in the middle of one ----------------------------------------------------------------------------------------

    def refusal(self, operation: Operation) -> Report | None:
        """Why the validation `operation` cannot be done."""
        wrong = [rank for rank in operation.targets.ranks or () if rank >= self._place.ranks]
        strangers = [f"node '{node[:80]}'" for node in operation.targets.nodes if node != self._place.node]
        strangers += [f"rank {rank}" for rank in wrong]
        if strangers:
            return refused(operation, "unknown_target", f"{strangers[0]} is none of this job's")
        return super().refusal(operation)

    def close(self) -> None:
        """End what is under way, and let the ranks go on. Safe twice."""
        super().close()
        self._check.cancel()
