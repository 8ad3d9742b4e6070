"""Nodes of which a recording holds nothing more while others go on, where a second witness misses them.

That nothing comes of a node may be its exporter's fault. It is lost if no step has been ended since, though the job's
pauses were shorter, or if its peers say that a connection broke or a process failed. Where half fall silent together,
what they share has failed.

Where heartbeats were recorded, the others' ranks are the witness: they wait in a step for longer than the node was seen
in it. Each is measured on its own clock since its own last step, as the nodes' clocks may be apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from trainwarden.detectors.facts.nodes import NodeConfig
from trainwarden.detectors.recorded.witnesses import TIMES, Steps, ended, heard_after, left_alone
from trainwarden.prometheus.events import SILENT_S
from trainwarden.recorded.job import Floats, MetricTable, RecordedJob
from trainwarden.records import EventRecord, HeartbeatRecord

INTERVALS: Final = 10.0  # of the slowest of the nodes, and three times the longest gap of the silent one
SAMPLES: Final = 10
OTHERS: Final = 2  # at least, that go on
STEPS: Final = 2.0  # that ranks may still end without a node
MIN_ENDS: Final = 3  # of steps, before which nobody knows how long one takes
WAIT_STEPS: Final = 3.0  # usual steps that the others have waited for at least, as live ones do


@dataclass(frozen=True, slots=True)
class _Node:
    name: str
    times_s: Floats

    @property
    def last_s(self) -> float:
        return float(self.times_s[-1])

    @property
    def every_s(self) -> float:
        return float(np.median(np.diff(self.times_s)))

    @property
    def gap_s(self) -> float:
        return float(np.diff(self.times_s).max())


@dataclass(frozen=True, slots=True)
class _Silence:
    """A node is told of no more, and others are until `others_s`."""

    node: _Node
    others: int
    patience_s: float
    others_s: float


def lost_node_events(job: RecordedJob, known: Iterable[EventRecord] = ()) -> list[EventRecord]:
    """Events of `job` for nodes that are lost, told when others have gone on for long enough.

    Parameters
    ----------
    known : iterable of EventRecord
        What else the recording tells; a node that is lost by it is not told twice.
    """
    events = list(known)
    told = {event.node for event in events if event.kind == "heartbeat_lost"}
    found = []
    for silence in () if job.metrics is None else _silences(_nodes(job, job.metrics)):
        node = silence.node
        if node.name in told or heard_after(job, node.name, node.last_s + STEPS * node.every_s):
            continue
        witness = _witness(job, silence, events)
        if witness is not None:
            found.append(_event(job, silence, *witness))
    return found


def _nodes(job: RecordedJob, table: MetricTable) -> list[_Node]:
    """Nodes that were sampled often enough; where rows tell the rank alone, its steps may tell the node."""
    steps = job.iterations
    known = () if steps is None else zip(steps.ranks, steps.nodes, strict=True)
    hosts = {rank: node for rank, node in known if rank is not None and node}
    places: dict[str, list[int]] = {}
    for place, (own, rank) in enumerate(zip(table.nodes, table.ranks, strict=True)):
        name = own or (hosts.get(rank) if rank is not None else None)
        if name:
            places.setdefault(name, []).append(place)
    if len(places) <= OTHERS:
        return []
    names = list(places)
    code_of = np.full(len(table.nodes), -1)
    for code, name in enumerate(names):
        code_of[places[name]] = code
    codes = code_of[table.entity]
    measured = np.isfinite(table.values).any(axis=1)
    order = np.flatnonzero(measured & (codes >= 0))
    order = order[np.argsort(codes[order], kind="stable")]
    bounds = np.searchsorted(codes[order], np.arange(len(names) + 1))
    times_s = [np.unique(table.times_s[order[bounds[code] : bounds[code + 1]]]) for code in range(len(names))]
    return [_Node(name, own) for name, own in zip(names, times_s, strict=True) if own.size >= SAMPLES]


def _silences(nodes: list[_Node]) -> list[_Silence]:
    """Nodes that are told of no more while most others, two at least, are."""
    if len(nodes) <= OTHERS:
        return []
    every_s = max(node.every_s for node in nodes)
    first_s = np.array([node.times_s[0] for node in nodes])
    last_s = np.array([node.last_s for node in nodes])
    found = []
    for node in nodes:
        patience_s = max(SILENT_S, INTERVALS * every_s, TIMES * node.gap_s)
        beside = (first_s <= node.last_s) & (last_s >= node.last_s - patience_s)
        going = beside & (last_s >= node.last_s + patience_s)
        if 2 * going.sum() > beside.sum():  # and so two at least
            others_s = float(np.sort(last_s[going])[-OTHERS])
            found.append(_Silence(node, int(going.sum()), patience_s, others_s))
    return found


def _witness(job: RecordedJob, silence: _Silence, events: list[EventRecord]) -> tuple[str, float] | None:
    """What confirms that the node is lost, and when that is known; None if nothing does."""
    node, steps = silence.node, Steps.of(job)
    known_s, from_s = node.last_s + silence.patience_s, node.last_s - STEPS * node.every_s
    if steps is not None:
        slack_s = STEPS * (steps.usual_s + node.every_s)
        after = int(np.searchsorted(steps.ends_s, node.last_s + slack_s, side="right"))
        resumed_s = float(steps.ends_s[after]) if after < steps.ends_s.size else np.inf
        if resumed_s <= known_s:
            return None  # the job goes on without it
        longest_s = float(steps.longest_s[after - 1]) if after else np.nan
        still_s = float(steps.ends_s[after - 1])
        if np.isfinite(longest_s) and still_s >= node.last_s - max(slack_s, longest_s + node.every_s):
            until_s = max(known_s, still_s + TIMES * longest_s)
            if until_s <= min(silence.others_s, resumed_s) and not ended(job, events, from_s, until_s):
                return "no rank has ended a step since", until_s
    alone = left_alone(job, events, node.name, from_s, known_s)
    return None if alone is None else (alone, known_s)


def _event(job: RecordedJob, silence: _Silence, witness: str, time_s: float) -> EventRecord:
    node, since_s = silence.node, silence.node.last_s + silence.node.every_s
    return EventRecord(
        id=f"heartbeat_lost/{node.name}/t{time_s * 1000:.0f}", job=job.name, node=node.name, time_s=time_s,
        kind="heartbeat_lost", fields={"since_s": since_s},
        message=f"nothing was told of it for {time_s - node.last_s:.0f} s while {silence.others} other nodes went on; "
        f"{witness}",
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Beats:
    """What a node's heartbeats say: steps finished by then, when the newest ended, whether all of its ranks wait."""

    name: str
    times_s: Floats
    steps: npt.NDArray[np.int64]
    ends_s: Floats
    waits: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, name: str, beats: list[HeartbeatRecord]) -> _Beats:
        beats = sorted((one for one in beats if one.steps), key=lambda one: one.time_s)
        times_s = np.array([one.time_s for one in beats])
        steps = np.array([max(one.steps) for one in beats], np.int64)
        ends_s = np.array([max((end for end in one.step_end_s if end is not None), default=np.nan) for one in beats])
        waits = np.array([bool(one.phases) and all(phase == "wait" for phase in one.phases) for one in beats], np.bool_)
        return cls(name, times_s, steps, ends_s, waits)

    @property
    def gap_s(self) -> float:
        """The longest time between two of them."""
        return float(np.diff(self.times_s).max(initial=0.0))

    @property
    def in_step_s(self) -> Floats:
        """For how long the node was in its step; NaN before the first has ended."""
        return self.times_s - self.ends_s

    @property
    def usual_s(self) -> float:
        """How long a step usually takes; infinite while too few have ended."""
        ends_s = np.unique(self.ends_s[~np.isnan(self.ends_s)])
        return float(np.median(np.diff(ends_s))) if ends_s.size > MIN_ENDS else float("inf")


