"""Whether the entities of a family are alike: the same levels up to their own spread, or each at levels of its own."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
LEAST_ENTITIES: Final = 2  # of one nobody can say what it differs from
ROUNDING: Final = 1e-12  # of its size: a value that varies by less stands still


@dataclass(frozen=True, slots=True)
class Levels:
    """Mean and variance of each metric within each entity, ``[e, d]``, NaN where it was never measured.

    Attributes
    ----------
    place : tuple of int
        Which entity each series is of.

    Examples
    --------
    >>> random = np.random.default_rng(0)
    >>> alike = [random.normal(size=(300, 1)) for _ in range(4)]
    >>> unlike = [one + level for level, one in enumerate(alike)]
    >>> Levels.of(alike).unlike().tolist(), Levels.of(unlike).unlike().tolist()
    ([False], [True])
    """

    mean: Floats
    variance: Floats
    place: tuple[int, ...]

    @classmethod
    def of(cls, series: Sequence[Floats], owners: Sequence[Hashable] | None = None) -> Self:
        """Levels of `series`, each ``[t, d]``; `owners` says which are of one entity, by default none are."""
        known: dict[Hashable, int] = {}
        place = tuple(
            known.setdefault(owner, len(known)) for owner in (owners if owners is not None else range(len(series)))
        )
        shape = (len(known), series[0].shape[1])
        count, sums, squares = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        for entity, one in zip(place, series, strict=True):
            count[entity] += (~np.isnan(one)).sum(axis=0)
            sums[entity] += np.nansum(one, axis=0)
        mean = np.where(count > 0.0, sums / np.maximum(count, 1.0), np.nan)
        for entity, one in zip(place, series, strict=True):
            squares[entity] += np.nansum((one - mean[entity]) ** 2, axis=0)
        variance = np.where(count > 0.0, squares / np.maximum(count, 1.0), np.nan)
        still = variance <= (ROUNDING * np.abs(np.nan_to_num(mean))) ** 2
        return cls(mean, np.where(still & (count > 0.0), 0.0, variance), place)

    def unlike(self) -> npt.NDArray[np.bool_]:
        """Metrics whose levels differ between entities by more than they vary within the median entity.

        The standard deviation of the entities' means against the median of their own standard deviations; false for
        what stands still everywhere.
        """
        known = (~np.isnan(self.mean)).sum(axis=0)
        found = np.zeros(self.mean.shape[1], dtype=np.bool_)
        there = known >= LEAST_ENTITIES
        if there.any():
            between = np.nanstd(self.mean[:, there], axis=0, ddof=1)
            within = np.sqrt(np.nanmedian(self.variance[:, there], axis=0))
            size = np.nanmax(np.abs(self.mean[:, there]), axis=0)
            found[there] = between > np.maximum(within, ROUNDING * size)
        return found

    @property
    def moving(self) -> npt.NDArray[np.bool_]:
        """Metrics that vary within some entity."""
        return np.asarray(np.nan_to_num(self.variance).max(axis=0) > 0.0, dtype=np.bool_)

    def typical(self) -> tuple[Floats, Floats]:
        """Mean over entities of the level and of the variance within one, ``[d]`` each; 0 where never measured."""
        known = np.maximum((~np.isnan(self.mean)).sum(axis=0), 1)
        return np.nansum(self.mean, axis=0) / known, np.nansum(self.variance, axis=0) / known

    def centred(self, series: Sequence[Floats]) -> list[Floats]:
        """`series` less their own entity's levels; what stands still is 0, without the noise of rounding."""
        out = []
        for entity, one in zip(self.place, series, strict=True):
            moved = one - self.mean[entity]
            still = self.variance[entity] == 0.0
            moved[:, still] = np.where(np.isnan(moved[:, still]), np.nan, 0.0)
            out.append(moved)
        return out
