"""From recorded metrics to what the models take: which metrics are worth keeping, on what scale, seen over how long."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, Self

import msgspec
import numpy as np
import numpy.typing as npt

from trainwarden.detectors.job.samples import MOST
from trainwarden.detectors.metrics.bundle.levels import Levels
from trainwarden.detectors.metrics.bundle.scale import Scale
from trainwarden.detectors.metrics.bundle.trailing import trailing_median
from trainwarden.detectors.metrics.models.rows import Arrays, Floats, config_arrays, read
from trainwarden.errors import DetectorError
from trainwarden.settings import Config


class PreparationConfig(Config, frozen=True, kw_only=True):
    """`duplicate_correlation` and above is a near-duplicate; below `measured_share` a metric is too rarely there.

    `switching_lag1` marks a metric as fast-switching (traffic of a NIC or an NVLink) where neighbouring samples
    correlate less; it is then replaced by its median over `median_rows`. `spread_share` of the training range is added
    to every spread. `memory_rows` bounds how slowly the scale follows the job.

    `own_scale` says when every entity is judged on a scale of its own, after `warm_up_rows` samples of it: ``auto``
    where entities are unlike (`levels.Levels.unlike` says so of `unlike_share` of the metrics or more). The spread it
    starts with is that typical within an entity, as if seen in `prior_rows` samples.
    """

    duplicate_correlation: Annotated[float, msgspec.Meta(gt=0.5, le=1.0)] = 0.99
    measured_share: Annotated[float, msgspec.Meta(ge=0.0, le=1.0)] = 0.5
    switching_lag1: Annotated[float, msgspec.Meta(ge=-1.0, le=1.0)] = 0.1
    median_rows: Annotated[int, msgspec.Meta(ge=1, le=15)] = 3
    spread_share: Annotated[float, msgspec.Meta(gt=0.0, le=0.1)] = 1e-3
    memory_rows: Annotated[float, msgspec.Meta(ge=10.0)] = 1e5
    own_scale: Literal["auto", "always", "never"] = "auto"
    unlike_share: Annotated[float, msgspec.Meta(gt=0.0, le=1.0)] = 0.25
    warm_up_rows: Annotated[int, msgspec.Meta(ge=10, le=10_000)] = 240
    prior_rows: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 240


CONSTANT: Final = "constant"
"""Why a metric is dropped that never moved; live `trainwarden.detectors.metrics.still_metrics` watches it."""
FOLLOWED_AT_ONCE: Final = 64  # entities of training whose scales are followed together


@dataclass(frozen=True, slots=True)
class Dropped:
    """A metric that training left out; `twin` is the kept metric that says the same."""

    name: str
    why: str
    twin: str | None = None


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
        *,
        all_names: Sequence[str],
        dropped: Sequence[Dropped],
        why: str = "",
    ) -> None:
        self.config = config
        self.scale = scale
        self.all_names = list(all_names)
        self.dropped = list(dropped)
        self.names = [self.all_names[column] for column in columns]
        self._columns = columns
        self.switching = switching
        self.why = why

    @property
    def warm_up(self) -> int:
        """Samples of its own that an entity needs before it is judged; 0 where all share the scale of training."""
        return int(self.scale.least.max(initial=0.0))

    @classmethod
    def fit(
        cls,
        series: Sequence[npt.ArrayLike],
        names: Sequence[str],
        config: PreparationConfig,
        owners: Sequence[Hashable] | None = None,
        smallest: Floats | float = 0.0,
    ) -> Self:
        """Choose metrics and learn their scale from normal `series`, each ``[t, d]`` in time order.

        `owners` says which series are of one entity; by default each is of another. A spread is at least `smallest`
        ``[d]``, what a metric can move by at least: of errors that came once or twice in training another one is no
        more than that, however rare they were (a Poisson count's spread is one where one is expected).

        Raises
        ------
        DetectorError
            If there is no row, the names do not fit, or no metric is worth keeping.
        """
        arrays = [np.asarray(one, dtype=np.float64) for one in series]
        if not arrays or any(one.ndim != 2 or one.shape[1] != len(names) for one in arrays):
            raise DetectorError(f"every series must be [samples, {len(names)}]")
        arrays = [np.where(np.abs(one) < MOST, one, np.nan) for one in arrays]
        levels = Levels.of(arrays, owners)
        why = _why_own(levels, config)
        if why:
            arrays = levels.centred(arrays)
        rows = np.concatenate(arrays)
        columns, dropped = _selected(rows, names, config)
        if not columns.size:
            raise DetectorError("no metric is worth keeping: all are constant or hardly ever measured")
        kept = rows[:, columns]
        floor = config.spread_share * (np.nanmax(kept, axis=0) - np.nanmin(kept, axis=0))
        floor = np.maximum(floor, np.broadcast_to(smallest, len(names))[columns])
        if why:
            mean, variance = levels.typical()
            scale = Scale.own(mean[columns], variance[columns], floor, config.prior_rows, config.warm_up_rows)
        else:
            count = (~np.isnan(kept)).sum(axis=0).astype(np.float64)
            scale = Scale.shared(count, np.nanmean(kept, axis=0), np.nanvar(kept, axis=0) * count, floor)
        lag1 = np.array([_lag1([one[:, column] for one in arrays]) for column in columns])
        return cls(config, columns, lag1 < config.switching_lag1, scale, all_names=names, dropped=dropped, why=why)

    def scaled(self, series: Sequence[Floats], owners: Sequence[Hashable] | None = None) -> list[Floats]:
        """Training `series` ``[t, d_all]`` as z-scores ``[d, t]`` with fast-switching metrics steadied.

        Where every entity has its own scale they are followed as live ones are, warm-up and all, so that models learn
        what they will be shown.
        """
        values = [self.values(one.T) for one in series]
        if not self.scale.is_own:
            return [self.steadied(self.scale.apply(one)) for one in values]
        groups: dict[Hashable, list[int]] = {}
        for place, owner in enumerate(owners if owners is not None else range(len(values))):
            groups.setdefault(owner, []).append(place)
        joined = [np.concatenate([values[place] for place in places], axis=1) for places in groups.values()]
        out: list[Floats] = [np.zeros(0)] * len(values)
        order = sorted(range(len(joined)), key=lambda one: joined[one].shape[1])
        members = list(groups.values())
        for first in range(0, len(order), FOLLOWED_AT_ONCE):
            part = order[first : first + FOLLOWED_AT_ONCE]
            block = np.full((len(part), len(self.names), joined[part[-1]].shape[1]), np.nan)
            for row, one in enumerate(part):
                block[row, :, : joined[one].shape[1]] = joined[one]
            found = self.scale.repeated(len(part)).follow(block, self.config.memory_rows)[0]
            for row, one in enumerate(part):
                start = 0
                for place in members[one]:
                    samples = values[place].shape[1]
                    out[place] = self.steadied(found[row, :, start : start + samples])
                    start += samples
        return out

    def values(self, windows: npt.ArrayLike) -> Floats:
        """The kept metrics of ``windows [..., d_all, t]``, what is not finite, or beyond `MOST`, as NaN.

        Raises
        ------
        DetectorError
            If the number of metrics is not that of training.
        """
        array = np.asarray(windows, dtype=np.float64)
        if array.ndim < 2 or array.shape[-2] != len(self.all_names):
            raise DetectorError(f"windows {array.shape} do not have the {len(self.all_names)} metrics of training")
        kept = array[..., self._columns, :]
        return np.where(np.abs(kept) < MOST, kept, np.nan)

    def steadied(self, scaled: Floats) -> Floats:
        """``scaled [..., d, t]`` with fast-switching metrics replaced by their trailing median."""
        rows = self.config.median_rows
        if rows == 1 or not self.switching.any():
            return scaled
        steady = scaled.copy()
        steady[..., self.switching, :] = trailing_median(scaled[..., self.switching, :], rows)
        return steady

    def steadied_each(self, scaled: Floats) -> list[Floats]:
        """`steadied` metric by metric ``[r, t]``, of ``scaled [r, d, t]``: those that do not switch are not copied."""
        rows = self.config.median_rows
        return [
            trailing_median(scaled[:, metric], rows) if switching and rows > 1 else scaled[:, metric]
            for metric, switching in enumerate(self.switching.tolist())
        ]

    def with_twins(self, name: str) -> list[str]:
        """`name` and the near-duplicates that it stands for, the kept one first."""
        return [name, *(one.name for one in self.dropped if one.twin == name)]

    def to_arrays(self) -> Arrays:
        """State as arrays; names and reasons travel as UTF-8 bytes."""
        dropped = [[one.name, one.why, one.twin] for one in self.dropped]
        text = msgspec.json.encode([self.all_names, dropped, self.why])
        parts = {name: getattr(self.scale, name) for name in Scale.__slots__}
        flags = {"columns": self._columns, "switching": self.switching}
        return {**config_arrays(self.config), **parts, **flags, "text": np.frombuffer(text, dtype=np.uint8)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> Self:
        """Preparation from `to_arrays`; raises DetectorError where the state is damaged.

        What was kept before entities could have a scale of their own has none of its parts, and is read as shared.
        """
        config, parts = read(PreparationConfig, arrays, "count", "mean", "squares", "floor")
        if "least" in arrays:
            parts += read(PreparationConfig, arrays, "weight", "prior", "least")[1]
        try:
            kind = tuple[list[str], list[tuple[str, str, str | None]], str]
            text = msgspec.json.decode(np.asarray(arrays["text"], dtype=np.uint8).tobytes(), type=list[Any])
            names, dropped, why = msgspec.convert([*text, ""][:3], type=kind)
            columns = np.asarray(arrays["columns"], dtype=np.intp)
            switching = np.asarray(arrays["switching"], dtype=np.bool_)
        except (KeyError, ValueError, msgspec.MsgspecError) as error:
            raise DetectorError(f"state of a preparation is damaged: {error}") from error
        shapes = {part.shape for part in (columns, switching, *parts)}
        if len(shapes) != 1 or columns.ndim != 1 or not all(0 <= column < len(names) for column in columns):
            raise DetectorError("state of a preparation is damaged: shapes differ")
        scale = Scale(*parts) if len(parts) == len(Scale.__slots__) else Scale.shared(*parts)
        gone = [Dropped(*one) for one in dropped]
        return cls(config, columns, switching, scale, all_names=names, dropped=gone, why=why)


def _why_own(levels: Levels, config: PreparationConfig) -> str:
    """Why every entity needs a scale of its own; empty where all share that of training."""
    moving = levels.moving
    if config.own_scale == "never" or not moving.any():
        return ""
    if config.own_scale == "always":
        return "own scale for every entity, as configured"
    unlike = levels.unlike() & moving
    if unlike.sum() < config.unlike_share * moving.sum():
        return ""
    return (
        f"own scale for every entity: levels of {unlike.sum()} of {moving.sum()} metrics differ between the "
        f"{len(levels.mean)} entities by more than they vary within one"
    )


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
            dropped.append(Dropped(name, CONSTANT))
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
