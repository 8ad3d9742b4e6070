"""What is measured in the middle of a job, wherever its ranks are: at most one validation at a time.

It sees the job by its table, once at each of the service's looks; nothing here waits.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from typing import Final

from trainwarden.actions.launchers.restart_check.validating import Validating
from trainwarden.actions.launchers.torchrun.messages import CheckWord
from trainwarden.actions.launchers.torchrun.table import JobTable
from trainwarden.launching import MAX_SENTENCE_CHARS, Operation, Report, refused

CUT_SHORT: Final = "the launcher was ended before it was done"


class RanksOfTable:
    """The ranks, by the table."""

    def __init__(self) -> None:
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

    @property
    def lost(self) -> str | None:
        """Why they cannot be measured any more."""
        return None


class MeasuredInJob:
    """See the module."""

    here = True
    """Whether all ranks are on the service's machine."""

    def __init__(self, ranks: RanksOfTable, validating: Validating) -> None:
        self._of_table, self._validating = ranks, validating
        self._current: Operation | None = None
        self._ended: Report | None = None
        self._over = False

    def attach(self, table: JobTable) -> None:
        """Look at the job of `table`."""
        self._of_table.table, table.checks = table, self  # type: ignore[assignment] # each kind adds what is missing

    @property
    def measures(self) -> bool:
        """Whether ranks stand still for a measurement."""
        return self._validating.stage == "measures"

    @property
    def possible(self) -> bool:
        """Whether all ranks would stand still between two iterations if they were asked to."""
        return not self._of_table.failed and self._validating.possible

    def word(self, life: str) -> CheckWord | None:
        """What the agent `life` has to do for it."""
        return None

    def refusal(self, operation: Operation) -> Report | None:
        """Why the validation `operation` cannot be done."""
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
        table, current, was_over = self._of_table.table, self._current, self._over
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
