"""The members of the metric vote: which views they take, how they are configured, how each is fitted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from detectors.models.dtw import Dtw, DtwConfig
from detectors.models.kmeans import KMeans, KMeansConfig
from detectors.models.lof import Lof, LofConfig
from detectors.models.nearest import Nearest, NearestConfig
from detectors.models.neighbor_profile import NeighborProfile, NeighborProfileConfig
from detectors.models.pca import Pca, PcaConfig
from detectors.models.preparation import PreparationConfig, newest_mean, trailing_mean
from detectors.models.rows import Floats
from detectors.models.zlength import ZLength, ZLengthConfig
from trainwarden.settings import Config

Member = Literal["zlength", "change", "kmeans", "nearest", "pca", "lof", "neighbor_profile", "dtw"]
Weight = Annotated[float, msgspec.Meta(ge=0.0, le=100.0)]


class View(Config, frozen=True, kw_only=True):
    """What a row model sees: the mean of the newest `mean_rows`, less the mean of the newest `less_rows` unless 0."""

    mean_rows: Annotated[int, msgspec.Meta(ge=1, le=256)] = 1
    less_rows: Annotated[int, msgspec.Meta(ge=0, le=1024)] = 0

    def rows(self, scaled: Floats) -> Floats:
        """``[..., d, t]`` z-scores as seen at each time, same shape."""
        now = trailing_mean(scaled, self.mean_rows)
        return now - trailing_mean(scaled, self.less_rows) if self.less_rows else now

    def newest(self, scaled: Floats) -> Floats:
        """The last time of `rows`, ``[..., d]``."""
        now = newest_mean(scaled, self.mean_rows)
        return now - newest_mean(scaled, self.less_rows) if self.less_rows else now

    @property
    def reach(self) -> int:
        """Samples that decide the newest value."""
        return max(self.mean_rows, self.less_rows)


class VoteConfig(Config, frozen=True, kw_only=True):
    """Members and how they are built; a member of weight 0 is scored and shown, but does not count.

    Views and weights were chosen on SMD machines 1-2, 1-4, 1-6 and the odd ASD servers; the length of the z-vector and
    plain LOF did not earn a weight there.
    """

    members: dict[Member, Weight] = msgspec.field(
        default_factory=lambda: {
            "change": 2.0,
            "kmeans": 1.0,
            "nearest": 1.0,
            "pca": 1.0,
            "dtw": 1.0,
            "zlength": 0.0,
            "lof": 0.0,
            "neighbor_profile": 1.0,
        }
    )
    views: dict[Member, View] = msgspec.field(
        default_factory=lambda: {
            "zlength": View(),
            "change": View(mean_rows=3, less_rows=30),
            "kmeans": View(mean_rows=15),
            "nearest": View(mean_rows=5),
            "pca": View(mean_rows=15),
            "lof": View(mean_rows=5),
        }
    )
    preparation: PreparationConfig = PreparationConfig()
    zlength: ZLengthConfig = ZLengthConfig()
    change: ZLengthConfig = ZLengthConfig(least_spread=1.0)
    kmeans: KMeansConfig = KMeansConfig()
    nearest: NearestConfig = NearestConfig()
    pca: PcaConfig = PcaConfig()
    lof: LofConfig = LofConfig()
    neighbor_profile: NeighborProfileConfig = NeighborProfileConfig()
    dtw: DtwConfig = DtwConfig()
    dtw_samples: Annotated[int, msgspec.Meta(ge=4, le=1024)] = 60
    folds: Annotated[int, msgspec.Meta(ge=2, le=10)] = 3
    calibration_rows: Annotated[int, msgspec.Meta(ge=100, le=1_000_000)] = 20_000


ROW_MODELS: Final[dict[str, Any]] = {
    "zlength": ZLength,
    "change": ZLength,
    "kmeans": KMeans,
    "nearest": Nearest,
    "pca": Pca,
    "lof": Lof,
}
ALL_MODELS: Final[dict[str, Any]] = {**ROW_MODELS, "neighbor_profile": NeighborProfile, "dtw": Dtw}


def by_name(table: Mapping[Any, Any]) -> dict[str, Any]:
    """`table` keyed by any string: which member is asked for is decided at run time."""
    return {str(name): value for name, value in table.items()}


def view_of(config: VoteConfig, name: str) -> View:
    view: View = by_name(config.views).get(name, View())
    return view


def thinned(values: Floats, limit: int) -> Floats:
    """At most `limit` of `values`, evenly spaced."""
    return values[:: max(1, -(-len(values) // limit))]


def _fold_of(samples: int, folds: int) -> npt.NDArray[np.intp]:
    """The block of time that each sample belongs to."""
    return np.arange(samples) * folds // max(samples, 1)


def fit_rows(name: str, scaled: Sequence[Floats], config: VoteConfig, seed: int) -> tuple[Any, list[Floats]]:
    """A row model and, per series, its scores by models that had not seen the block."""
    kind, settings = ROW_MODELS[name], getattr(config, name)
    seen = [view_of(config, name).rows(one).T for one in scaled]
    blocks = [_fold_of(len(one), config.folds) for one in seen]
    scores = [np.full(len(one), np.nan) for one in seen]
    for fold in range(config.folds):
        rest = np.concatenate([one[block != fold] for one, block in zip(seen, blocks, strict=True)])
        model = kind.fit(rest, settings, seed)
        for one, block, out in zip(seen, blocks, scores, strict=True):
            out[block == fold] = model.score(one[block == fold])
    return kind.fit(np.concatenate(seen), settings, seed), scores


def fit_profile(scaled: Sequence[Floats], config: VoteConfig, seed: int) -> tuple[NeighborProfile, list[Floats]]:
    """The neighbor profile; a block held out is cut from its series before bags are drawn."""
    settings = config.neighbor_profile
    blocks = [_fold_of(one.shape[1], config.folds) for one in scaled]
    scores = [np.full(one.shape[1], np.nan) for one in scaled]
    for fold in range(config.folds):
        pieces = [
            one[:, part].T
            for one, block in zip(scaled, blocks, strict=True)
            for part in (block < fold, block > fold)
            if part.sum() >= settings.length
        ]
        model = NeighborProfile.fit(pieces, settings, seed)
        for one, block, out in zip(scaled, blocks, scores, strict=True):
            out[block == fold] = profile_series(model, one[:, block == fold])
    return NeighborProfile.fit([one.T for one in scaled], settings, seed), scores


def profile_series(model: NeighborProfile, scaled: Floats) -> Floats:
    """Scores ``[t]`` of ``scaled [d, t]``, NaN until the first whole subsequence."""
    length, samples = model.config.length, scaled.shape[1]
    scores = np.full(samples, np.nan)
    if samples >= length:
        windows = np.lib.stride_tricks.sliding_window_view(scaled, length, axis=1).transpose(1, 0, 2)
        scores[length - 1 :] = model.score(windows)
    return scores


def fit_dtw(scaled: Sequence[Floats], config: VoteConfig) -> tuple[Dtw, list[Floats]]:
    """DTW across all series, and its scores where a window ends, NaN elsewhere."""
    samples = min(one.shape[1] for one in scaled)
    aligned = np.stack([one[:, :samples] for one in scaled])
    length = min(config.dtw_samples, samples)
    step = max(1, length // 4)
    ends = np.arange(length, samples + 1, step)
    windows = [aligned[:, :, end - length : end] for end in ends]
    model = Dtw.fit(windows, config.dtw, 0)
    scores = np.full((len(scaled), samples), np.nan)
    for end, window in zip(ends, windows, strict=True):
        scores[:, end - 1] = model.score(window)
    return model, [
        np.append(row, np.full(one.shape[1] - samples, np.nan)) for row, one in zip(scores, scaled, strict=True)
    ]
