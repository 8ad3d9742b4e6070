"""Taking a trained bundle apart into one artifact for each detector, and putting champions of any runs together.

Every detector's artifact is a `ModelBundle` folder of its own: the detector's models and calibrations and the
preparation that they were trained with. The artifact ``ensemble`` holds the vote's weights and its calibration, and no
models. A promotion or a roll-back of one detector so takes effect at once, whichever run the version is of: members
that share the ensemble's preparation take its columns as they are; of others the preparation's columns are added
beside, and they see those alone (`bundle.on_columns`). Member scores are nats of rarity among normal values
whatever they were trained on, so the vote's calibration keeps its meaning.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from typing import Any, Final

import msgspec
import numpy as np

from trainwarden.detectors.metrics.bundle.bundle import ModelBundle
from trainwarden.detectors.metrics.bundle.calibration import Calibration
from trainwarden.detectors.metrics.bundle.members import WINDOW_MODELS
from trainwarden.detectors.metrics.bundle.metric_vote import MetricVote
from trainwarden.detectors.metrics.bundle.on_columns import OnColumns
from trainwarden.detectors.metrics.bundle.preparation import Preparation
from trainwarden.detectors.metrics.bundle.sampling_interval import SamplingInterval
from trainwarden.detectors.metrics.bundle.scale import Scale
from trainwarden.detectors.protocol import PROVISIONAL_SHARE
from trainwarden.errors import DetectorError

ENSEMBLE: Final = "ensemble"


def parts_of(bundle: ModelBundle) -> dict[str, ModelBundle]:
    """A bundle for each detector, and one named ``ensemble`` without models."""
    names = dict.fromkeys(name for vote in bundle.votes.values() for name in vote.models)
    parts: dict[str, ModelBundle] = {}
    for name in names:
        votes = {family: _only(vote, name) for family, vote in bundle.votes.items() if name in vote.models}
        parts[name] = ModelBundle(votes, {name: bundle.versions[name]}, weights=_of(bundle, name))
    calibrations = {family: _only(vote, None) for family, vote in bundle.votes.items()}
    digest = hashlib.sha256("".join(f"{family}{_digest(vote)}" for family, vote in calibrations.items()).encode())
    parts[ENSEMBLE] = ModelBundle(calibrations, {ENSEMBLE: digest.hexdigest()[:12]}, weights=_of(bundle, ENSEMBLE))
    return parts


def _of(bundle: ModelBundle, name: str) -> dict[str, Mapping[str, float]]:
    return {name: bundle.weights[name]} if name in bundle.weights else {}


def preparation_hash(bundle: ModelBundle) -> str:
    """The same for artifacts whose families share their preparation."""
    lines = [f"{family}\n{preparation_of(vote)}\n" for family, vote in sorted(bundle.votes.items())]
    return hashlib.sha256("".join(lines).encode()).hexdigest()[:12]


def preparation_of(vote: MetricVote) -> str:
    """Hash of a vote's preparation: columns, scales, names."""
    return _hashed(vote.preparation.to_arrays())


def join(
    ensemble: ModelBundle,
    members: Mapping[str, ModelBundle],
    versions: Mapping[str, str],
    provisional: Collection[str] = (),
) -> ModelBundle:
    """One bundle of detectors' artifacts, under their registry `versions`; families are those of the ensemble.

    Those of `provisional` weigh less in the mean of all.

    Raises
    ------
    DetectorError
        If no member has a model for any of its families, or members were trained at unlike sampling intervals.
    """
    votes = {}
    for family, base in ensemble.votes.items():
        own = {name: part.votes[family] for name, part in members.items() if family in part.votes}
        if own:
            votes[family] = _joined(base, own, provisional)
    if not votes:
        raise DetectorError("the registry's champions have no models for the families of the ensemble")
    weights = {name: by_family for part in (ensemble, *members.values()) for name, by_family in part.weights.items()}
    return ModelBundle(votes, dict(versions), frozenset(provisional), weights)


