"""The members of the metric vote: which views they take, how they are configured, how each is fitted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from trainwarden.detectors.metrics.bundle.preparation import PreparationConfig
from trainwarden.detectors.metrics.bundle.trailing import trailing_mean
from trainwarden.detectors.metrics.models.dtw import Dtw, DtwConfig
from trainwarden.detectors.metrics.models.forecast import Forecast, ForecastConfig
from trainwarden.detectors.metrics.models.kmeans import KMeans, KMeansConfig
from trainwarden.detectors.metrics.models.lof import Lof, LofConfig
from trainwarden.detectors.metrics.models.nearest import Nearest, NearestConfig
from trainwarden.detectors.metrics.models.neighbor_profile import NeighborProfile, NeighborProfileConfig
from trainwarden.detectors.metrics.models.pca import Pca, PcaConfig
from trainwarden.detectors.metrics.models.rows import Floats, whole
from trainwarden.detectors.metrics.models.zlength import ZLength, ZLengthConfig
from trainwarden.settings import Config

JUDGED_PER_ROW: Final = 4
"""Normal samples that are scored for each row of the calibration: enough that thinning loses nothing of the tail."""
WINDOW_SAMPLES: Final = 100_000
"""Samples that window models learn from: bounds memory, at 16 times as many values a metric for the profile's 1,600."""
WINDOW_ROWS: Final = 8_192
STRETCH: Final = 512
DTW_WINDOWS: Final = 600
"""Windows that ranks are compared in while learning."""

Member = Literal["zlength", "metric_change", "kmeans", "nearest", "pca", "lof", "forecast", "neighbor_profile", "dtw"]
Weight = Annotated[float, msgspec.Meta(ge=0.0, le=100.0)]


class View(Config, frozen=True, kw_only=True):
    """What a row model sees: the mean of the newest `mean_rows`, less the mean of the newest `less_rows` unless 0."""

    mean_rows: Annotated[int, msgspec.Meta(ge=1, le=256)] = 1
    less_rows: Annotated[int, msgspec.Meta(ge=0, le=1024)] = 0

    def rows(self, scaled: Floats, newest: int | None = None) -> Floats:
        """``[..., d, t]`` z-scores as seen at each time, or at the `newest` times alone."""
        now = trailing_mean(scaled, self.mean_rows, newest)
        return now - trailing_mean(scaled, self.less_rows, newest) if self.less_rows else now

    def complete_rows(self, scaled: Floats, newest: int) -> Floats:
        """`rows` at the `newest` times; a metric whose samples do not reach over all of the mean is missing."""
        rows, samples = self.rows(scaled, newest), newest + self.mean_rows - 1
        if self.mean_rows == 1 or not np.isnan(scaled).any():
            return rows
        before = np.full((*scaled.shape[:-1], max(0, samples - scaled.shape[-1])), np.nan)
        reached = np.concatenate([before, scaled[..., -samples:]], axis=-1)
        views = np.lib.stride_tricks.sliding_window_view(reached, self.mean_rows, axis=-1)
        return np.where(whole(views), rows, np.nan)

    @property
    def reach(self) -> int:
        """Samples that decide the newest value."""
        return max(self.mean_rows, self.less_rows)


