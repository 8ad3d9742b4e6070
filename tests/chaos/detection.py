"""Detection's place: an incident for each trouble, a while after it, with revisions, repeats and a clock of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from random import Random
from typing import Any, Final

import msgspec

from tests.chaos.bus import ChaosBus
from tests.chaos.grid import Grid
from tests.chaos.scheduled import ScheduledJob
from tests.chaos.slow_links import Pair, evidence
from trainwarden.errors import BusUnavailable
from trainwarden.records import IncidentKind, IncidentRecord, Suspect
from trainwarden.topics import INCIDENTS

AGAIN_S: Final = 20.0  # between two revisions of an incident that lasts
SEEN_S: Final = 3.0  # for so long a job has to train before its incident closes
Job = ScheduledJob | Grid
STOPPED: Final = frozenset({"crash", "hang", "user_error"})
REPEATED: Final = 0.1


class _Trouble(msgspec.Struct):
    """One incident, and what is true about it."""

    job: Job
    incident: IncidentRecord
    node: str
    opens_s: float
    ends_s: float  # of what ends by itself
    said: bool = False
    well_since_s: float | None = None
    slow: Pair | None = None


class Detection:
    """Tells of every trouble; pure but for its bus."""

    def __init__(self, bus: ChaosBus, random: Random, now_s: Callable[[], float], offset_s: float) -> None:
        self._bus, self._random, self._now_s, self._offset_s = bus, random, now_s, offset_s
        self._troubles: list[_Trouble] = []
        self._number = 0

    def open(self, job: Job, kind: IncidentKind, node: str, lasts_s: float = float("inf")) -> None:
        """`kind` has happened to `job` on `node`; it will be told a few seconds from now."""
        self._number += 1
        now_s = self._now_s()
        told_s = now_s + self._random.uniform(0.5, 5.0)
        at_s = told_s + self._offset_s
        fields: dict[str, Any] = {"opened_at_s": at_s, "updated_at_s": at_s, "onset_s": now_s + self._offset_s}
        suspect = Suspect(score=1.0, reason=kind, node=node, rank=0)
        incident = IncidentRecord(
            id=f"i{self._number}", job=job.name, kind=kind, severity="sev2", state="opened", revision=0,
            reason=f"{kind} on {node}", suspects=(suspect,), **fields,
        )  # fmt: skip
        self._troubles.append(_Trouble(job, incident, node, told_s, told_s + lasts_s))

    def open_slow_link(self, job: ScheduledJob, pair: Pair) -> None:
        """The link `pair` of `job` has become slow, and all steps with it."""
        self.open(job, "slow_link", min(pair))
        one = self._troubles[-1]
        one.slow, one.incident = pair, msgspec.structs.replace(one.incident, evidence=evidence(job.placed, pair))

    def about(self, job: Job, *kinds: str) -> bool:
        """Whether an incident of one of `kinds` is still open for `job`."""
        return any(one.job is job and one.incident.kind in kinds for one in self._troubles)

    def untold(self, node: str) -> bool:
        """Whether something has happened on `node` that was not told yet."""
        waits = self._bus.waits
        return any(one.node == node and (waits or not one.said) for one in self._troubles)

    def advance(self) -> None:
        """Open, tell again, close."""
        now_s = self._now_s()
        for one in list(self._troubles):
            if now_s < one.opens_s:
                continue
            if not one.said:
                one.said = True
                self._say(one.incident)
            elif self._over(one, now_s):
                self._troubles.remove(one)
                self._revise(one, state="closed", closed_at_s=now_s + self._offset_s)
            elif now_s + self._offset_s - one.incident.updated_at_s > AGAIN_S:
                self._revise(one, state="updated")
        with contextlib.suppress(BusUnavailable):  # it waits
            self._bus.flush()

    def _over(self, one: _Trouble, now_s: float) -> bool:
        if one.incident.kind in STOPPED:
            well = one.job.trains or one.job.phase == "ended"
        elif one.incident.kind == "gpu_lost":
            well = one.node not in one.job.sick or one.node in one.job.out
        elif one.slow is not None:
            well = one.job.slow != one.slow or not one.job.suffers  # type: ignore[union-attr]
        else:
            return now_s >= one.ends_s
        one.well_since_s = (one.well_since_s or now_s) if well else None
        return one.well_since_s is not None and now_s - one.well_since_s >= SEEN_S

    def _revise(self, one: _Trouble, **what: Any) -> None:
        before, now_s = one.incident, self._now_s() + self._offset_s
        one.incident = msgspec.structs.replace(before, revision=before.revision + 1, updated_at_s=now_s, **what)
        self._say(one.incident)
        if self._random.random() < REPEATED:
            self._say(before)  # delivered again, after what came later

    def _say(self, incident: IncidentRecord) -> None:
        self._bus.publish(INCIDENTS, incident.job, incident)
        if self._random.random() < REPEATED:
            self._bus.publish(INCIDENTS, incident.job, incident)