def silent_node_events(
    job: RecordedJob, beats: Sequence[HeartbeatRecord], known: Iterable[EventRecord] = ()
) -> list[EventRecord]:
    """Events of `job` for nodes whose heartbeats cease while the others wait, reported once they waited long enough.

    Parameters
    ----------
    beats : sequence of HeartbeatRecord
        In any order.
    known : iterable of EventRecord
        What else the recording tells; a node is not lost whose job or processes are said to have ended.
    """
    events, of_node = list(known), dict[str, list[HeartbeatRecord]]()
    for beat in beats:
        of_node.setdefault(beat.node, []).append(beat)
    nodes = [one for one in (_Beats.of(*item) for item in of_node.items()) if one.times_s.size >= SAMPLES]
    missed = [found for one in nodes if (found := _missed(one, [other for other in nodes if other is not one]))]
    return [
        _lost(job, node, known_s, waited_s)
        for node, known_s, waited_s in missed
        if not ended(job, events, min(float(node.times_s[-1]), known_s - waited_s) - node.gap_s, known_s)
    ]


def _missed(node: _Beats, others: list[_Beats]) -> tuple[_Beats, float, float] | None:
    """The node, with the time when half of all nodes had waited for it long enough, and for how long they had then.

    One that has long been in its step and does not wait may be whom they wait for.
    """
    step, patience_s = int(node.steps[-1]), NodeConfig().node_silent_s + TIMES * node.gap_s
    enough_s = float(np.nan_to_num(node.in_step_s[-1])) + patience_s
    known_s, waited_s = [], []
    for other in others:
        beside = (other.steps >= step) & (other.steps <= step + 1) & other.waits
        long = np.flatnonzero(beside & (other.in_step_s > max(enough_s, WAIT_STEPS * other.usual_s)))
        if long.size:
            known_s.append(float(other.times_s[long[0]]))
            waited_s.append(float(other.in_step_s[long[0]]))
        elif not other.in_step_s[-1] <= enough_s:
            return None
    return (node, max(known_s), max(waited_s)) if known_s and 2 * len(known_s) > len(others) else None


def _lost(job: RecordedJob, node: _Beats, known_s: float, waited_s: float) -> EventRecord:
    return EventRecord(
        id=f"heartbeat_lost/{node.name}/t{known_s * 1000:.0f}", job=job.name, node=node.name, time_s=known_s,
        kind="heartbeat_lost", fields={"since_s": known_s - waited_s},
        message=f"no heartbeat of it any more, while the ranks of other nodes wait in their step for {waited_s:.0f} s",
    )  # fmt: skip
