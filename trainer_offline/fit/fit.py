"""Fitting every trainable detector on prepared data: one bundle, the same for the same seed and data.

Jobs of a cluster are pooled by family of entities: one GPU model learns from all GPUs of all training jobs, since it
has to serve jobs that it has never seen. Each entity's own level is not lost by that: the vote follows every entity's
scale, from the pooled one on where entities are alike, and from nothing where their levels differ by more than they
vary (`trainwarden.detectors.metrics.bundle.levels`); which of the two is said in the card.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import msgspec
import numpy as np

from trainwarden.detectors.job.samples import Entity
from trainwarden.detectors.metrics.bundle.bundle import ModelBundle, versions_of
from trainwarden.detectors.metrics.bundle.members import VoteConfig
from trainwarden.detectors.metrics.bundle.metric_vote import MetricVote
from trainwarden.errors import DataError, DetectorError
from trainwarden.trainer_offline.data.grids import Floats
from trainwarden.trainer_offline.data.prepare import GROUP_OFFSET_S, TrainingData

SOON_S: Final = 600.0
"""A scale of an entity's own costs its warm-up. Where that is over so soon it is worth it: two jobs that are alike say
little of a third, whose program may be another one."""
LEAST_ENTITIES: Final = 8
"""What is normal on scales of their own is calibrated by entities that models have not seen: three cards say little."""


def fit(
    data: TrainingData, config: VoteConfig, seed: int, tell: Callable[[str, int, int], None] = lambda text, i, n: None
) -> ModelBundle:
    """Models of every family that can be learnt; why another, or one of its members, cannot goes to the card's notes.

    Parameters
    ----------
    tell : callable
        Called with what is being fitted, how many families are done, and of how many.

    Raises
    ------
    DataError
        If nothing can be learnt at all.
    """
    series, names = data.series()
    votes: dict[str, MetricVote] = {}
    why: list[str] = []
    for done, (family, one) in enumerate(sorted(series.items())):
        called = family or "rows without device"
        tell(f"fitting {called}: {sum(len(values) for _, _, values in one):,} rows", done, len(series))
        soon = _own_scale_soon(data, family, [len(values) for _, _, values in one], config)
        try:
            owners = {family: [owner_of(*part) for part in one]}
            found = ModelBundle.fit(
                {family: one}, {family: names[family]}, _own(config) if soon else config, seed, owners
            )
        except DetectorError as error:
            why.append(str(error))
            continue
        vote = votes[family] = found.votes[family]
        vote.preparation.why = soon if soon and vote.preparation.why else vote.preparation.why
        why += [f"{called}: {one}" for one in vote.left_out]
        if vote.pace is not None and data.config.every_s is not None:
            vote.pace = replace(vote.pace, averaged=True)
    tell("fitted", len(series), len(series))
    data.card.notes += why
    if not votes:
        raise DataError("; ".join(why) or "there is no stretch of normal rows long enough to learn from")
    _metrics(data, votes)
    return ModelBundle(votes, versions_of(votes))


def _own_scale_soon(data: TrainingData, family: str, lengths: Sequence[int], config: VoteConfig) -> str:
    """Why every entity is judged on a scale of its own though those of the training jobs are alike; else empty.

    By time, not by samples: 240 of them are four minutes at one a second, and four hours at one a minute. Half of what
    there is has to be left to learn from.
    """
    rows = config.preparation.warm_up_rows
    every_s = [grid.every_s for job in data.train for grid in job.grids if grid.family == family]
    jobs = sum(any(grid.family == family for grid in job.grids) for job in data.train)
    entities = sum(len(grid.entities) for job in data.train for grid in job.grids if grid.family == family)
    soon = config.preparation.own_scale == "auto" and jobs > 1 and rows * max(every_s) <= SOON_S
    if not soon or entities < LEAST_ENTITIES or np.median(lengths) < 2 * rows:
        return ""
    return (
        f"own scale for every entity: its own {rows} samples are there after {rows * max(every_s):.0f} s, and "
        f"{jobs} jobs say little of another one's levels"
    )


def _own(config: VoteConfig) -> VoteConfig:
    preparation = msgspec.structs.replace(config.preparation, own_scale="always")
    return msgspec.structs.replace(config, preparation=preparation)


def _metrics(data: TrainingData, votes: dict[str, MetricVote]) -> None:
    """Write what was kept and dropped to the card; names of families with a device carry the family."""
    card = data.card
    for family, vote in votes.items():
        lead = f"{family}/" if family else ""
        card.scales[family or "rows without device"] = vote.preparation.why or "one scale, that of training, for all"
        card.metrics_kept += [lead + name for name in vote.preparation.names]
        card.metrics_dropped += [{"name": lead + one.name, "why": one.why} for one in vote.preparation.dropped]


def owner_of(entity: Entity, times_s: Floats, values: Floats) -> tuple[Entity, int]:
    """The entity of one job that a training series is of: jobs lie `GROUP_OFFSET_S` apart (`TrainingData.series`)."""
    del values
    return entity, int(times_s[0] // GROUP_OFFSET_S)


def blank_row(vote: MetricVote) -> dict[str, float]:
    """One row of normal values, as an example of what a model takes."""
    values = np.full(len(vote.preparation.all_names), 0.0)
    for column, name in enumerate(vote.preparation.names):
        values[vote.preparation.all_names.index(name)] = vote.preparation.scale.mean[column]
    return dict(zip(vote.preparation.all_names, values.tolist(), strict=True))
