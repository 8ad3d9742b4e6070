"""Windows that hold nothing but samples of a family."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from trainwarden.detectors.job.samples import Entity, FamilySamples
from trainwarden.detectors.job.state import JobState

START_S = 1_000_000.0
EVERY_S = 15.0


def samples_of(family, values, time_s, *, devices=None, nodes=None, roles=None):
    """One sample of each entity, by metric name."""
    size = len(next(iter(values.values())))
    nodes = nodes or [f"n{place}" for place in range(size)]
    devices = devices or ["0"] * size
    array = np.array([values[name] for name in values], dtype=np.float64).T[:, :, None]
    return FamilySamples(
        family=family,
        names=tuple(values),
        rows=np.arange(size),
        entities=tuple(Entity(node, device) for node, device in zip(nodes, devices, strict=True)),
        roles=tuple(roles or [""] * size),
        values=array,
        times_s=np.full((size, 1), time_s),
    )


def window_of(*samples, now_s):
    """A window of an empty job with these samples."""
    return replace(JobState("job").window(now_s=now_s), samples=samples)


def run(detector, family, name, lanes, *, first_s=0.0):
    """The vote after `lanes`, the values of one metric by entity, 15 s apart."""
    vote = None
    for tick, column in enumerate(zip(*lanes, strict=True)):
        time_s = START_S + first_s + EVERY_S * tick
        window = window_of(samples_of(family, {name: list(column)}, time_s), now_s=time_s)
        detector.update(window)
        vote = detector.score(window)
    return vote
