"""The metric vote: every model on its own view of the prepared metrics, calibrated, and their weighted mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from detectors.models.calibration import Calibration, squeeze
from detectors.models.dtw import Dtw
from detectors.models.members import (
    ALL_MODELS,
    ROW_MODELS,
    VoteConfig,
    by_name,
    fit_dtw,
    fit_profile,
    fit_rows,
    profile_series,
    thinned,
    view_of,
)
from detectors.models.neighbor_profile import NeighborProfile
from detectors.models.preparation import Preparation, Scale
from detectors.models.rows import Arrays, Floats, RowModel, config_arrays, read
from trainwarden.errors import DetectorError


@dataclass(frozen=True, slots=True)
class Scores:
    """Calibrated scores 0..1 at one time, ``[r]`` each; NaN where a member abstains."""

    members: dict[str, Floats]
    ensemble: Floats


class MetricVote:
    """Fitted members with their calibrations.

    The mean is taken over nats of rarity, not over squeezed scores, and calibrated once more on its own normal values,
    so that the vote's score has the same meaning as a member's.

    Examples
    --------
    >>> random = np.random.default_rng(0)
    >>> config = VoteConfig(members={"kmeans": 1.0, "pca": 1.0})
    >>> vote = MetricVote.fit([random.normal(size=(600, 4))], ["a", "b", "c", "d"], config, seed=0)
    >>> values = random.normal(size=(3, 4, 30)); values[1, 2, -15:] += 8.0
    >>> scaled, _ = vote.follow(values, vote.start(3))
    >>> scores = vote.score(scaled).ensemble
    >>> int(scores.argmax()), vote.blamed(scaled)[1][0]
    (1, 'c')
    """

    Config = VoteConfig

    def __init__(
        self,
        config: VoteConfig,
        preparation: Preparation,
        models: Mapping[str, Any],
        calibrations: Mapping[str, Calibration],
    ) -> None:
        self.config = config
        self.preparation = preparation
        self.models = dict(models)
        self.calibrations = dict(calibrations)  # one per member and "ensemble"
        self._weights = {name: float(weight) for name, weight in by_name(config.members).items()}

    @classmethod
    def fit(
        cls, series: Sequence[npt.ArrayLike], names: Sequence[str], config: VoteConfig, seed: int, peers: bool = False
    ) -> Self:
        """Learn from normal `series`, each ``[t, d]`` of one entity in time order.

        With `peers` all series share their times and their role, and `dtw` is fitted too. Calibrations come from blocks
        of time that the scoring model has not seen (`config.folds` of them); the models kept have seen everything.

        Raises
        ------
        DetectorError
            If there is too little to learn from.
        """
        arrays = [np.asarray(one, dtype=np.float64) for one in series]
        preparation = Preparation.fit(arrays, names, config.preparation)
        scaled = [preparation.steadied(preparation.scale.apply(preparation.values(one.T))) for one in arrays]
        models: dict[str, Any] = {}
        held_out: dict[str, list[Floats]] = {}
        for name in config.members:
            if name == "dtw":
                if peers and len(scaled) >= config.dtw.least_ranks:
                    models[name], held_out[name] = fit_dtw(scaled, config)
            elif name == "neighbor_profile":
                models[name], held_out[name] = fit_profile(scaled, config, seed)
            else:
                models[name], held_out[name] = fit_rows(name, scaled, config, seed)
        calibrations = {
            name: Calibration.fit(thinned(np.concatenate(parts), config.calibration_rows))
            for name, parts in held_out.items()
        }
        vote = cls(config, preparation, models, calibrations)
        nats = [
            vote._mean({name: calibrations[name].nats(parts[one]) for name, parts in held_out.items()})
            for one in range(len(scaled))
        ]
        vote.calibrations["ensemble"] = Calibration.fit(thinned(np.concatenate(nats), config.calibration_rows))
        return vote

    @property
    def window_samples(self) -> int:
        """Samples that `score` and `blame` need to see everything; more are ignored by all but nothing is lost."""
        reach = [view.reach for name, view in self.config.views.items() if name in self.models]
        if "neighbor_profile" in self.models:
            reach.append(self.config.neighbor_profile.length)
        if "dtw" in self.models:
            reach.append(self.config.dtw_samples)
        return max(reach, default=1) + self.config.preparation.median_rows - 1

    def start(self, ranks: int) -> Scale:
        """The scale of training for each of `ranks` series, to be followed from here."""
        return self.preparation.scale.repeated(ranks)

    def follow(self, values: npt.ArrayLike, scale: Scale) -> tuple[Floats, Scale]:
        """New samples ``[r, d_all, k]`` as z-scores ``[r, d, k]`` of the kept metrics, and the scale after them."""
        return scale.follow(self.preparation.values(values), self.config.preparation.memory_rows)

    def score(self, scaled: Floats, groups: npt.ArrayLike | None = None) -> Scores:
        """Scores of the newest sample of each rank from z-scores ``[r, d, m]``; `groups` ``[r]`` are roles (for dtw).

        Raises
        ------
        DetectorError
            If the metrics are not those of training.
        """
        raw = self._each(scaled, lambda name, seen: self.models[name].score(seen), groups)
        return self._scores(raw)

    def blame(self, scaled: Floats, groups: npt.ArrayLike | None = None) -> Floats:
        """Share of each kept metric in the counting members' blame, ``[r, d]``; rows sum to 1, or 0 without blame."""
        parts = self._each(scaled, lambda name, seen: self.models[name].blame(seen), groups, counting=True)
        return self._shares(parts, (len(scaled), len(self.preparation.names)))

    def blamed(self, scaled: Floats, first: int = 3, groups: npt.ArrayLike | None = None) -> list[list[str]]:
        """For each rank the `first` most blamed metrics, each followed by the near-duplicates it stands for."""
        shares = self.blame(scaled, groups)
        order = np.argsort(-shares, axis=1, kind="stable")[:, :first]
        return [
            [twin for column in row for twin in self.preparation.with_twins(self.preparation.names[column])]
            for row in order
        ]

    def score_series(self, series: npt.ArrayLike, scale: Scale | None = None) -> tuple[Scores, Scale]:
        """Scores ``[t]`` at every time of one entity's ``[t, d_all]``, and the scale after it; causal, without dtw.

        Equal to following it sample by sample, but for the first rows, where a view has less to look back on.
        """
        values = self.preparation.values(np.asarray(series, dtype=np.float64).T)
        start = self.preparation.scale if scale is None else scale
        scaled, after = start.follow(values, self.config.preparation.memory_rows)
        steady = self.preparation.steadied(scaled)
        raw: dict[str, Floats] = {}
        for name, model in self.models.items():
            if name in ROW_MODELS:
                raw[name] = model.score(view_of(self.config, name).rows(steady).T)
            elif name == "neighbor_profile":
                raw[name] = profile_series(model, steady)
        return self._scores(raw), after

    def blame_series(self, series: npt.ArrayLike, scale: Scale | None = None) -> Floats:
        """Shares of blame ``[t, d]`` of the counting row members at every time of one entity's ``[t, d_all]``."""
        values = self.preparation.values(np.asarray(series, dtype=np.float64).T)
        start = self.preparation.scale if scale is None else scale
        steady = self.preparation.steadied(start.follow(values, self.config.preparation.memory_rows)[0])
        parts = {
            name: self.models[name].blame(view_of(self.config, name).rows(steady).T)
            for name in self.models
            if self._weights[name] and name in ROW_MODELS
        }
        return self._shares(parts, values.T.shape)

    def _shares(self, parts: Mapping[str, Floats], shape: tuple[int, ...]) -> Floats:
        """Weighted mean of each member's own shares of blame."""
        total = np.zeros(shape)
        for name, part in parts.items():
            sums = part.sum(axis=1, keepdims=True)
            total += self._weights[name] * np.divide(part, sums, out=np.zeros(shape), where=sums > 0.0)
        sums = total.sum(axis=1, keepdims=True)
        shares: Floats = np.divide(total, sums, out=np.zeros(shape), where=sums > 0.0)
        return shares

    def _each(
        self,
        scaled: Floats,
        ask: Callable[[str, Floats], Floats],
        groups: npt.ArrayLike | None,
        counting: bool = False,
    ) -> dict[str, Floats]:
        """`ask` of every member on its own view of the newest sample (of those with a weight, if `counting`)."""
        if scaled.ndim != 3 or scaled.shape[1] != len(self.preparation.names) or not scaled.shape[2]:
            raise DetectorError(f"z-scores {scaled.shape} must be [ranks, {len(self.preparation.names)}, samples]")
        steady = self.preparation.steadied(scaled)
        answers: dict[str, Floats] = {}
        for name in self.models:
            if counting and not self._weights[name]:
                continue
            if name in ROW_MODELS:
                answers[name] = ask(name, view_of(self.config, name).newest(steady))
            elif name == "dtw":
                part = steady[:, :, -self.config.dtw_samples :]
                verb = self.models[name].blame if counting else self.models[name].score
                answers[name] = verb(part, groups)
            elif scaled.shape[2] >= self.config.neighbor_profile.length:
                answers[name] = ask(name, steady)
        return answers

    def _scores(self, raw: Mapping[str, Floats]) -> Scores:
        nats = {name: self.calibrations[name].nats(part) for name, part in raw.items()}
        ensemble = self.calibrations["ensemble"].score(self._mean(nats))
        return Scores({name: squeeze(part) for name, part in nats.items()}, ensemble)

    def _mean(self, nats: Mapping[str, Floats]) -> Floats:
        """Weighted mean over the members that have an opinion, NaN where none has."""
        names = [name for name in nats if self._weights[name] > 0.0]
        if not names:
            raise DetectorError("no member of the vote has both a weight and data")
        stacked = np.stack([nats[name] for name in names])
        weights = np.array([self._weights[name] for name in names])[:, None] * ~np.isnan(stacked)
        total = weights.sum(axis=0)
        mean = (np.nan_to_num(stacked) * weights).sum(axis=0) / np.maximum(total, np.finfo(float).tiny)
        return np.where(total > 0.0, mean, np.nan)

    def to_arrays(self) -> Arrays:
        """State as arrays, keys prefixed by part; fit for ``np.savez``."""
        arrays = config_arrays(self.config)
        parts: dict[str, Any] = {"preparation": self.preparation}
        parts |= {f"model/{name}": model for name, model in self.models.items()}
        parts |= {f"calibration/{name}": one for name, one in self.calibrations.items()}
        for prefix, part in parts.items():
            arrays |= {f"{prefix}/{key}": value for key, value in part.to_arrays().items()}
        return arrays

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> Self:
        """Vote from `to_arrays`.

        Raises
        ------
        DetectorError
            If the state is damaged or names a model that does not exist.
        """
        config, _ = read(VoteConfig, arrays)
        parts: dict[str, dict[str, npt.NDArray[Any]]] = {}
        for key, value in arrays.items():
            prefix, slash, name = key.rpartition("/")
            if slash:
                parts.setdefault(prefix, {})[name] = value
        preparation = Preparation.from_arrays(parts.pop("preparation", {}))
        models: dict[str, RowModel | NeighborProfile | Dtw] = {}
        calibrations: dict[str, Calibration] = {}
        for prefix, part in parts.items():
            kind, _, name = prefix.partition("/")
            if kind == "calibration":
                calibrations[name] = Calibration.from_arrays(part)
            elif kind == "model" and name in ALL_MODELS:
                models[name] = ALL_MODELS[name].from_arrays(part)
            else:
                raise DetectorError(f"state of a vote names {prefix!r}, which does not exist")
        if set(calibrations) != {*models, "ensemble"}:
            raise DetectorError("state of a vote is damaged: calibrations and models differ")
        return cls(config, preparation, models, calibrations)
