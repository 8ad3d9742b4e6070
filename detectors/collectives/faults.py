"""Findings of flight recorders and NCCL's RAS on their way from an event to a vote."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from trainwarden.detectors.collectives.began import began_s
from trainwarden.detectors.collectives.findings import EVENT_KIND, Accused, accused_of
from trainwarden.detectors.job.window import Window
from trainwarden.errors import RecordError
from trainwarden.records import EventRecord, IncidentKind, Severity, Suspect, Vote

MAX_SUSPECTS: Final = 16
MAX_FAULTS: Final = 64
OUTLIVED_S: Final = 2.0  # a step that ends this long after the finding shows that the job goes on
_KINDS: Final[Mapping[str, IncidentKind]] = {"hang": "hang", "collective_mismatch": "collective_mismatch"}
_SEVERITY: Final[Severity] = "sev2"


class CollectiveFault(msgspec.Struct):
    """One told finding, kept until the job moves on or is restarted."""

    kind: IncidentKind
    time_s: float
    reason: str
    accused: list[Accused]
    source: str = ""


class CollectiveFaults:
    """Hangs and mismatches that the recorders of a job have shown."""

    def __init__(self) -> None:
        self._faults: dict[str, CollectiveFault] = {}

    def apply(self, event: EventRecord, window: Window) -> None:
        """Apply a finding's event; a restart clears them, other events are left alone."""
        if event.kind == "restart":
            self._faults.clear()
        if event.kind != EVENT_KIND:
            return
        kind = _KINDS.get(str(event.fields.get("finding")))
        if kind is None:
            return
        source = str(event.fields.get("source") or "")
        if event.fields.get("renews"):
            self._faults = {key: one for key, one in self._faults.items() if key == event.id or one.source != source}
        if len(self._faults) >= MAX_FAULTS:
            return
        try:
            accused = accused_of(event)
        except RecordError:
            accused = [Accused(event.rank, event.node, 0.5, event.message)]  # who wrote it knows at least the first
        node_of = dict(zip((int(rank) for rank in window.ranks), window.nodes, strict=False))
        for one in accused:
            if not one.node and one.rank is not None:
                one.node = node_of.get(one.rank, "")
        self._faults.setdefault(event.id, CollectiveFault(kind, began_s(event), event.message, accused, source))

    def expire(self, window: Window) -> None:
        """Forget what the job has outlived."""
        if self._faults and len(window.ends_s):
            newest_s = float(window.ends_s[-1])
            self._faults = {key: fault for key, fault in self._faults.items() if newest_s <= fault.time_s + OUTLIVED_S}

    def groups(self) -> list[list[CollectiveFault]]:
        """Findings by kind."""
        groups: dict[str, list[CollectiveFault]] = {}
        for fault in self._faults.values():
            groups.setdefault(fault.kind, []).append(fault)
        return [groups[kind] for kind in sorted(groups)]


def collective_vote(faults: list[CollectiveFault]) -> Vote:
    """The vote that tells `faults`, findings of one kind."""
    first = faults[0]
    named: dict[tuple[int | None, str], Accused] = {}
    for fault in faults:
        for one in fault.accused:
            who = one.rank, one.node if one.rank is None else ""
            if who not in named or named[who].score < one.score:
                named[who] = one
    suspects = tuple(
        Suspect(score=one.score, reason=one.reason or first.reason, rank=one.rank, node=one.node or None)
        for one in list(named.values())[:MAX_SUSPECTS]
        if one.rank is not None or one.node
    )
    return Vote(
        opinion="anomalous", score=1.0, reason=first.reason or "a collective does not end", kind=first.kind,
        severity=_SEVERITY, suspects=suspects, onset_s=min(fault.time_s for fault in faults), hard=True,
    )  # fmt: skip
