"""What is measured of a job whose ranks are all on this machine: while they stand still, and before they start again.

It sees the job by its table, once at each of the service's looks; nothing here waits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil

from trainwarden import rundir
from trainwarden.actions.launchers.restart_check.here import CheckHere
from trainwarden.actions.launchers.restart_check.measuring import JobPlace, Measurement
from trainwarden.actions.launchers.restart_check.messages import Suspicions
from trainwarden.actions.launchers.restart_check.validating import Validating
from trainwarden.actions.launchers.torchrun.operations import STARTS
from trainwarden.actions.launchers.torchrun.table import GAVE_UP_CODE, JobTable
from trainwarden.clock import Clock
from trainwarden.hook import Header, files_in
from trainwarden.launching import MAX_SENTENCE_CHARS, Operation, Report, refused
from trainwarden.torchrun.standing import Progress, progress_of, put_pause

CUT_SHORT: Final = "the launcher was ended before it was done"


class _RanksHere:
    """The ranks, by the table and by their hooks."""

    def __init__(self, run_dir: Path, say: Callable[[str], None]) -> None:
        self._hooks, self.say = run_dir / rundir.HOOK, say
        self.table: JobTable | None = None
        self.beside: int | None = None

    @property
    def running(self) -> Collection[int]:
        if self.table is None:
            return ()
        now = self.table.memory.round
        return {rank for one in self.table.seated.values() if one.beat.at == now for rank in one.beat.alive}

    @property
    def failed(self) -> bool:
        """Whether another round is wanted."""
        return self.table is not None and self.table.memory.target != self.table.memory.round

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

    def ask(self, path: Path, number: int, until_s: float, step: int | None) -> None:
        put_pause(path, number, until_s, step, self.files().values())


class JobChecks:
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
        self._ranks = _RanksHere(place.run_dir, say)
        self._validating = Validating(place, self._ranks, clock)
        self._check = CheckHere(place.node, self._ranks, clock, lambda one: Measurement(place, one.checks), suspicions)
        self._announced = self._cleaned = 0  # rounds
        self._current: Operation | None = None
        self._ended: Report | None = None
        self._over = False

    def attach(self, table: JobTable) -> None:
        """Look at the job of `table`, and keep its rounds from beginning too early."""
        self._ranks.table, table.checks = table, self

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

    @property
    def measures(self) -> bool:
        """Whether ranks stand still for a measurement."""
        return self._validating.stage == "measures"

    @property
    def possible(self) -> bool:
        """Whether all ranks would stand still between two iterations if they were asked to."""
        return not self._ranks.failed and self._validating.possible

    def refusal(self, operation: Operation) -> Report | None:
        """Why the validation `operation` cannot be done."""
        wrong = [rank for rank in operation.targets.ranks or () if rank >= self._place.ranks]
        strangers = [f"node '{node[:80]}'" for node in operation.targets.nodes if node != self._place.node]
        strangers += [f"rank {rank}" for rank in wrong]
        if strangers:
            return refused(operation, "unknown_target", f"{strangers[0]} is none of this job's")
        if self._current is not None:
            return refused(operation, "unfit", "the job is being measured already")
        if not self.possible:
            return refused(operation, "unfit", "its ranks cannot be held between two steps; before a restart it can be")
        return None

    def begin(self, operation: Operation) -> None:
        """Have the ranks measured, while they stand still."""
        self._current = operation
        self._validating.begin(operation)

    def report(self, ident: str) -> Report:
        """How far that validation is; one that nobody here has begun has failed."""
        if self._current is not None and self._current.id == ident:
            return Report(operation=ident, state="running", text=self._validating.stage)
        if self._ended is not None and self._ended.operation == ident:
            return self._ended
        return Report(operation=ident, state="failed", text=CUT_SHORT)

    def advance(self) -> None:
        """Go on with what is under way; of a job that is over nothing is measured."""
        table, current, was_over = self._ranks.table, self._current, self._over
        self._over = table is None or table.memory.over is not None
        if self._over:
            if not was_over:
                self.close()
            return
        if current is not None and (outcome := self._validating.advance()) is not None:
            self._current = None
            if outcome.error is None:
                self._ended = Report(operation=current.id, state="done", findings=outcome.findings)
            else:
                self._ended = Report(operation=current.id, state="failed", text=outcome.error[:MAX_SENTENCE_CHARS])

    def close(self) -> None:
        """End what is under way, and let the ranks go on. Safe twice."""
        self._current = None  # of it `report` says that it was cut short
        with suppress(OSError):
            self._validating.cancel()
        self._check.cancel()