def _joined(base: MetricVote, own: Mapping[str, MetricVote], provisional: Collection[str]) -> MetricVote:
    groups: dict[str, Preparation] = {preparation_of(base): base.preparation}
    for vote in own.values():
        groups.setdefault(preparation_of(vote), vote.preparation)
    used = {preparation_of(vote) for vote in own.values()}
    groups = {key: one for key, one in groups.items() if key in used}
    starts = dict(zip(groups, np.cumsum([0, *(len(one.names) for one in groups.values())]).tolist(), strict=False))
    preparation = next(iter(groups.values())) if len(groups) == 1 else _beside(base, list(groups.values()))
    models: dict[str, Any] = {}
    calibrations: dict[str, Calibration] = {ENSEMBLE: base.calibrations[ENSEMBLE]}
    for name, vote in own.items():
        model, start = vote.models[name], starts[preparation_of(vote)]
        columns = np.arange(start, start + len(vote.preparation.names))
        models[name] = model if len(groups) == 1 else OnColumns(model, columns, len(preparation.names))
        calibrations[name] = vote.calibrations[name]
    views = {**base.config.views}
    changes: dict[str, Any] = {}
    for name, vote in own.items():
        views |= {key: view for key, view in vote.config.views.items() if key == name}
        if name in WINDOW_MODELS:
            changes[name] = getattr(vote.config, name)
        elif name == "dtw":
            changes |= {key: getattr(vote.config, key) for key in ("dtw", "dtw_samples", "dtw_stride")}
    weights = {
        name: weight * (PROVISIONAL_SHARE if name in provisional else 1.0)
        for name, weight in base.config.members.items()
    }
    config = msgspec.structs.replace(base.config, views=views, members=weights, **changes)
    return MetricVote(config, preparation, models, calibrations, _pace(base, own))


def _pace(base: MetricVote, own: Mapping[str, MetricVote]) -> SamplingInterval | None:
    """The sampling interval of all; models that were trained at unlike ones cannot be shown the same samples."""
    pace = base.pace
    for name, vote in own.items():
        both = pace.with_other(vote.pace) if pace is not None and vote.pace is not None else pace or vote.pace
        if both is None and pace is not None and vote.pace is not None:
            raise DetectorError(
                f"{name} was trained on samples every {vote.pace.summary} and others on samples every {pace.summary}: "
                "they cannot serve together"
            )
        pace = both
    return pace


def _beside(base: MetricVote, preparations: list[Preparation]) -> Preparation:
    """Several preparations' columns side by side; a metric that two keep is there twice, on each one's scale."""
    names = list(dict.fromkeys(name for one in preparations for name in one.all_names))
    kept = [name for one in preparations for name in one.names]
    columns = np.array([names.index(name) for name in kept], dtype=np.intp)
    scales = [one.scale for one in preparations]
    scale = Scale(*(np.concatenate([getattr(one, part) for one in scales]) for part in Scale.__slots__))
    dropped = {one.name: one for prep in preparations for one in prep.dropped if one.name not in kept}
    switching = np.concatenate([one.switching for one in preparations])
    return Preparation(
        base.config.preparation, columns, switching, scale, all_names=names, dropped=list(dropped.values())
    )


def _only(vote: MetricVote, name: str | None) -> MetricVote:
    models = {} if name is None else {name: vote.models[name]}
    calibrations = {key: vote.calibrations[key] for key in (*models, ENSEMBLE)}
    return MetricVote(vote.config, vote.preparation, models, calibrations, vote.pace)


def _digest(vote: MetricVote) -> str:
    return _hashed(vote.to_arrays())


def _hashed(arrays: Mapping[str, Any]) -> str:
    digest = hashlib.sha256()
    for key, value in sorted(arrays.items()):
        digest.update(f"{key} {value.dtype.str} {value.shape}\n".encode())
        digest.update(np.ascontiguousarray(value).tobytes())
    return digest.hexdigest()
