"""Verdicts of one cause joined into one incident: opened, updated on change, closed on relief. One per problem.

Identities are deterministic: a detection service that reads the log again finds its incidents and opens none twice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Final

import msgspec
import numpy as np

from trainwarden.detectors.job.window import Window
from trainwarden.detectors.protocol import SURVIVED
from trainwarden.detectors.verdict.causes import evidenced
from trainwarden.detectors.verdict.ensemble import Candidate, family_of, versions_used
from trainwarden.detectors.verdict.revisions import (
    DEVICE_KINDS,
    apart,
    began_together,
    better,
    covers,
    echoes,
    explains,
    is_ended_leak,
    moved,
    overlap,
    roots,
    same,
)
from trainwarden.detectors.verdict.rule import EnsembleConfig
from trainwarden.records import IncidentRecord, Vote

SLOW_BEFORE_HANG_S: Final = 60.0  # slow steps this shortly before a standstill of the same rank belong to it
STORM_BEFORE_FAILURE_S: Final = 10.0
PROGRESS_STEPS: Final = 3  # steps that show that a failed job is running again
LATE_S: Final = 10.0  # what is told later than this says so
EVIDENCE_EVERY_S: Final = 2.0
ENDING: Final = frozenset({"exit", "ended"})  # phases in which ranks end one after the other: nothing to plan for
KEEP_CLOSED: Final = 200
JOB_ENDED: Final = "the job has ended"
ALL_GONE: Final = "all ranks have ended"
UNDATED_S: Final = 60.0  # slowness that says of no time and is not seen for longer has ended
GONE_S: Final = 7.0  # so long are new processes waited for; with what waits for them, a status after 10 s says so


@dataclass(slots=True)
class OpenIncident:
    record: IncidentRecord
    supported_s: float
    published: bool
    hard: bool
    evidence_s: float = 0.0
    life: int = -1  # of the job, whose facts it rests on


class IncidentTracker:
    """The incidents of one job.

    Parameters
    ----------
    config : EnsembleConfig
        `close_after_s` is the relief that closes an incident.
    """

    def __init__(self, job: str, config: EnsembleConfig) -> None:
        self._job = job
        self._config = config
        self._open: dict[str, OpenIncident] = {}
        self._closed: list[IncidentRecord] = []
        self._ended: list[IncidentRecord] = []  # closed while reading again: the bus does not know
        self._gone_since_s: float | None = None
        # Slowness that says of no time: when it was seen first, and last.
        self._undated: dict[tuple[str, tuple[int | None, ...]], tuple[float, float]] = {}

    def resume(self, record: IncidentRecord) -> None:
        """Take over the newest revision of an incident that was published before."""
        known = self._open.get(record.id)
        if any(one.id == record.id and one.revision >= record.revision for one in self._closed):
            return  # the bus does not know yet
        if not record.wants_action:
            self._open.pop(record.id, None)
            self._closed = [*self._closed[-KEEP_CLOSED:], record]
        elif known is None:
            held = record.id.startswith("pipeline/") and not record.id.startswith(f"pipeline/{self._job}/job/")
            supported_s = inf if held else record.updated_at_s  # a detector stays set aside, see `hold`
            self._open[record.id] = OpenIncident(record, supported_s, published=True, hard=False)
        elif record.revision > known.record.revision:
            known.record, known.published = record, True

    def hold(self, record: IncidentRecord) -> None:
        """Take over an incident that was published just now and lasts until the job is over."""
        self._open[record.id] = OpenIncident(record, inf, published=True, hard=False)

    def tells(self, record: IncidentRecord) -> bool:
        """Whether an open incident is of the same defect as `record`; their ids end with the time."""
        return any("/" in one and one.rpartition("/")[0] == record.id.rpartition("/")[0] for one in self._open)

    def told_late(self, record: IncidentRecord, late_s: float) -> IncidentRecord:
        """`record` if it is no news any more, else with how late its opening is told."""
        if record.state != "opened" or late_s < LATE_S:
            return record
        record = msgspec.structs.replace(record, told_late_s=round(late_s, 1))
        if record.id in self._open:
            self._open[record.id].record = record
        return record

    @property
    def open(self) -> list[IncidentRecord]:
        """What is open now, or unresolved."""
        return [entry.record for entry in self._open.values()]

    @property
    def published(self) -> list[IncidentRecord]:
        """What is on the bus: all that is open, and what closed lately."""
        return [*self._closed, *(entry.record for entry in self._open.values() if entry.published)]

    def join(
        self, found: list[Candidate], votes: Mapping[str, Vote], window: Window, *, live: bool = True, ends: bool = True
    ) -> list[IncidentRecord]:
        """New revisions that follow from one window; without `ends` those are left to a call of `relieved`.

        Not `live`, while an already handled part of the log is read again, nothing is returned: what has no counterpart
        on the bus is told by the first live window that still supports it.
        """
        out: list[IncidentRecord] = []
        for candidate in found:
            if not any(explains(record, candidate) for record in (*self.open, *self._closed)):
                out.extend(self._apply(candidate, votes, window, live))
        return out + (self.relieved(window, live=live) if ends else [])

    def unpublished(self) -> list[IncidentRecord]:
        """What reading again has found and nobody has been told: ends, and facts. It counts as told from now on."""
        out, self._ended = self._ended, []
        for entry in self._open.values():
            if not entry.published and entry.hard:
                entry.published = True
                out.append(entry.record)
        return out

    # -- joining ---------------------------------------------------------------------------------------------

    def _apply(
        self, candidate: Candidate, votes: Mapping[str, Vote], window: Window, live: bool
    ) -> list[IncidentRecord]:
        if candidate.family == "failure" and self._gone_since_s is not None:
            self._gone_since_s = max(self._gone_since_s, candidate.onset_s or 0.0)  # its process was there till then
        known = self._of_family(candidate, window)
        if known is not None and _fails_anew(known, candidate, window):
            ended = self._close(known.record.id, window.now_s, ALL_GONE)
            return [*([ended] if live and known.published else ()), *self._apply(candidate, votes, window, live)]
        if known is None:
            candidate = self._timed(candidate, window.now_s)
            known = self._of_others(candidate, window)
        if known is not None:
            known.supported_s = window.now_s
            return self._revise(known, candidate, votes, window, live)
        if self._explained(candidate, window):
            return []
        record = self._opened(candidate, votes, window)
        if record.id in self._open or any(closed.id == record.id for closed in self._closed):
            return []
        self._open[record.id] = OpenIncident(record, window.now_s, live, candidate.hard, window.now_s, window.restarts)
        return [record] if live else []

    def _timed(self, candidate: Candidate, now_s: float) -> Candidate:
        """`candidate` since it was seen first, where it says of no time and is what came of an open incident."""
        if candidate.onset_s is not None or candidate.family != "slow":
            return candidate
        seen = {key: at for key, at in self._undated.items() if now_s - at[1] <= UNDATED_S}
        key = (candidate.kind, tuple(one.rank for one in candidate.suspects))
        since_s, _ = seen.get(key, (now_s, now_s))
        self._undated = {**seen, key: (since_s, now_s)}
        timed = replace(candidate, onset_s=since_s)
        return timed if any(echoes(timed, record) for record in self.open) else candidate

    def _not_apart(self, candidate: Candidate) -> list[OpenIncident]:
        return [entry for entry in self._open.values() if not apart(candidate, entry.record)]

    def _of_family(self, candidate: Candidate, window: Window) -> OpenIncident | None:
        """The open incident of the same family and cause."""
        for entry in self._not_apart(candidate):
            if family_of(entry.record.kind) == candidate.family and same(candidate, entry.record, window.now_s):
                return entry
        return None

    def _of_others(self, candidate: Candidate, window: Window) -> OpenIncident | None:
        """The open incident of the same cause of which `candidate` is another face, or the root."""
        for entry in self._not_apart(candidate):
            if _echoes(candidate, entry.record, window) or roots(candidate, entry.record):
                return entry
            if self._grown_out_of(candidate, entry.record, window):
                return entry
        return None

    def _grown_out_of(self, candidate: Candidate, record: IncidentRecord, window: Window) -> bool:
        """True if `candidate` is a later face of an incident of another family."""
        onset_s = candidate.onset_s if candidate.onset_s is not None else window.now_s
        before_s = onset_s - (record.onset_s if record.onset_s is not None else record.opened_at_s)
        family = family_of(record.kind)
        if candidate.family == "failure":
            if family == "slow":
                named = not record.suspects or overlap(candidate.suspects, record.suspects, ("rank",))
                return named and onset_s - record.opened_at_s <= SLOW_BEFORE_HANG_S
            if family == "log_storm":
                return before_s <= STORM_BEFORE_FAILURE_S
            near = record.kind == "node_lost" or overlap(candidate.suspects, record.suspects, ("node",))
            return near and began_together(candidate, record, window.now_s)
        near = family == "failure" and overlap(candidate.suspects, record.suspects, ("node",))
        near = near or covers(candidate, record)
        return near and candidate.hard and began_together(candidate, record, window.now_s)

    def _explained(self, candidate: Candidate, window: Window) -> bool:
        """True if another incident explains it, or it is an echo of one that is closed."""
        failures = [entry.record for entry in self._open.values() if family_of(entry.record.kind) == "failure"]
        if failures and candidate.family in {"slow", "log_storm"}:
            return True
        onset_s = candidate.onset_s if candidate.onset_s is not None else window.now_s
        for closed in self._closed:
            if apart(candidate, closed):
                continue
            if _echoes(candidate, closed, window):
                return True
            if family_of(closed.kind) != candidate.family or closed.closed_at_s is None:
                continue
            gone = closed.evidence.get("closed") in (ALL_GONE, JOB_ENDED) and not window.live.any()
            still = candidate.family == "failure" or (gone and same(candidate, closed, window.now_s))
            if still and onset_s <= closed.closed_at_s:
                return True
            began_s = closed.onset_s if closed.onset_s is not None else closed.opened_at_s
            if began_s - 2.0 <= onset_s <= began_s + 2.0 and same(candidate, closed, closed.opened_at_s):
                return True
        return False

    # -- revisions -------------------------------------------------------------------------------------------

    def _opened(self, candidate: Candidate, votes: Mapping[str, Vote], window: Window) -> IncidentRecord:
        onset_s = candidate.onset_s if candidate.onset_s is not None else window.now_s
        at_step = candidate.at_step
        if at_step is None and len(window.steps):
            at_step = int(window.steps[-1])
        opened = IncidentRecord(
            id=incident_id(self._job, candidate, onset_s),
            job=self._job,
            kind=candidate.kind,
            severity=candidate.severity,
            state="opened",
            revision=1,
            opened_at_s=window.now_s,
            updated_at_s=window.now_s,
            reason=candidate.reason,
            onset_s=onset_s,
            onset_step=candidate.onset_step,
            opened_step=at_step,
            suspects=candidate.suspects,
            metrics=candidate.metrics,
            votes=_scores(votes),
            model_versions=versions_used(votes, window),
            attempt=window.attempt,
            evidence=dict(candidate.evidence),
        )
        return evidenced(opened, window)

    def _revise(
        self, entry: OpenIncident, candidate: Candidate, votes: Mapping[str, Vote], window: Window, live: bool
    ) -> list[IncidentRecord]:
        record = entry.record
        known = entry.hard and entry.life == window.restarts  # a new life may fail of something else
        changed = better(record, candidate, known)
        survived = candidate.evidence.get(SURVIVED)
        if changed is None and survived is not None and survived != record.evidence.get(SURVIVED):
            changed = msgspec.structs.replace(record, evidence={**record.evidence, **candidate.evidence})
        if changed is None and candidate.hard and entry.hard and not known:
            changed = record  # who acts on it must know that it is to blame for this failure too
        if candidate.hard:
            entry.hard, entry.life = True, window.restarts
        worth_telling = changed is not None
        due = window.phase not in ENDING and window.now_s - entry.evidence_s >= EVIDENCE_EVERY_S
        if changed is None and due:
            entry.evidence_s, now = window.now_s, evidenced(record, window)
            if moved(record.evidence, now.evidence) or now.reason != record.reason:
                changed, worth_telling = now, True
        if changed is None and _goes_on(record, candidate, window):
            changed, worth_telling = record, True
        if changed is not None:
            changed = evidenced(changed, window)
            entry.evidence_s = window.now_s
            if changed.state == "closed" and window.live.any():
                changed = _reopened(changed)
            if changed.state != "closed":
                changed = msgspec.structs.replace(changed, state="updated" if entry.published else "opened")
            entry.record = msgspec.structs.replace(
                changed, revision=record.revision + 1, updated_at_s=window.now_s, votes=_scores(votes)
            )
        if not live or (entry.published and not worth_telling):
            return []
        entry.published = True
        return [entry.record]

    def relieved(self, window: Window, *, live: bool = True) -> list[IncidentRecord]:
        """Ends of what nothing supports any more, once all that a window shows has been joined."""
        out: list[IncidentRecord] = []
        gone = self._all_gone(window)
        for key, entry in list(self._open.items()):
            left = gone and (bool(window.ended_cleanly.all()) or not _acted_on(entry.record))
            down = gone and not left
            if down and entry.published and entry.record.state != "closed":
                entry.record = _ended(entry.record, window.now_s, ALL_GONE, unresolved=True)
                (out if live else self._ended).append(entry.record)
            if down or (entry.record.unresolved and not window.live.any()):
                entry.supported_s = max(entry.supported_s, window.now_s)  # nobody can see it pass
            quiet_s = window.now_s - entry.supported_s
            over = quiet_s >= self._config.close_after_s
            if left:
                over = True
            elif window.finished:
                over = over or window.now_s - window.end_s > self._config.close_after_s
            elif entry.record.unresolved or family_of(entry.record.kind) == "failure":
                faded = not len(window.steps) and quiet_s >= self._config.fade_s
                over = over and (faded or _progress(window, entry.record))
            if not over:
                continue
            closed = self._close(key, window.now_s, JOB_ENDED if window.finished else ALL_GONE if left else "")
            if entry.published:
                (out if live else self._ended).append(closed)
        return out

    def _all_gone(self, window: Window) -> bool:
        """True once all ranks have been gone for `GONE_S` and no launcher starts them again."""
        if window.live.any() or not len(window.ranks) or window.finished or window.phase == "restart":
            self._gone_since_s = None
        elif self._gone_since_s is None:
            self._gone_since_s = window.now_s
        return self._gone_since_s is not None and window.now_s - self._gone_since_s >= GONE_S

    def end(self, now_s: float) -> list[IncidentRecord]:
        """Close everything: nobody will hear of the job any more."""
        published = [key for key, entry in self._open.items() if entry.published]
        return [self._close(key, now_s, "the job is not heard of any more") for key in published]

    def _close(self, key: str, now_s: float, why: str) -> IncidentRecord:
        """Close an incident; `why` is empty where its signs are gone."""
        record = self._open.pop(key).record
        closed = _ended(_reopened(record) if not why else record, now_s, why, unresolved=False)
        self._closed = [*self._closed[-KEEP_CLOSED:], closed]
        return closed


def _ended(record: IncidentRecord, now_s: float, why: str, *, unresolved: bool) -> IncidentRecord:
    """`record` closed; what is closed already keeps when it was, and why."""
    evidence = {**record.evidence, "closed": record.evidence.get("closed", why)} if why else record.evidence
    return msgspec.structs.replace(
        record, state="closed", revision=record.revision + 1, updated_at_s=now_s, evidence=evidence,
        closed_at_s=now_s if record.closed_at_s is None else record.closed_at_s, unresolved=unresolved,
    )  # fmt: skip


def _reopened(record: IncidentRecord) -> IncidentRecord:
    """`record` of a job that was started again, as it was before all its ranks had ended."""
    evidence = {name: value for name, value in record.evidence.items() if name != "closed"}
    return msgspec.structs.replace(record, state="updated", closed_at_s=None, unresolved=False, evidence=evidence)


def _goes_on(record: IncidentRecord, candidate: Candidate, window: Window) -> bool:
    """True if the ranks of `record`, which is unresolved, run again and have its fault still; processes fail anew."""
    if record.closed_at_s is None or not window.live.any():
        return False
    return candidate.family != "failure" or candidate.onset_s is None or candidate.onset_s > record.closed_at_s


def _fails_anew(entry: OpenIncident, candidate: Candidate, window: Window) -> bool:
    """True if all ranks had ended by `entry`, and one that was started since has failed and left none alive."""
    closed_s, onset_s = entry.record.closed_at_s, candidate.onset_s
    later = closed_s is not None and onset_s is not None and onset_s > closed_s and not window.live.any()
    return later and entry.record.unresolved and candidate.family == "failure"


def _acted_on(record: IncidentRecord) -> bool:
    """True if an engine may be at work on what has ended the ranks: a launcher may start them on other nodes."""
    mere = record.kind == "host_contention" or (record.kind == "memory_leak" and not is_ended_leak(record))
    return not mere and (family_of(record.kind) == "failure" or record.kind in DEVICE_KINDS)


def incident_id(job: str, candidate: Candidate, onset_s: float) -> str:
    """Identity of the incident that `candidate` opens: job, family, first suspect, onset to a tenth of a second."""
    first = candidate.suspects[0] if candidate.suspects else None
    who = (first.rank, first.node, first.device) if first else None
    return hashlib.sha256(f"{job}/{candidate.family}/{who}/{onset_s:.1f}".encode()).hexdigest()[:16]


def _echoes(candidate: Candidate, record: IncidentRecord, window: Window) -> bool:
    """Whether `candidate` is an echo of `record`: a hang only if no step was made since that was opened.

    A leaking rank makes steps until its memory has run out.
    """
    if record.kind == "memory_leak":
        return record.wants_action and echoes(candidate, record)
    if candidate.family == "slow":
        return record.state != "closed" and echoes(candidate, record)
    stands = record.opened_step is None or not len(window.steps)
    stands = stands or int(window.steps[-1]) - (record.opened_step or 0) < PROGRESS_STEPS
    return stands and echoes(candidate, record)


def _scores(votes: Mapping[str, Vote]) -> dict[str, float]:
    return {name: vote.score for name, vote in votes.items() if vote.opinion != "abstain"}


def _progress(window: Window, record: IncidentRecord) -> bool:
    since_s = max(record.opened_at_s, record.onset_s or 0.0, record.closed_at_s or 0.0)  # closed: it is unresolved
    return int(np.count_nonzero(window.ends_s > since_s)) >= PROGRESS_STEPS
