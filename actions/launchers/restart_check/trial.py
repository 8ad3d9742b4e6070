"""One measurement of several nodes between two attempts: what the leader orders, and a node's part in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Final

import msgspec

from actions.launchers.leases.words import Epoch, Name
from actions.launchers.restart_check.bounded import Bounded
from actions.launchers.restart_check.words import Child
from trainwarden.clock import Clock
from trainwarden.launching import MAX_SENTENCE_CHARS, Check, Findings

MOST_ACCUSED: Final = 64  # that are told: sentences of 2000 characters, of which a report has to hold all
TrialId = tuple[Epoch, Annotated[int, msgspec.Meta(ge=1, le=2**53)]]


class Trial(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is to be measured by the nodes of `roster`, in the order of their ranks, while none of their ranks runs.

    Attributes
    ----------
    id : tuple of int
        The leader's epoch, and a number under it.
    master, port : str, int
        Where they meet: the first node's.
    nodes : tuple of str
        Whom it is about; all, if none is named.
    """

    id: TrialId
    roster: Annotated[tuple[Name, ...], msgspec.Meta(min_length=1, max_length=1024)]
    master: Name
    port: Annotated[int, msgspec.Meta(ge=1, le=65_535)]
    checks: tuple[Check, ...]
    nodes: Annotated[tuple[Name, ...], msgspec.Meta(max_length=1024)] = ()


class TrialSaid(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """That a node's part of the trial of that `id` has ended: with `findings`, or why without."""

    id: TrialId
    findings: Findings | None = None
    error: Annotated[str, msgspec.Meta(max_length=MAX_SENTENCE_CHARS)] = ""


class TrialPart:
    """A node's part: it measures what is ordered, each trial once, and stops where it is ordered no longer.

    Parameters
    ----------
    life : str
        This launcher's process.
    measure : callable
        Starts the measurement of a trial.

    Attributes
    ----------
    said : TrialSaid, optional
        The end of the newest one.
    """

    def __init__(self, life: str, measure: Callable[[Trial], Child], clock: Clock) -> None:
        self._life, self._measure, self._clock = life, measure, clock
        self._trial: Trial | None = None
        self._measurement: Bounded | None = None
        self.said: TrialSaid | None = None

    def follow(self, ordered: Trial | None, *, idle: bool) -> bool:
        """One step further with what is `ordered`, if no rank runs here (`idle`); whether it has just ended."""
        wanted = ordered if idle and ordered is not None and self._life in ordered.roster else None
        if self._trial is not None and (wanted is None or wanted.id != self._trial.id):
            self.close()
        if wanted is None or (self.said is not None and self.said.id == wanted.id):
            return False
        if self._measurement is None:
            self._trial, self._measurement = wanted, Bounded(lambda: self._measure(wanted), self._clock)
        outcome = self._measurement.advance()
        if outcome is None:
            return False
        self.close()
        found = outcome.findings
        if found is not None:
            found = msgspec.structs.replace(found, accused=found.accused[:MOST_ACCUSED])
        self.said = TrialSaid(id=wanted.id, findings=found, error=(outcome.error or "")[:MAX_SENTENCE_CHARS])
        return True

    def close(self) -> None:
        """End what is under way. Safe twice."""
        if self._measurement is not None:
            self._measurement.kill()
        self._trial, self._measurement = None, None
