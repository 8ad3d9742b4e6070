"""The running scale of each metric: where it stands and how much it varies, followed sample by sample."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
FARTHEST: Final = 1e12
"""Spreads: of what is farther away models say the same, and the squares of all metrics together are still numbers."""


@dataclass(frozen=True, slots=True)
class Scale:
    """Running mean and spread of each metric, for one series ``[d]`` or many ``[r, d]``; never changed, only followed.

    Learns from every sample it scales, itself included, so a spread can only be moved by what was already seen.

    Attributes
    ----------
    count, mean, squares : float arrays
        Samples so far, their mean, and the sum of their squared distances from it; those of training to begin with, or
        nothing where every series has a scale of its own.
    floor : float array
        Added to every spread.
    weight, prior : float arrays
        A series on its own scale begins with the spread that is typical for others, as if it had been seen in `weight`
        samples: `prior` is their sum of squares. So a metric that has stood still so far is not judged by the first
        step it makes. Both 0 where the scale is that of training.
    least : float array
        Samples of its own that a metric needs before it is judged; its z-scores are missing until then.
    """

    count: Floats
    mean: Floats
    squares: Floats
    floor: Floats
    weight: Floats
    prior: Floats
    least: Floats

    @classmethod
    def shared(cls, count: Floats, mean: Floats, squares: Floats, floor: Floats) -> Scale:
        """The scale of training itself, on which every series is judged from its first sample."""
        none = np.zeros_like(floor)
        return cls(count, mean, squares, floor, none, none, none)

    @classmethod
    def own(cls, mean: Floats, variance: Floats, floor: Floats, weight: float, least: float) -> Scale:
        """A scale that a series has to fill itself; `variance` is what is typical within a series."""
        none = np.zeros_like(floor)
        sized = np.full_like(floor, weight)
        return cls(none, mean, none, floor, sized, sized * variance, np.full_like(floor, least))

    @property
    def is_own(self) -> bool:
        """Whether a series has to be seen for some time before it is judged."""
        return bool(self.least.any())

    @property
    def spread(self) -> Floats:
        """One z-score in the metric's own unit, as the scale stands."""
        total = np.maximum(self.count + self.weight, 1.0)
        spread: Floats = np.sqrt((self.squares + self.prior) / total) + self.floor
        return spread

    def apply(self, values: Floats) -> Floats:
        """z-scores of ``values [..., d, t]`` on this scale as it stands, NaN where it has not seen enough."""
        scaled = np.clip((values - self.mean[..., None]) / self.spread[..., None], -FARTHEST, FARTHEST)
        return np.where((self.count >= self.least)[..., None], scaled, np.nan) if self.is_own else scaled

    def follow(self, values: Floats, memory_rows: float) -> tuple[Floats, Scale]:
        """z-scores of ``values [..., d, t]``, each on the scale up to and with itself, and the scale after the last.

        Sample by sample, so that where a stream is cut changes nothing. From `memory_rows` samples on old ones fade.

        Examples
        --------
        >>> start = Scale.own(np.zeros(1), np.ones(1), np.zeros(1), weight=2.0, least=3.0)
        >>> start.follow(np.array([[[5.0, 5.0, 5.0, 7.0]]]), 1e5)[0].round(2).tolist()
        [[[nan, nan, 0.0, 1.64]]]
        """
        count, mean, squares = self.count.copy(), self.mean.copy(), self.squares.copy()
        own = self.is_own
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
            if own:
                variance = (squares + self.prior) / np.maximum(count + self.weight, 1.0)
                scaled = (now - mean) / (np.sqrt(variance) + self.floor)
                out[..., t] = np.where(count >= self.least, scaled, np.nan)
            else:
                out[..., t] = (now - mean) / (np.sqrt(squares / np.maximum(count, 1.0)) + self.floor)
        return out, replace(self, count=count, mean=mean, squares=squares)

    def repeated(self, series: int) -> Scale:
        """The same scale for `series` series, each then on its own, ``[series, d]``."""
        return Scale(*(np.tile(getattr(self, name), (series, 1)) for name in Scale.__slots__))
