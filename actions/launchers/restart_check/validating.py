"""A validation in the middle of a job: the ranks stand still, what is measured is alone, and all go on.

Nothing here waits: `advance` is called ten times a second.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, Literal, Protocol

from trainwarden.actions.launchers.restart_check.bounded import LIMIT_S, START_S
from trainwarden.actions.launchers.restart_check.measuring import JobPlace, Measurement
from trainwarden.actions.launchers.restart_check.messages import Child, Outcome
from trainwarden.clock import Clock
from trainwarden.launching import CHECKS, Check, Operation
from trainwarden.torchrun.standing import Progress, step_ahead

log = logging.getLogger("trainwarden.rendezvous")

STAND_S: Final = 60.0  # the ranks agree on a pause a step ahead: two steps of half a minute
MOST_STAND_S: Final = 600.0  # where steps take longer than that
TOGETHER_S: Final = 10.0  # from the first rank that stands still to the last; more steps than one on a slow job
STEPS_TOGETHER: Final = 3
SPARE_S: Final = 30.0  # a pause that is never taken back ends by itself, so much later


class Ranks(Protocol):
    """The ranks of the job; `beside` is the process that measures. `lead_s` is how long they need to hear of a step."""

    beside: int | None
    lead_s: float

    @property
    def world(self) -> int: ...
    @property
    def failed(self) -> bool: ...
    @property
    def lost(self) -> str | None:
        """Why they cannot be measured any more, by what only their agents know."""
        ...

    @property
    def running(self) -> Collection[int]: ...
    def stands(self) -> Mapping[int, int | None]: ...
    def progress(self) -> Progress | None: ...
    def ask(self, before: int, for_s: float, step: int | None) -> int:
        """Ask them to stand still, for so long at most; the number of that request, which is none of those `before`."""
        ...

    def go_on(self) -> None: ...


class Validating:
    """At most one validation at a time: its process comes first, then the ranks stand still, then it measures.

    Parameters
    ----------
    measure : callable
        Starts the measurement of a place.

    Attributes
    ----------
    stage : str
        What it does, for people.
    """

    def __init__(
        self,
        place: JobPlace,
        runner: Ranks,
        clock: Clock,
        measure: Callable[[JobPlace, Sequence[Check]], Child] = Measurement,
    ) -> None:
        self._place, self._runner, self._clock, self._measure = place, runner, clock, measure
        self._number = 0
        self._step: int | None = None  # the last that is finished before the ranks stand still, if one was agreed on
        self._pace_s = self._stand_s = self._until_s = 0.0
        self._together = False  # some ranks stand still after that step
        self._child: Child | None = None
        self._error: str | None = None
        self.stage: Literal["", "starts", "waits for the ranks", "measures"] = ""
        self._go_on()

    @property
    def possible(self) -> bool:
        """Whether all ranks would stand still between two iterations if they were asked to."""
        stands = self._runner.stands()
        return len(stands) == self._runner.world and None not in stands.values()

    def begin(self, operation: Operation) -> None:
        """Start its process, while the ranks go on."""
        self.stage, self._error, self._until_s = "starts", None, self._clock.monotonic_s() + START_S
        try:
            self._child = self._measure(self._place, operation.plan.checks or CHECKS)
        except OSError as error:  # no memory or process slot
            self._error = f"the validation could not be started ({error.strerror})"
        else:
            self._runner.beside = self._child.pid

    def advance(self) -> Outcome | None:
        """One step further; the end once there is one, with the ranks let go."""
        outcome = self._outcome()
        if outcome is not None:
            self.cancel()
        return outcome

    def cancel(self) -> None:
        """End what is under way, and let the ranks go on. Safe twice."""
        if self._child is not None:
            self._child.kill()
        self._child, self._runner.beside, self.stage = None, None, ""
        self._go_on()

    def _outcome(self) -> Outcome | None:
        child, now_s = self._child, self._clock.monotonic_s()
        if self._error is not None or child is None:
            return Outcome(None, self._error)
        if not self._runner.running and not self._runner.failed:
            return Outcome(None, "the job ended before it was validated")
        if self._runner.failed and self.stage != "measures":
            return Outcome(None, "the job failed before it was validated")  # its restart must not wait for this
        if (lost := self._runner.lost) is not None:
            return Outcome(None, lost)
        missing = self._missing()
        if self.stage == "measures" and missing:
            return Outcome(None, f"rank {missing[0]} went on before all was measured")
        if child.ended:
            return child.outcome()
        if now_s >= self._until_s:
            return Outcome(None, self._too_late(missing))
        if self.stage == "starts" and child.ready:
            self.stage = "waits for the ranks"
            self._gather()
            self._until_s = now_s + self._stand_s
        elif self.stage == "waits for the ranks" and not missing:
            self.stage, self._until_s = "measures", now_s + LIMIT_S
            child.begin()
        elif self.stage == "waits for the ranks" and self._step is not None:
            return self._watch_step(self._step, len(missing), now_s)
        return None

    def _watch_step(self, step: int, missing: int, now_s: float) -> Outcome | None:
        """Give up as soon as ranks cannot all stand still after `step`: those that do keep the others waiting."""
        now = self._runner.progress()
        if now is not None and now.most > step + now.stride:
            return Outcome(None, f"a rank went past step {step}, after which all were to stand still")
        if missing < len(self._runner.running):
            if not self._together:
                self._until_s = now_s + max(TOGETHER_S, STEPS_TOGETHER * self._pace_s)
            self._together = True
        return None

    def _missing(self) -> list[int]:
        """Ranks that run and do not stand still for this validation."""
        stands = self._runner.stands()
        return [rank for rank in self._runner.running if stands.get(rank) != self._number]

    def _too_late(self, missing: Sequence[int]) -> str:
        if self.stage == "starts":
            return f"the validation was not ready within {START_S:.0f} s"
        if self.stage == "measures":
            return f"it was not measured within {LIMIT_S:.0f} s"
        within = "with the others" if self._together else f"within {self._stand_s:.0f} s"
        return f"{len(missing)} of {self._runner.world} ranks did not stand still {within}"

    def _gather(self) -> None:
        """Ask the ranks to stand still."""
        now = self._runner.progress()
        self._step, self._together = None if now is None else step_ahead(now, self._runner.lead_s), False
        self._stand_s, self._pace_s = STAND_S, 0.0
        if now is not None and self._step is not None:
            self._pace_s = now.pace_s
            away_s = now.pace_s * ((self._step - now.least) / now.stride + 1)
            self._stand_s = min(max(STAND_S, 2 * away_s), MOST_STAND_S)
        try:
            self._number = self._runner.ask(self._number, self._stand_s + LIMIT_S + SPARE_S, self._step)
        except OSError as error:
            self._error = f"the ranks could not be asked to stand still ({error.strerror})"

    def _go_on(self) -> None:
        try:
            self._runner.go_on()
        except OSError as error:
            log.error("ranks are not let go before their pause ends", extra={"fields": {"error": str(error)}})
