"""Which ranks of a job are alike, where nobody has said how it is laid out: k-means under time warping.

Series are compared by dynamic time warping (Sakoe and Chiba 1978), since stages of a pipeline do the same a little
later, and grouped around their barycentres (Petitjean et al. 2011), both by tslearn. How many roles there are follows
from the silhouette (Rousseeuw 1987).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from trainwarden.detectors.job.roster import LEAST_ALIKE
from trainwarden.detectors.job.samples import Entity, name_of
from trainwarden.trainer_offline.suggest.entity_series import EntitySeries, Floats

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # that h5py is missing, which is for keeping models in files of its own
    from tslearn.clustering import TimeSeriesKMeans, silhouette_score
    from tslearn.metrics import cdist_dtw

Labels = npt.NDArray[np.int64]

MOST_ROLES: Final = 8
MOST_COMPARED: Final = 256  # entities that are compared with each other: 20 s; all others join the nearest role
STRONG: Final = 0.7  # "a strong structure has been found" (Kaufman and Rousseeuw 1990, table 4)
PIECES: Final = 4  # of the recording; who differs in each has a role, what lasts for less is rather a fault
REASONABLE: Final = 0.5  # the same table; asked of each piece of the recording, which is shorter


@dataclass(frozen=True, slots=True)
class Roles:
    """Who is alike.

    Attributes
    ----------
    labels : int array [r]
        Role of each entity, numbered in their order; all 0 where there is one role.
    silhouette : float or None
        Of the roles over the whole recording: 1 is far apart, 0 is not at all; None where nothing was compared.
    why : str
        One clause.
    """

    labels: Labels
    silhouette: float | None
    why: str

    @property
    def count(self) -> int:
        """How many roles there are."""
        return int(self.labels.max()) + 1


class _Grouping(NamedTuple):
    silhouette: float
    labels: Labels
    least: int
    model: TimeSeriesKMeans


def propose(series: EntitySeries, *, seed: int = 0) -> Roles:
    """The roles of the entities, one where nothing tells them apart lastingly.

    A role has 3 entities at least (fewer that stand apart are rather slow or at fault) and is there in each quarter of
    the recording (what lasts for a part of it is rather a fault).
    """
    values, one = series.scaled, np.zeros(len(series.entities), np.int64)
    if len(one) < 2 * LEAST_ALIKE:
        return Roles(one, None, f"{len(one)} are too few for two roles of {LEAST_ALIKE}")
    if not values.shape[2]:
        return Roles(one, None, "nothing tells them apart lastingly")
    compared = np.unique(np.linspace(0, len(one) - 1, min(len(one), MOST_COMPARED)).astype(np.int64))
    part = values[compared]
    found = _groupings(part, seed)
    best = max((one for one in found if one.least >= LEAST_ALIKE), key=_fit, default=None)
    if best is None or best.silhouette < STRONG:
        return Roles(one, *_why_none(max(found, key=_fit), [series.entities[place] for place in compared]))
    pieces = [piece for piece in np.array_split(part, PIECES, axis=1) if piece.shape[1]]
    if min(_silhouette(piece, best.labels) for piece in pieces) < REASONABLE:
        return Roles(one, best.silhouette, "what tells them apart is not there throughout, as a role would be")
    everybody = best.labels if len(compared) == len(one) else np.asarray(best.model.predict(values), np.int64)
    return Roles(
        _numbered(everybody), best.silhouette, "distinguished throughout by " + ", ".join(series.names_of_lanes)
    )


def _groupings(values: Floats, seed: int) -> list[_Grouping]:
    """One for each number of roles; that with fewer goes first."""
    apart = cdist_dtw(values)
    found = []
    for count in range(2, min(MOST_ROLES, len(values) // 2) + 1):
        model = TimeSeriesKMeans(
            count, metric="dtw", n_init=2, max_iter=10, max_iter_barycenter=10, random_state=seed
        ).fit(values)
        labels = np.asarray(model.labels_, np.int64)
        sizes = np.unique(labels, return_counts=True)[1]
        if sizes.size > 1:
            silhouette = float(silhouette_score(apart, labels, metric="precomputed"))
            found.append(_Grouping(silhouette, labels, int(sizes.min()), model))
    return found


def _fit(one: _Grouping) -> float:
    return one.silhouette


def _why_none(best: _Grouping, entities: Sequence[Entity]) -> tuple[float, str]:
    """The silhouette of the best grouping, and why it makes no roles."""
    if best.silhouette < STRONG:
        return best.silhouette, f"the best grouping has a silhouette of {best.silhouette:.2f}, roles have {STRONG}"
    names, sizes = np.unique(best.labels, return_counts=True)
    few = np.flatnonzero(np.isin(best.labels, names[sizes < LEAST_ALIKE]))
    named = ", ".join(name_of(one.node, one.device, one.rank) for one in (entities[place] for place in few.tolist()))
    return best.silhouette, f"{named} alone stand apart: rather slow or at fault than of a role"


def _silhouette(values: Floats, labels: Labels) -> float:
    return float(silhouette_score(cdist_dtw(values), labels, metric="precomputed"))


def _numbered(labels: Labels) -> Labels:
    """The same groups, numbered by their first entity.

    Examples
    --------
    >>> _numbered(np.array([2, 2, 0, 1, 0])).tolist()
    [0, 0, 1, 2, 1]
    """
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    return np.asarray(np.argsort(np.argsort(first))[inverse], np.int64)
