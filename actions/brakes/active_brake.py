"""A brake that is on, and what brakes look at."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping

import msgspec

from trainwarden.launching import NodeState
from trainwarden.records import ActionRecord, CommandRecord


class ActiveBrake(msgspec.Struct, frozen=True):
    """A brake that is on: `name` for programs, `why` for people. Once it is off the action may go ahead.

    That is at `until_s`; None: nobody can say when. `latches` is the job, or `EVERY_JOB`, in which no node is taken out
    any more until a person resets that.

    Examples
    --------
    >>> ActiveBrake("budget", "12 actions within an hour", until_s=1795280400.0).summary
    '12 actions within an hour; it may go ahead from 2026-11-21 17:00:00 UTC'
    """

    name: str
    why: str
    until_s: float | None = None
    latches: str | None = None

    @property
    def summary(self) -> str:
        """One sentence: why, and from when the action may go ahead where that is known."""
        return self.why if self.until_s is None else f"{self.why}; it may go ahead from {utc(self.until_s)}"


class BrakeInput(msgspec.Struct, frozen=True, kw_only=True):
    """An action that is to be carried out, and what is known then.

    Attributes
    ----------
    actions : collection of ActionRecord
        Those of the job, and those that take nodes out of any, by all engines, each as it last was.
    said_s : mapping of str to float
        When the newest record of an action came to the bus, whose clock is one for all engines.
    stopped_by : str or None
        Who has stopped all acting on the job.
    silence, latch : CommandRecord or None
        A silence that lies over the incident; the latch of the job or of all jobs.
    nodes : tuple of NodeState
        The job's, as its launcher tells; empty where it does not.
    suspected : frozenset of str
        Nodes that open incidents of the job accuse of what a node is taken out for.
    """

    action: ActionRecord
    actions: Collection[ActionRecord] = ()
    said_s: Mapping[str, float] = {}
    stopped_by: str | None = None
    silence: CommandRecord | None = None
    latch: CommandRecord | None = None
    nodes: tuple[NodeState, ...] = ()
    suspected: frozenset[str] = frozenset()


def utc(time_s: float) -> str:
    """A moment as people read it."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(time_s))