class VoteConfig(Config, frozen=True, kw_only=True):
    """Members and how they are built; a member of weight 0 is scored and shown, but does not count.

    Views and weights were chosen on SMD machines 1-2, 1-4, 1-6 and the odd ASD servers; the length of the z-vector and
    plain LOF did not earn a weight there. Both members that look at how metrics go on weigh the same.
    """

    members: dict[Member, Weight] = msgspec.field(
        default_factory=lambda: {
            "metric_change": 2.0,
            "forecast": 2.0,
            "kmeans": 1.0,
            "nearest": 1.0,
            "pca": 1.0,
            "dtw": 1.0,
            "zlength": 0.0,
            "lof": 0.0,
            "neighbor_profile": 0.5,
        }
    )
    views: dict[Member, View] = msgspec.field(
        default_factory=lambda: {
            "zlength": View(),
            "metric_change": View(mean_rows=3, less_rows=30),
            "kmeans": View(mean_rows=15),
            "nearest": View(mean_rows=5),
            "pca": View(mean_rows=15),
            "lof": View(mean_rows=5),
        }
    )
    preparation: PreparationConfig = PreparationConfig()
    zlength: ZLengthConfig = ZLengthConfig()
    metric_change: ZLengthConfig = ZLengthConfig(least_spread=1.0)
    kmeans: KMeansConfig = KMeansConfig()
    nearest: NearestConfig = NearestConfig()
    pca: PcaConfig = PcaConfig()
    lof: LofConfig = LofConfig()
    forecast: ForecastConfig = ForecastConfig()
    neighbor_profile: NeighborProfileConfig = NeighborProfileConfig()
    dtw: DtwConfig = DtwConfig()
    dtw_samples: Annotated[int, msgspec.Meta(ge=4, le=1024)] = 60
    dtw_stride: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 5
    folds: Annotated[int, msgspec.Meta(ge=2, le=10)] = 3
    calibration_rows: Annotated[int, msgspec.Meta(ge=100, le=1_000_000)] = 20_000


ROW_MODELS: Final[dict[str, Any]] = {
    "zlength": ZLength,
    "metric_change": ZLength,
    "kmeans": KMeans,
    "nearest": Nearest,
    "pca": Pca,
    "lof": Lof,
}
WINDOW_MODELS: Final[dict[str, Any]] = {"forecast": Forecast, "neighbor_profile": NeighborProfile}
"""Their configs say how many samples they look at (`length`); what is held out is cut from a series before they fit."""
ALL_MODELS: Final[dict[str, Any]] = {**ROW_MODELS, **WINDOW_MODELS, "dtw": Dtw}


def by_name(table: Mapping[Any, Any]) -> dict[str, Any]:
    """`table` keyed by any string: which member is asked for is decided at run time."""
    return {str(name): value for name, value in table.items()}


def view_of(config: VoteConfig, name: str) -> View:
    view: View = by_name(config.views).get(name, View())
    return view


