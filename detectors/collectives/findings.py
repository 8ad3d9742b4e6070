"""What flight recorders and NCCL's RAS say about collectives that do not end: one kind of finding for both.

A finding travels as an event of kind ``flight_recorder``, which `hard_event` turns into an incident.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Final, Literal

import msgspec

from trainwarden.errors import RecordError
from trainwarden.records import EventRecord

EVENT_KIND: Final = "flight_recorder"
MAX_RANKS_TOLD: Final = 64

CollectiveKind = Literal["hang", "collective_mismatch"]


class CollectiveFinding(msgspec.Struct, frozen=True, kw_only=True):
    """A collective operation that some ranks wait in and others did not reach, or reached differently.

    Attributes
    ----------
    ranks : tuple of int
        Suspected ranks, most likely first; empty if all members reached it and it is stuck all the same.
    scores : tuple of float
        How likely each of `ranks` is, 0..1.
    group : str
        The process group (name and description) or communicator where the break began.
    op : str
        The collective that is waited in, e.g. ``all_reduce``; empty if unknown.
    seq : int or None
        Its sequence number in the group.
    waiting : tuple of int
        Ranks that wait there (at most `MAX_RANKS_TOLD`).
    time_s : float or None
        Since when, as Unix seconds of the waiting ranks' own clocks.
    evidence : tuple of str
        One sentence for each suspected rank.
    places : tuple of str
        Suspected nodes where no rank is.
    """

    kind: CollectiveKind
    ranks: tuple[int, ...]
    scores: tuple[float, ...]
    group: str
    op: str
    seq: int | None
    reason: str
    waiting: tuple[int, ...] = ()
    time_s: float | None = None
    evidence: tuple[str, ...] = ()
    places: tuple[str, ...] = ()


def to_event(
    finding: CollectiveFinding,
    *,
    job: str,
    time_s: float,
    nodes: Mapping[int, str] | None = None,
    source: str = "",
    renews: bool = False,
) -> EventRecord:
    """The event that tells `finding` to the detection service.

    Parameters
    ----------
    time_s : float
        Time of the event on the clock of the recording; a hang's onset, where known, is `finding.time_s`.
    nodes : mapping of int to str, optional
        Node of each rank, as far as known.
    source : str
        Where the evidence comes from, e.g. ``nccl_ras``.
    renews : bool
        It takes the place of what `source` said before.

    Examples
    --------
    >>> finding = CollectiveFinding(kind="hang", ranks=(3, 5), scores=(1.0, 0.5), group="0 default_pg",
    ...     op="all_reduce", seq=7, reason="ranks 3, 5 did not reach all_reduce 7")
    >>> event = to_event(finding, job="j", time_s=10.0, nodes={3: "n1"})
    >>> event.kind, event.rank, event.node, event.fields["ranks"]
    ('flight_recorder', 3, 'n1', '3,5')
    """
    known = nodes or {}
    ranks = finding.ranks[:MAX_RANKS_TOLD]
    places = [known.get(rank, "") for rank in ranks] or list(finding.places[:MAX_RANKS_TOLD])
    identity = f"{job}/{finding.kind}/{finding.group}/{finding.op}/{finding.seq}/{ranks}"
    return EventRecord(
        id=hashlib.sha256(identity.encode()).hexdigest()[:16],
        job=job,
        node=places[0] if places else "",
        time_s=time_s,
        kind="flight_recorder",
        rank=ranks[0] if ranks else None,
        message=finding.reason,
        fields={
            "finding": finding.kind,
            "ranks": ",".join(map(str, ranks)),
            "scores": ",".join(f"{score:.3f}" for score in finding.scores[:MAX_RANKS_TOLD]),
            "nodes": ",".join(places),
            "evidence": "\n".join(finding.evidence[:MAX_RANKS_TOLD]),
            "group": finding.group,
            "op": finding.op,
            "seq": finding.seq,
            "source": source or EVENT_KIND,
            **({"renews": True} if renews else {}),
        },
    )


class Accused(msgspec.Struct):
    """One suspected rank of a told finding."""

    rank: int | None
    node: str
    score: float
    reason: str


def accused_of(event: EventRecord) -> list[Accused]:
    """The suspects that an event of `to_event` names, most likely first: ranks, else nodes, else one that is neither.

    Raises
    ------
    RecordError
        If the event's fields are not those of `to_event`.
    """
    fields = event.fields
    try:
        ranks = [int(part) for part in str(fields.get("ranks") or "").split(",") if part]
        scores = [float(part) for part in str(fields.get("scores") or "").split(",") if part]
    except ValueError as error:
        raise RecordError(f"event {event.id}: ranks or scores are no numbers: {error}") from error
    nodes = str(fields.get("nodes") or "").split(",")
    reasons = str(fields.get("evidence") or "").split("\n")
    if not ranks:
        return [Accused(None, node, 0.5, event.message) for node in nodes if node] or [
            Accused(None, event.node, 0.5, event.message)
        ]
    return [
        Accused(rank, _at(nodes, place, ""), min(1.0, max(0.0, scores[place] if place < len(scores) else 0.5)),
                _at(reasons, place, event.message))
        for place, rank in enumerate(ranks)
    ]  # fmt: skip


def listed(ranks: Sequence[int], most: int = 8) -> str:
    """Ranks as people write them.

    Examples
    --------
    >>> listed([3]), listed([3, 5]), listed(range(20))
    ('rank 3', 'ranks 3, 5', 'ranks 0, 1, 2, 3, 4, 5, 6, 7 and 12 more')
    """
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    shown = ", ".join(str(rank) for rank in ranks[:most])
    return f"ranks {shown}" + (f" and {len(ranks) - most} more" if len(ranks) > most else "")


def _at(values: list[str], place: int, otherwise: str) -> str:
    return values[place] if place < len(values) and values[place] else otherwise
