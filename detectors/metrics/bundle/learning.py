"""Learning the vote: every member on the prepared series, judged on what it has not seen, and calibrated by that."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from trainwarden.detectors.metrics.bundle.calibration import Calibration
from trainwarden.detectors.metrics.bundle.members import (
    WINDOW_MODELS,
    NormalSeries,
    VoteConfig,
    by_name,
    fit_dtw,
    fit_rows,
    fit_windows,
    judged_every,
    thinned,
)
from trainwarden.detectors.metrics.bundle.preparation import Preparation
from trainwarden.detectors.metrics.bundle.weighing import weighted_mean
from trainwarden.detectors.metrics.models.rows import Floats
from trainwarden.errors import DetectorError


@dataclass(frozen=True, slots=True)
class Learnt:
    """What a vote is made of."""

    preparation: Preparation
    models: Mapping[str, Any]
    calibrations: Mapping[str, Calibration]  # one per member and "ensemble"
    left_out: Sequence[str]  # why members are not among them


def learn(
    series: Sequence[npt.ArrayLike],
    names: Sequence[str],
    config: VoteConfig,
    seed: int,
    *,
    peers: bool | Sequence[int] = False,
    owners: Sequence[Hashable] | None = None,
    smallest: Floats | float = 0.0,
) -> Learnt:
    """Parts of a vote from normal `series`; parameters as those of `MetricVote.fit`.

    Raises
    ------
    DetectorError
        If there is too little to learn from for every member that counts.
    """
    arrays = [np.asarray(one, dtype=np.float64) for one in series]
    if not any(weight > 0.0 for weight in by_name(config.members).values()):
        raise DetectorError("no member of the vote has a weight")
    preparation = Preparation.fit(arrays, names, config.preparation, owners, smallest)
    scaled = preparation.scaled(arrays, owners)
    every = judged_every(scaled, config)
    normal = NormalSeries(scaled, _blocks(scaled, preparation, owners, config), every)
    models: dict[str, Any] = {}
    held_out: dict[str, list[Floats]] = {}
    why: list[str] = []
    for name in config.members:
        try:
            if name == "dtw":
                places = list(range(len(scaled)) if peers is True else peers or ())
                if len(places) >= config.dtw.least_ranks:
                    models[name], held_out[name] = _fit_peers(scaled, places, every, config)
            elif name in WINDOW_MODELS:
                models[name], held_out[name] = fit_windows(name, normal, config, seed)
            else:
                models[name], held_out[name] = fit_rows(name, normal, config, seed)
        except DetectorError as error:
            why.append(str(error))
        if name in models and np.isnan(np.concatenate(held_out[name])).all():
            del models[name], held_out[name]
            why.append(f"no stretch is long enough to judge {name}")
    if not any(by_name(config.members)[name] > 0.0 for name in models):
        raise DetectorError("; ".join(dict.fromkeys(why)) or "no member of the vote can be learnt")
    left_out = list(dict.fromkeys(why))
    return Learnt(preparation, models, _calibrated(held_out, scaled, every, config), left_out)


def _calibrated(
    held_out: Mapping[str, list[Floats]], scaled: Sequence[Floats], every: int, config: VoteConfig
) -> dict[str, Calibration]:
    """Calibrations of the members, and of their mean where all of them were judged."""
    weights = {name: float(weight) for name, weight in by_name(config.members).items()}
    calibrations = {name: Calibration.fit(_normal(parts, 1, config)) for name, parts in held_out.items()}
    nats = [
        weighted_mean(
            {name: calibrations[name].nats(parts[one]) for name, parts in held_out.items()},
            weights,
            (scaled[one].shape[1],),
        )
        for one in range(len(scaled))
    ]
    calibrations["ensemble"] = Calibration.fit(_normal(nats, every, config))
    return calibrations


def _blocks(
    scaled: Sequence[Floats], preparation: Preparation, owners: Sequence[Hashable] | None, config: VoteConfig
) -> list[npt.NDArray[np.intp]]:
    """The fold that each sample is judged in, by models that have not seen the fold.

    Blocks of time where all entities share one scale. Where they are unlike, whole entities: a model serves entities
    that it has never seen, and among unlike ones that is harder than another time of a known one.
    """
    known: dict[Hashable, int] = {}
    for owner in owners if owners is not None else range(len(scaled)):
        known.setdefault(owner, len(known))
    if preparation.scale.is_own and len(known) > 1:
        folds = [known[owner] % config.folds for owner in (owners if owners is not None else range(len(scaled)))]
        return [np.full(one.shape[1], fold, dtype=np.intp) for one, fold in zip(scaled, folds, strict=True)]
    return [np.arange(one.shape[1]) * config.folds // max(one.shape[1], 1) for one in scaled]


def _normal(parts: Sequence[Floats], every: int, config: VoteConfig) -> Floats:
    """Normal scores for a calibration, of every so many samples."""
    values = np.concatenate([one[::every] for one in parts])
    return thinned(values[~np.isnan(values)], config.calibration_rows)


def _fit_peers(
    scaled: Sequence[Floats], places: Sequence[int], every: int, config: VoteConfig
) -> tuple[Any, list[Floats]]:
    """DTW across the series at `places`, and its scores for every series, NaN for the others."""
    model, found = fit_dtw([scaled[place] for place in places], every, config)
    scores = [np.full(one.shape[1], np.nan) for one in scaled]
    for place, part in zip(places, found, strict=True):
        scores[place] = part
    return model, scores
