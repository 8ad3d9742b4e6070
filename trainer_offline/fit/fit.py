"""Fitting every trainable detector on prepared data: one bundle, the same for the same seed and data.

Jobs of a cluster are pooled by family of entities: one GPU model learns from all GPUs of all training jobs, since it
has to serve jobs that it has never seen. Each entity's own level is not lost by that: the vote follows every entity's
scale, from the pooled one on where entities are alike, and from nothing where their levels differ by more than they
vary (`detectors.metrics.bundle.levels`); which of the two is said in the card.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from detectors.job.samples import Entity
from detectors.metrics.bundle.bundle import ModelBundle, versions_of
from detectors.metrics.bundle.members import VoteConfig
from detectors.metrics.bundle.metric_vote import MetricVote
from trainer_offline.data.grids import Floats
from trainer_offline.data.prepare import GROUP_OFFSET_S, TrainingData
from trainwarden.errors import DataError, DetectorError


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
        try:
            owners = {family: [owner_of(*part) for part in one]}
            found = ModelBundle.fit({family: one}, {family: names[family]}, config, seed, owners)
        except DetectorError as error:
            why.append(str(error))
            continue
        vote = votes[family] = found.votes[family]
        why += [f"{called}: {one}" for one in vote.left_out]
        if vote.pace is not None and data.config.every_s is not None:
            vote.pace = replace(vote.pace, averaged=True)
    tell("fitted", len(series), len(series))
    data.card.notes += why
    if not votes:
        raise DataError("; ".join(why) or "there is no stretch of normal rows long enough to learn from")
    _metrics(data, votes)
    return ModelBundle(votes, versions_of(votes))


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
