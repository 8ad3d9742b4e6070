"""From recorded metrics to what the models take: which metrics are worth keeping, on what scale, seen over how long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Self

import msgspec
import numpy as np
import numpy.typing as npt

from detectors.models.rows import Arrays, Floats, config_arrays, read
from trainwarden.errors import DetectorError
from trainwarden.settings import Config


class PreparationConfig(Config, frozen=True, kw_only=True):
    """`duplicate_correlation` and above is a near-duplicate; below `measured_share` a metric is too rarely there.

    `switching_lag1` marks a metric as fast-switching (traffic of a NIC or an NVLink) where neighbouring samples
    correlate less; it is then replaced by its median over `median_rows`. `spread_share` of the training range is added
    to every spread. `memory_rows` bounds how slowly the scale follows the job.
    """

    duplicate_correlation: Annotated[float, msgspec.Meta(gt=0.5, le=1.0)] = 0.99
    measured_share: Annotated[float, msgspec.Meta(ge=0.0, le=1.0)] = 0.5
    switching_lag1: Annotated[float, msgspec.Meta(ge=-1.0, le=1.0)] = 0.1
    median_rows: Annotated[int, msgspec.Meta(ge=1, le=15)] = 3
    spread_share: Annotated[float, msgspec.Meta(gt=0.0, le=0.1)] = 1e-3
    memory_rows: Annotated[float, msgspec.Meta(ge=10.0)] = 1e5


@dataclass(frozen=True, slots=True)
class Dropped:
    """A metric that training left out; `twin` is the kept metric that says the same."""

    name: str
    why: str
    twin: str | None = None


@dataclass(frozen=True, slots=True)
class Scale:
    """Running mean and spread of each metric, for one series ``[d]`` or many ``[r, d]``; never changed, only followed.

    Learns from every sample it scales, itself included, so a spread can only be moved by what was already seen.
    """

    count: Floats
    mean: Floats
    squares: Floats
    floor: Floats

    def apply(self, values: Floats) -> Floats:
        """z-scores of ``values [..., d, t]`` on this scale as it stands."""
        spread = np.sqrt(self.squares / np.maximum(self.count, 1.0)) + self.floor
        return np.asarray((values - self.mean[..., None]) / spread[..., None], dtype=np.float64)

    def follow(self, values: Floats, memory_rows: float) -> tuple[Floats, Scale]:
        """z-scores of ``values [..., d, t]``, each on the scale up to and with itself, and the scale after the last.

        Sample by sample, so that where a stream is cut changes nothing. From `memory_rows` samples on old ones fade.
        """
        count, mean, squares = self.count.copy(), self.mean.copy(), self.squares.copy()
        out = np.empty_like(values)
        for t in range(values.shape[-1]):
            now = values[..., t]
            missing = np.isnan(now)
            offset = np.where(missing, 0.0, now - mean)
            grown = count + ~missing
            mean = mean + offset / np.maximum(grown, 1.0)
            squares = squares + offset * np.where(missing, 0.0, now - mean)
            fade = np.minimum(1.0, memory_rows / np.maximum(grown, 1.0))
            count, squares = grown * fade, squares * fade
            out[..., t] = (now - mean) / (np.sqrt(squares / np.maximum(count, 1.0)) + self.floor)
        return out, Scale(count, mean, squares, self.floor)

    def repeated(self, series: int) -> Scale:
        """The same scale for `series` series, each then on its own, ``[series, d]``."""
        return Scale(*(np.tile(part, (series, 1)) for part in (self.count, self.mean, self.squares, self.floor)))


class Preparation:
    """Which metrics are kept, and their normal scale.

    Examples
    --------
    >>> load = np.random.default_rng(0).normal(size=(200, 1))
    >>> rows = np.concatenate([load, 2 * load, np.full((200, 1), 7.0)], axis=1)
    >>> preparation = Preparation.fit([rows], ["load", "load_twice", "seven"], PreparationConfig())
    >>> preparation.names, [(one.name, one.why) for one in preparation.dropped]
    (['load'], [('load_twice', 'near-duplicate of load (correlation 1.000)'), ('seven', 'constant')])
    """

    Config = PreparationConfig

    def __init__(
        self,
        config: PreparationConfig,
        columns: npt.NDArray[np.intp],
        switching: npt.NDArray[np.bool_],
        scale: Scale,
        all_names: Sequence[str],
        dropped: Sequence[Dropped],
    ) -> None:
        self.config = config
        self.scale = scale
        self.all_names = list(all_names)
        self.dropped = list(dropped)
        self.names = [self.all_names[column] for column in columns]
        self._columns = columns
        self.switching = switching

    @classmethod
    def fit(cls, series: Sequence[npt.ArrayLike], names: Sequence[str], config: PreparationConfig) -> Self:
        """Choose metrics and learn their scale from normal `series`, each ``[t, d]`` in time order.

        Raises
        ------
        DetectorError
            If there is no row, the names do not fit, or no metric is worth keeping.
        """
        arrays = [np.asarray(one, dtype=np.float64) for one in series]
        if not arrays or any(one.ndim != 2 or one.shape[1] != len(names) for one in arrays):
            raise DetectorError(f"every series must be [samples, {len(names)}]")
        rows = np.where(np.isinf(pooled := np.concatenate(arrays)), np.nan, pooled)
        columns, dropped = _selected(rows, names, config)
        if not columns.size:
            raise DetectorError("no metric is worth keeping: all are constant or hardly ever measured")
        kept = rows[:, columns]
        count = (~np.isnan(kept)).sum(axis=0).astype(np.float64)
        spread = np.nanmax(kept, axis=0) - np.nanmin(kept, axis=0)
        squares = np.nanvar(kept, axis=0) * count
        scale = Scale(count, np.nanmean(kept, axis=0), squares, config.spread_share * spread)
        lag1 = np.array([_lag1([one[:, column] for one in arrays]) for column in columns])
        return cls(config, columns, lag1 < config.switching_lag1, scale, names, dropped)

    def values(self, windows: npt.ArrayLike) -> Floats:
        """The kept metrics of ``windows [..., d_all, t]``, what is not finite as NaN.

        Raises
        ------
        DetectorError
            If the number of metrics is not that of training.
        """
        array = np.asarray(windows, dtype=np.float64)
        if array.ndim < 2 or array.shape[-2] != len(self.all_names):
            raise DetectorError(f"windows {array.shape} do not have the {len(self.all_names)} metrics of training")
        kept = array[..., self._columns, :]
        return np.where(np.isfinite(kept), kept, np.nan)

    def steadied(self, scaled: Floats) -> Floats:
        """``scaled [..., d, t]`` with fast-switching metrics replaced by their trailing median."""
        rows = self.config.median_rows
        if rows == 1 or not self.switching.any():
            return scaled
        steady = scaled.copy()
        steady[..., self.switching, :] = trailing_median(scaled[..., self.switching, :], rows)
        return steady

    def with_twins(self, name: str) -> list[str]:
        """`name` and the near-duplicates that it stands for, the kept one first."""
        return [name, *(one.name for one in self.dropped if one.twin == name)]

    def to_arrays(self) -> Arrays:
        """State as arrays; names and reasons travel as UTF-8 bytes."""
        text = msgspec.json.encode([self.all_names, [[one.name, one.why, one.twin] for one in self.dropped]])
        parts = {"count": self.scale.count, "mean": self.scale.mean, "squares": self.scale.squares}
        flags = {"columns": self._columns, "switching": self.switching, "floor": self.scale.floor}
        return {**config_arrays(self.config), **parts, **flags, "text": np.frombuffer(text, dtype=np.uint8)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> Self:
        """Preparation from `to_arrays`; raises DetectorError where the state is damaged."""
        config, (count, mean, squares, floor) = read(PreparationConfig, arrays, "count", "mean", "squares", "floor")
        try:
            kind = tuple[list[str], list[tuple[str, str, str | None]]]
            names, dropped = msgspec.json.decode(np.asarray(arrays["text"], dtype=np.uint8).tobytes(), type=kind)
            columns = np.asarray(arrays["columns"], dtype=np.intp)
            switching = np.asarray(arrays["switching"], dtype=np.bool_)
        except (KeyError, ValueError, msgspec.MsgspecError) as error:
            raise DetectorError(f"state of a preparation is damaged: {error}") from error
        shapes = {part.shape for part in (columns, switching, count, mean, squares, floor)}
        if len(shapes) != 1 or columns.ndim != 1 or not all(0 <= column < len(names) for column in columns):
            raise DetectorError("state of a preparation is damaged: shapes differ")
        scale = Scale(count, mean, squares, floor)
        return cls(config, columns, switching, scale, names, [Dropped(*one) for one in dropped])


def trailing_mean(values: Floats, rows: int, newest: int | None = None) -> Floats:
    """Mean of the newest `rows` samples at each time, along the last axis, gaps left out; fewer at the start.

    With `newest` only the last so many times are worked out.

    Examples
    --------
    >>> trailing_mean(np.array([2.0, 4.0, np.nan, 6.0]), 2).tolist()
    [2.0, 3.0, 4.0, 6.0]
    >>> trailing_mean(np.array([2.0, 4.0, np.nan, 6.0]), 2, newest=1).tolist()
    [6.0]
    """
    samples = values.shape[-1]
    first = 0 if newest is None else max(samples - newest, 0)
    part = values[..., max(first - rows + 1, 0) :]
    first = min(first, rows - 1)
    missing = np.isnan(part)
    gaps = bool(missing.any())
    plain = np.where(missing, 0.0, part) if gaps else part
    sums = plain[..., first:].copy()
    counts = (~missing[..., first:]).astype(np.float64) if gaps else np.ones(sums.shape[-1])
    # Added sample by sample: a running sum would make the result depend on what lies before the window.
    for back in range(1, min(rows, part.shape[-1])):
        low, high = max(first - back, 0), part.shape[-1] - back
        late = max(back - first, 0)
        sums[..., late:] += plain[..., low:high]
        counts[..., late:] += ~missing[..., low:high] if gaps else 1.0
    if not gaps:
        return np.asarray(sums / counts, dtype=np.float64)
    return np.where(counts > 0, sums / np.maximum(counts, 1.0), np.nan)


def trailing_median(values: Floats, rows: int) -> Floats:
    """Median of the newest `rows` samples at each time, along the last axis; NaN stays where it was.

    Examples
    --------
    >>> trailing_median(np.array([1.0, 9.0, 1.0, 1.0]), 3).tolist()
    [1.0, 5.0, 1.0, 1.0]
    """
    if rows == 3 and values.shape[-1] >= 3:
        return _median_of_three(values)
    lags = [np.full_like(values, np.nan) for _ in range(rows)]
    for back, lag in enumerate(lags[: values.shape[-1]]):
        lag[..., back:] = values[..., : values.shape[-1] - back]
    stacked = np.sort(np.stack(lags), axis=0)  # NaN last
    counts = (~np.isnan(stacked)).sum(axis=0)
    low = np.take_along_axis(stacked, np.maximum((counts - 1) // 2, 0)[None], axis=0)[0]
    high = np.take_along_axis(stacked, (counts // 2).clip(max=rows - 1)[None], axis=0)[0]
    return np.where(np.isnan(values), np.nan, (low + high) / 2.0)


def _median_of_three(values: Floats) -> Floats:
    """`trailing_median` over three samples, without sorting; of two samples the median is their mean."""
    old, mid, new = values[..., :-2], values[..., 1:-1], values[..., 2:]
    middle = np.maximum(np.minimum(old, mid), np.minimum(np.maximum(old, mid), new))
    second = (values[..., 0:1] + values[..., 1:2]) / 2.0
    found = np.concatenate([values[..., 0:1], second, middle], axis=-1)
    # What a gap has spoilt above is the mean of the one or two samples that there are.
    spoilt = np.isnan(found) & ~np.isnan(values)
    return np.where(spoilt, trailing_mean(values, 3), found) if spoilt.any() else found


def _selected(
    rows: Floats, names: Sequence[str], config: PreparationConfig
) -> tuple[npt.NDArray[np.intp], list[Dropped]]:
    """Columns to keep, and the others with reasons, in the order of `names`."""
    measured = ~np.isnan(rows)
    share = measured.mean(axis=0) if len(rows) else np.zeros(len(names))
    kept: list[int] = []
    dropped: list[Dropped] = []
    standard = np.zeros_like(rows)
    for column, name in enumerate(names):
        values = rows[measured[:, column], column]
        if not values.size or share[column] < config.measured_share:
            dropped.append(Dropped(name, f"measured in only {share[column]:.0%} of the rows"))
            continue
        # Rounding alone makes a constant vary by about 1e-16 of its size.
        if np.ptp(values) <= 1e-12 * np.abs(values).max():
            dropped.append(Dropped(name, "constant"))
            continue
        standard[measured[:, column], column] = (values - values.mean()) / (values.std() * np.sqrt(values.size))
        alike = np.abs(standard[:, kept].T @ standard[:, column])
        if alike.size and alike.max() >= config.duplicate_correlation:
            twin = names[kept[int(alike.argmax())]]
            dropped.append(Dropped(name, f"near-duplicate of {twin} (correlation {alike.max():.3f})", twin))
            continue
        kept.append(column)
    return np.array(kept, dtype=np.intp), dropped


def _lag1(series: Sequence[Floats]) -> float:
    """Correlation of neighbouring samples, 1 where nothing can be said."""
    pairs = np.concatenate([np.stack([one[:-1], one[1:]], axis=1) for one in series])
    pairs = pairs[np.isfinite(pairs).all(axis=1)]
    if len(pairs) < 8 or (spread := pairs.std(axis=0)).min() <= 0.0:
        return 1.0
    return float(np.mean((pairs - pairs.mean(axis=0)).prod(axis=1)) / spread.prod())
