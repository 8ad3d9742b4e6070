"""The metric vote: every model on its own view of the prepared metrics, calibrated, and their weighted mean."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from trainwarden.detectors.metrics.bundle.calibration import Calibration, squeeze
from trainwarden.detectors.metrics.bundle.learning import learn
from trainwarden.detectors.metrics.bundle.members import (
    ALL_MODELS,
    ROW_MODELS,
    WINDOW_MODELS,
    VoteConfig,
    by_name,
    view_of,
    window_block,
)
from trainwarden.detectors.metrics.bundle.on_columns import model_of
from trainwarden.detectors.metrics.bundle.peers import ALONE, CachedComparison, PeerContext, RankComparison
from trainwarden.detectors.metrics.bundle.preparation import Preparation
from trainwarden.detectors.metrics.bundle.sampling_interval import SamplingInterval
from trainwarden.detectors.metrics.bundle.scale import Scale
from trainwarden.detectors.metrics.bundle.trailing import filled
from trainwarden.detectors.metrics.bundle.weighing import shares_of, weighted_mean
from trainwarden.detectors.metrics.models.rows import Arrays, Floats, config_arrays, read
from trainwarden.errors import DetectorError

TILE_ROWS: Final = 4_096
"""Entity-times scored at once: bounds memory (about 40 MB a step at 20 metrics) and stays near the cache."""


@dataclass(frozen=True, slots=True)
class Scores:
    """Calibrated scores 0..1, ``[r]`` at one time or ``[r, k]`` at the newest k; NaN where a member abstains."""

    members: dict[str, Floats]
    ensemble: Floats
    held: CachedComparison | None = None


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
        pace: SamplingInterval | None = None,
    ) -> None:
        self.config = config
        self.pace = pace  # None: not known, in bundles that were made before it was kept
        self.left_out: Sequence[str] = ()  # why members could not be learnt; not kept
        self.preparation = preparation
        self.models = dict(models)
        self.calibrations = dict(calibrations)  # one per member and "ensemble"
        # A member that the mean was not calibrated with (a newer version's) has its own vote, and no part in the mean.
        self._weights = {**dict.fromkeys(models, 0.0), **by_name(config.members)}

    @classmethod
    def fit(
        cls,
        series: Sequence[npt.ArrayLike],
        names: Sequence[str],
        config: VoteConfig,
        seed: int,
        *,
        peers: bool | Sequence[int] = False,
        owners: Sequence[Hashable] | None = None,
        smallest: Floats | float = 0.0,
    ) -> Self:
        """Learn from normal `series`, each ``[t, d]`` of one entity in time order.

        With `peers` all series (or those at the places given) share their times and their role, and `dtw` is fitted
        too. `owners` says which series are of one entity, by default none are, and `smallest` ``[d]`` what a metric's
        spread is at least. Calibrations come from blocks of time
        (of entities where each has its own scale) that the scoring model has not seen, `config.folds` of them; the
        models kept have seen everything. A member for which there is too little is left out.

        Raises
        ------
        DetectorError
            If there is too little to learn from for every member that counts.
        """
        found = learn(series, names, config, seed, peers=peers, owners=owners, smallest=smallest)
        vote = cls(config, found.preparation, found.models, found.calibrations)
        vote.left_out = found.left_out
        return vote

    @property
    def reach_samples(self) -> int:
        """Samples that decide the newest score of all members but dtw."""
        reach = [view_of(self.config, name).reach for name in self.models if name in ROW_MODELS]
        reach += [model.config.length for name, model in self.models.items() if name in WINDOW_MODELS]
        return max(reach, default=1) + self.config.preparation.median_rows - 1

    @property
    def window_samples(self) -> int:
        """Samples that `score` and `blame` need to see everything; more are ignored by all but nothing is lost."""
        peers = self.config.dtw_samples + self.config.preparation.median_rows - 1 if "dtw" in self.models else 1
        return max(self.reach_samples, peers)

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
        block = self.score_block(scaled, 1, PeerContext(groups))
        members = {name: part[:, 0] for name, part in block.members.items()}
        return Scores(members, block.ensemble[:, 0], block.held)

    def score_block(self, scaled: Floats, newest: int, beside: PeerContext = ALONE) -> Scores:
        """Scores ``[r, k]`` at the `newest` k times of each rank from z-scores ``[r, d, m + k]``; causal.

        What is needed of the m older samples is `window_samples` - 1; with fewer, views look back on less.

        Parameters
        ----------
        beside : Beside, optional
            What ranks are compared with (for dtw).

        Raises
        ------
        DetectorError
            If the metrics are not those of training.
        """
        if scaled.ndim != 3 or scaled.shape[1] != len(self.preparation.names) or not 1 <= newest <= scaled.shape[2]:
            wanted = f"[ranks, {len(self.preparation.names)}, samples] with at least {max(newest, 1)} samples"
            raise DetectorError(f"z-scores {scaled.shape} must be {wanted}")
        raw = {name: np.full((len(scaled), newest), np.nan) for name in self.models if name != "dtw"}
        held = None
        times = min(newest, TILE_ROWS)
        ranks = max(1, TILE_ROWS // times)
        for first in range(0, len(scaled), ranks):
            for start in range(0, newest, times):
                end = min(start + times, newest)
                part = slice(first, first + ranks), slice(start, end)
                for name, found in self._tile(scaled[part[0]], newest, start, end).items():
                    raw[name][part] = found
        if "dtw" in self.models:
            peers = RankComparison(self.models["dtw"], self.preparation, self.config)
            raw["dtw"], held = peers.scores(scaled, newest, beside)
        return self._scores(raw, (len(scaled), newest), held)

    def _tile(self, scaled: Floats, newest: int, start: int, end: int) -> dict[str, Floats]:
        """Raw scores ``[r, end - start]`` of all members but dtw at the newest times `start` to `end`."""
        samples, width = scaled.shape[2], end - start
        last = samples - newest + end
        # The trailing median of the first sample of a window needs what lies before the window.
        part = scaled[:, :, max(0, last - width - self.reach_samples + 1) : last]
        steady = self.preparation.steadied(part)
        there = np.asarray(~np.isnan(part).all(axis=1), dtype=np.bool_)
        found: dict[str, Floats] = {}
        for name, model in self.models.items():
            if name in ROW_MODELS:
                view = view_of(self.config, name)
                rows = view.complete_rows(steady, width).transpose(0, 2, 1)
                scores = model.score(rows.reshape(-1, rows.shape[2])).reshape(rows.shape[:2])
                found[name] = np.where(filled(there, view.mean_rows, width), scores, np.nan)
            elif name in WINDOW_MODELS:
                found[name] = window_block(model, steady, width)
        return found

    def blame(self, scaled: Floats, groups: npt.ArrayLike | None = None) -> Floats:
        """Share of each kept metric in the counting members' blame, ``[r, d]``; rows sum to 1, or 0 without blame."""
        if scaled.ndim != 3 or scaled.shape[1] != len(self.preparation.names) or not scaled.shape[2]:
            raise DetectorError(f"z-scores {scaled.shape} must be [ranks, {len(self.preparation.names)}, samples]")
        steady = self.preparation.steadied(scaled)
        parts: dict[str, Floats] = {}
        for name, model in self.models.items():
            if not self._weights[name]:
                continue
            if name in ROW_MODELS:
                parts[name] = model.blame(view_of(self.config, name).rows(steady, 1)[..., 0])
            elif name == "dtw":
                parts[name] = model.blame(steady[:, :, -self.config.dtw_samples :], groups)
            elif scaled.shape[2] >= model.config.length:
                parts[name] = model.blame(steady)
        return shares_of(parts, self._weights, (len(scaled), len(self.preparation.names)))

    def blamed(self, scaled: Floats, first: int = 3, groups: npt.ArrayLike | None = None) -> list[list[str]]:
        """For each rank the `first` most blamed metrics, each followed by the near-duplicates it stands for."""
        shares = self.blame(scaled, groups)
        order = np.argsort(-shares, axis=1, kind="stable")[:, :first]
        names, twins = self.preparation.names, self.preparation.with_twins
        # Once each: models of two training runs may both see a metric, each on its own scale.
        return [list(dict.fromkeys(twin for column in row for twin in twins(names[column]))) for row in order]

    def score_series(self, series: npt.ArrayLike, scale: Scale | None = None) -> tuple[Scores, Scale]:
        """Scores ``[t]`` at every time of one entity's ``[t, d_all]``, and the scale after it; causal, without dtw.

        Equal to following it sample by sample, but for the first rows, where a view has less to look back on.
        """
        values = self.preparation.values(np.asarray(series, dtype=np.float64).T)
        start = self.preparation.scale if scale is None else scale
        scaled, after = start.follow(values, self.config.preparation.memory_rows)
        block = self.without(("dtw",)).score_block(scaled[None], scaled.shape[1])
        return Scores({name: part[0] for name, part in block.members.items()}, block.ensemble[0]), after

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
        return shares_of(parts, self._weights, values.T.shape)

    def without(self, names: Collection[str]) -> Self:
        """The same vote without the members of `names`, which then have no score."""
        models = {name: model for name, model in self.models.items() if name not in names}
        if models == self.models:
            return self
        return type(self)(self.config, self.preparation, models, self.calibrations, self.pace)

    def _scores(self, raw: Mapping[str, Floats], shape: tuple[int, int], held: CachedComparison | None) -> Scores:
        nats = {name: self.calibrations[name].nats(part) for name, part in raw.items()}
        ensemble = self.calibrations["ensemble"].score(weighted_mean(nats, self._weights, shape))
        return Scores({name: squeeze(part) for name, part in nats.items()}, ensemble, held)

    def to_arrays(self) -> Arrays:
        """State as arrays, keys prefixed by part; fit for ``np.savez``."""
        arrays = config_arrays(self.config)
        parts: dict[str, Any] = {"preparation": self.preparation}
        parts |= {f"model/{name}": model for name, model in self.models.items()}
        parts |= {f"calibration/{name}": one for name, one in self.calibrations.items()}
        for prefix, part in parts.items():
            arrays |= {f"{prefix}/{key}": value for key, value in part.to_arrays().items()}
        return arrays if self.pace is None else {**arrays, "pace": self.pace.to_array()}

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
        models: dict[str, Any] = {}
        calibrations: dict[str, Calibration] = {}
        for prefix, part in parts.items():
            kind, _, name = prefix.partition("/")
            if kind == "calibration":
                calibrations[name] = Calibration.from_arrays(part)
            elif kind == "model" and name in ALL_MODELS:
                models[name] = model_of(name, part)
            else:
                raise DetectorError(f"state of a vote names {prefix!r}, which does not exist")
        if set(calibrations) != {*models, "ensemble"}:
            raise DetectorError("state of a vote is damaged: calibrations and models differ")
        pace = SamplingInterval.from_array(arrays["pace"]) if "pace" in arrays else None
        return cls(config, preparation, models, calibrations, pace)
