"""Simulated ranks before the detectors of collective calls: what they say, step by step."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tests.simulated_ranks.layout import Layout
from tests.simulated_ranks.steps import Fault, Ranks
from trainwarden.detectors.calls.exchanges import with_all_to_alls
from trainwarden.detectors.calls.joined import Calls, JoinedStep, join
from trainwarden.detectors.job.state import JobState
from trainwarden.detectors.job.window import Window
from trainwarden.detectors.transfers.collective_links import CollectiveLinks
from trainwarden.detectors.transfers.collective_waits import CollectiveWaits
from trainwarden.records import HeartbeatRecord, Vote


@dataclass
class Told:
    """The first verified vote of each detector with its step, and everybody that either has ever accused."""

    waits: tuple[int, Vote] | None = None
    links: tuple[int, Vote] | None = None
    accused: set[int | None] = field(default_factory=set)
    newest: dict[str, Vote] = field(default_factory=dict)


def window_of(layout: Layout) -> Window:
    """A window of all ranks in which nothing has happened yet."""
    state, nodes = JobState("simulated"), layout.nodes
    for node in dict.fromkeys(nodes):
        ranks = tuple(rank for rank in range(layout.ranks) if nodes[rank] == node)
        none = ("",) * len(ranks)
        state.feed(
            HeartbeatRecord(
                job="simulated", node=node, time_s=1.0, ranks=ranks, incarnations=none, steps=(1,) * len(ranks),
                phases=("compute",) * len(ranks), phase_since_s=(None,) * len(ranks), calls=(0,) * len(ranks),
            )
        )  # fmt: skip
    return replace(state.window(1.0, with_samples=False), phase="", counts=layout.counts)


def joined(layout: Layout, calls: Calls, step: int, took_s: float) -> JoinedStep:
    """One step joined, as the job's memory does it."""
    trusted = np.ones(layout.sizes.size, dtype=np.bool_)
    calls, among_all = with_all_to_alls(calls, layout.sizes.size)
    found = join(calls, layout.sizes, trusted, layout.ranks, at=(step, float(step)))
    return replace(found, period_s=took_s, among_all=among_all)


def judged(ranks: Ranks, steps: int, spoil: Any = None) -> Told:
    """What the detectors say of `steps` sampled steps; `spoil(calls, step)` may take from what ranks tell."""
    waits, links = CollectiveWaits(CollectiveWaits.Config()), CollectiveLinks(CollectiveLinks.Config())
    base, told = window_of(ranks.layout), Told()
    for step in range(steps):
        calls, took_s = ranks.step()
        if spoil is not None:
            calls = spoil(calls, step)
        window = replace(base, now_s=float(step), calls=(joined(ranks.layout, calls, step, took_s),))
        for name, detector in (("waits", waits), ("links", links)):
            detector.update(window)
            vote = told.newest[name] = detector.score(window)
            if vote.opinion == "anomalous" and vote.verified:
                if getattr(told, name) is None:
                    setattr(told, name, (step, vote))
                told.accused |= {suspect.rank for suspect in vote.suspects}
    return told


__all__ = ["Fault", "Layout", "Ranks", "Told", "joined", "judged", "window_of"]