def thinned(values: Floats, limit: int) -> Floats:
    """At most `limit` of `values`, evenly spaced."""
    return values[:: max(1, -(-len(values) // limit))]


def judged_every(scaled: Sequence[Floats], config: VoteConfig) -> int:
    """Every so many samples one is scored for the calibration, the same for all members, so that their mean can be
    calibrated too; what is learnt from is not thinned by this.
    """
    total = sum(int(one.shape[1]) for one in scaled)
    return max(1, total // (JUDGED_PER_ROW * int(config.calibration_rows)))


@dataclass(frozen=True, slots=True)
class NormalSeries:
    """Normal series as z-scores ``scaled [d, t]``, the fold ``blocks [t]`` that each sample is judged in by models that
    have not seen it, and of how many samples one is judged.
    """

    scaled: Sequence[Floats]
    blocks: Sequence[npt.NDArray[np.intp]]
    every: int


def fit_rows(name: str, normal: NormalSeries, config: VoteConfig, seed: int) -> tuple[Any, list[Floats]]:
    """A row model and, per series, its scores by models that had not seen the block."""
    scaled, blocks, every = normal.scaled, normal.blocks, normal.every
    kind, settings = ROW_MODELS[name], getattr(config, name)
    seen = [view_of(config, name).rows(one).T for one in scaled]
    scores = [np.full(len(one), np.nan) for one in seen]
    for fold in np.unique(np.concatenate(blocks)).tolist():
        rest = np.concatenate([one[block != fold] for one, block in zip(seen, blocks, strict=True)])
        model = kind.fit(rest, settings, seed)
        for one, block, out in zip(seen, blocks, scores, strict=True):
            judged = np.flatnonzero(block == fold)
            judged = judged[judged % every == 0]
            if judged.size:
                out[judged] = model.score(one[judged])
    return kind.fit(np.concatenate(seen), settings, seed), scores


def fit_windows(name: str, normal: NormalSeries, config: VoteConfig, seed: int) -> tuple[Any, list[Floats]]:
    """A window model and, per series, its scores by models that had not seen the block."""
    scaled, blocks, every = normal.scaled, normal.blocks, normal.every
    kind, settings = WINDOW_MODELS[name], getattr(config, name)
    scores = [np.full(one.shape[1], np.nan) for one in scaled]
    for fold in np.unique(np.concatenate(blocks)).tolist():
        pieces = [
            one[:, part].T
            for one, block in zip(scaled, blocks, strict=True)
            for part in (block < fold, block > fold)
            if part.sum() >= settings.length
        ]
        model = kind.fit(_fewer(pieces), settings, seed)
        for one, block, out in zip(scaled, blocks, scores, strict=True):
            ends = np.flatnonzero(block == fold)
            ends = ends[settings.length - 1 :]
            ends = ends[ends % every == 0]
            views = np.lib.stride_tricks.sliding_window_view(one, settings.length, axis=1) if ends.size else None
            for first in range(0, len(ends), WINDOW_ROWS):
                part = ends[first : first + WINDOW_ROWS]
                if views is not None:
                    out[part] = model.score(views[:, part - settings.length + 1].transpose(1, 0, 2))
    return kind.fit(_fewer([one.T for one in scaled]), settings, seed), scores


def _fewer(pieces: Sequence[Floats]) -> list[Floats]:
    """Evenly spaced stretches of `pieces` ``[t, d]``, `WINDOW_SAMPLES` samples of them at most."""
    total = sum(len(one) for one in pieces)
    if total <= WINDOW_SAMPLES:
        return list(pieces)
    stretches = [one[first : first + STRETCH] for one in pieces for first in range(0, len(one), STRETCH)]
    return stretches[:: -(-total // WINDOW_SAMPLES)]


def window_block(model: Any, scaled: Floats, newest: int) -> Floats:
    """Scores ``[r, newest]`` of the subsequences that end at the newest times of ``scaled [r, d, t]``."""
    length, samples = model.config.length, scaled.shape[2]
    scores = np.full((len(scaled), newest), np.nan)
    whole = min(newest, samples - length + 1)
    if whole > 0:
        part = scaled[:, :, samples - whole - length + 1 :]
        windows = np.lib.stride_tricks.sliding_window_view(part, length, axis=2).transpose(0, 2, 1, 3)
        # Of one entity, or at one time, they are there already: nothing is copied.
        one = windows[0] if len(windows) == 1 else windows[:, 0]
        flat = one if 1 in windows.shape[:2] else windows.reshape(-1, *windows.shape[2:])
        scores[:, newest - whole :] = model.score(flat).reshape(len(scaled), whole)
    return scores


def fit_dtw(scaled: Sequence[Floats], every: int, config: VoteConfig) -> tuple[Dtw, list[Floats]]:
    """DTW across all series, and its scores where a window ends, NaN elsewhere."""
    samples = min(one.shape[1] for one in scaled)
    aligned = np.stack([one[:, :samples] for one in scaled])
    length = min(config.dtw_samples, samples)
    step = max(1, length // 4, samples // DTW_WINDOWS)
    # Where the other members are judged too, so that the vote is calibrated on all of them together.
    ends = np.arange(length + (1 - length) % every, samples + 1, -(-step // every) * every)
    if not ends.size:
        ends = np.array([samples])
    windows = [aligned[:, :, end - length : end] for end in ends]
    model = Dtw.fit(windows, config.dtw, 0)
    scores = np.full((len(scaled), samples), np.nan)
    for end, window in zip(ends, windows, strict=True):
        scores[:, end - 1] = model.score(window)
    return model, [
        np.append(row, np.full(one.shape[1] - samples, np.nan)) for row, one in zip(scores, scaled, strict=True)
    ]
