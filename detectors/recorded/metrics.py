"""The metrics of a recorded folder scored by the trained models: what live windows do sample by sample, in one go.

Every score depends on what came before it alone; models that were trained on little of the recording go on to learn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from trainwarden.detectors.job.samples import FamilySamples, ScoredSamples
from trainwarden.detectors.metrics.bundle.bundle import ModelBundle
from trainwarden.detectors.metrics.bundle.calibration import squeeze, unsqueeze
from trainwarden.detectors.metrics.bundle.members import VoteConfig, by_name
from trainwarden.detectors.metrics.scores import MetricScorer
from trainwarden.detectors.metrics.votes import MetricMeanVote
from trainwarden.detectors.recorded.grids import MetricGrid, metric_grids, roles_by_rank
from trainwarden.detectors.recorded.learning import LearningOn, fit_bundle
from trainwarden.errors import DataError
from trainwarden.recorded.job import MetricTable, RecordedJob

Floats = npt.NDArray[np.float64]
Places = npt.NDArray[np.int64]
Idle = Callable[[Mapping[str, float], Mapping[str, Mapping[str, float]]], frozenset[str]]

HALF_LIFE_SAMPLES: Final = 10
"""Of what lasts in the file's ranking; 5 to 40 were tried on the choosing halves (docs/detection.md)."""
LASTING_NATS: Final = 100.0
"""What lasts of one sample at most, so that a single wild value is forgotten within a few half-lives."""


@dataclass(frozen=True, slots=True)
class ScoredGrid:
    """Scores of a grid, and when each of its samples was there ``[k]``."""

    scored: ScoredSamples
    column_s: Floats


@dataclass(frozen=True, slots=True)
class MetricScores:
    """Scores of a whole recording.

    Attributes
    ----------
    scored : tuple of ScoredGrid
        What may open incidents: all but training rows.
    abstained : dict of str
        Families without scores, with the reason.
    idle : frozenset of str
        Models that were not asked for their scores.
    mean : float array [rows]
        The calibrated mean of all models at each row of the table, which opens incidents.
    ensemble : float array [rows]
        The same on scales that follow everything, as it lasts (`lasting`); ranks times and entities in the file of
        scores.
    """

    table: MetricTable
    bundle: ModelBundle
    scored: tuple[ScoredGrid, ...]
    abstained: dict[str, str]
    training: npt.NDArray[np.bool_]
    idle: frozenset[str] = frozenset()
    by_model: dict[str, Floats] = field(default_factory=dict)
    mean: Floats = field(default_factory=lambda: np.zeros(0))
    ensemble: Floats = field(default_factory=lambda: np.zeros(0))

    def columns(self, names: Sequence[str]) -> dict[str, Any]:
        """Columns of the file of scores, one row for each row of the table."""
        import pandas as pd

        table, entity = self.table, self.table.entity
        nodes = np.array(table.nodes, dtype=object)[entity]
        ranks = pd.array([table.ranks[place] for place in entity.tolist()], dtype="Int64")
        devices = np.array(table.devices, dtype=object)[entity]
        columns: dict[str, Any] = {"time_s": table.times_s, "node": nodes, "rank": ranks, "device": devices}
        columns["training"] = self.training.astype(np.int64)
        by_name = self.by_model | {MetricMeanVote.member: self.mean}
        columns |= {name: column for name, column in by_name.items() if name in names}
        return columns | {"ensemble": self.ensemble}


def nobody(members: Mapping[str, float], measured: Mapping[str, Mapping[str, float]]) -> frozenset[str]:
    """Every model is computed."""
    del members, measured
    return frozenset()


def score_recorded(
    job: RecordedJob,
    bundle: ModelBundle | None = None,
    normal_until_s: float | None = None,
    config: VoteConfig | None = None,
    seed: int = 0,
    *,
    idle: Idle = nobody,
) -> MetricScores | None:
    """Score every row of metrics by `bundle`, or by models trained on the job's own normal rows, and on (`learning`).

    Parameters
    ----------
    bundle : ModelBundle, optional
        Trained before; goes before training.
    normal_until_s : float, optional
        Rows before it are normal; the job's own `normal_until_s` goes before it.
    config : VoteConfig, optional
        How models are trained.
    idle : callable, optional
        Which models are neither trained nor computed (`Ensemble.idle`), by what models weigh in the mean and in votes.

    Returns
    -------
    MetricScores or None
        None where there are no metrics, or nothing says what is normal.

    Raises
    ------
    DataError
        If there is no normal row to train on.
    """
    if job.metrics is None or not job.metrics.times_s.size:
        return None
    until_s = job.normal_until_s if job.normal_until_s is not None else normal_until_s
    grids = metric_grids(job.metrics)
    if bundle is not None:
        return _score(job, grids, bundle, None, idle(bundle.members, bundle.weights))
    if until_s is None:
        return None
    if not (job.metrics.times_s < until_s).any():
        raise DataError(f"no row of metrics is before {until_s:g} s, so there is nothing normal to train on")
    config = config or VoteConfig()
    unused = idle(by_name(config.members), {})
    used = {name: weight for name, weight in config.members.items() if name not in unused}
    config = msgspec.structs.replace(config, members=used)
    try:
        own = fit_bundle([grid.before(until_s) for grid in grids], config, seed)
    except DataError as error:  # whoever reads steps or log lines can judge all the same
        scores = _score(job, grids, ModelBundle({}), until_s, unused)
        return replace(scores, abstained=dict.fromkeys(scores.abstained, str(error)))
    return _score(job, grids, own, until_s, unused, learning=LearningOn(config, seed))


def _score(
    job: RecordedJob,
    grids: Sequence[MetricGrid],
    bundle: ModelBundle,
    until_s: float | None,
    idle: frozenset[str],
    *,
    learning: LearningOn | None = None,
) -> MetricScores:
    """Scores of all rows by `bundle`, by models that go on to learn where `learning` says how."""
    assert job.metrics is not None
    rows = job.metrics.times_s.size
    training = np.zeros(rows, dtype=np.bool_)
    mean, ensemble = np.full((2, rows), np.nan)
    scores = MetricScores(job.metrics, bundle, (), {}, training, idle, {}, mean, ensemble)
    if until_s is not None:
        training[:] = job.metrics.times_s < until_s
    followed = np.full(rows, np.nan)
    roles_of = roles_by_rank(job)
    kept: list[ScoredGrid] = []
    for grid in grids:
        there, size = grid.place >= 0, grid.column_s.size
        split = 0 if until_s is None else int(np.searchsorted(grid.column_s, until_s, side="left"))
        if split:
            _stretch(scores, followed, bundle, grid.samples(0, 0, split, roles_of), grid.place[:, :split])
        new, serving = split, bundle
        while new < size:
            end = size if learning is None else learning.turn_of(grid, new)
            samples = grid.samples(new - _reach(serving, grid, new), new, end, roles_of)
            parts = _stretch(scores, followed, serving, samples, grid.place[:, new:end])
            kept += [ScoredGrid(part, grid.column_s[new:end]) for part in parts]
            new = end
            if learning is not None and new < size:
                serving = learning.anew(serving, grid, _of(grid.first(new), followed), split)
        ensemble[grid.place[there]] = lasting(_of(grid, followed))[there]
    return replace(scores, scored=tuple(kept))


def _reach(bundle: ModelBundle, grid: MetricGrid, new: int) -> int:
    """How many samples before sample `new` of `grid` decide the score of that."""
    vote = bundle.votes.get(grid.family)
    if vote is None:
        return 0
    # The entity's own scale is all that it has shown so far.
    return new if vote.preparation.warm_up else min(new, vote.window_samples)


def _of(grid: MetricGrid, column: Floats) -> Floats:
    """A `column` of the table's rows as ``[r, n]`` of the grid, NaN where it has no row."""
    return np.where(grid.place >= 0, column[grid.place], np.nan)


def _stretch(
    scores: MetricScores, followed: Floats, bundle: ModelBundle, samples: FamilySamples, place: Places
) -> tuple[ScoredSamples, ...]:
    """Score what is new in `samples`, of the table's rows ``place [r, k]``.

    What opens incidents goes to `scores`. Whose scale stood still has a second mean, on a scale that followed all, in
    `followed`: what has become another level ranks lower the longer it lasts, and what comes and goes does not.
    """
    scorer, free = (MetricScorer(bundle, lambda _: scores.idle) for _ in range(2))
    free.holds = False
    found = scorer.score((samples,))
    scores.abstained.update(scorer.abstained)
    others = free.score((samples,)) if scorer.has_held() else found
    there = place >= 0
    for part, other in zip(found, others, strict=True):
        for name, values in part.scores.items():
            column = scores.by_model.setdefault(name, np.full(scores.mean.size, np.nan))
            column[place[there]] = values[there]
        scores.mean[place[there]] = part.ensemble[there]
        followed[place[there]] = other.ensemble[there]
    return found


def lasting(scores: Floats) -> Floats:
    """Calibrated ``scores [r, k]`` that fall off slowly: at least the exponential mean of what was until then, in nats.

    A fault is a stretch of time in which single samples look normal now and then; one threshold on these scores has
    more of its stretch for the same share of normal time. No score becomes less or comes later. NaN stays, and counts
    neither way.

    References
    ----------
    Roberts: Control Chart Tests Based on Geometric Moving Averages, Technometrics 1 (1959).

    Examples
    --------
    >>> lasting(np.array([[0.1, 0.8, 0.1, np.nan, 0.1]])).round(2).tolist()
    [[0.1, 0.8, 0.6, nan, 0.58]]
    """
    import pandas as pd

    nats = unsqueeze(scores)
    means = pd.DataFrame(np.minimum(nats, LASTING_NATS).T).ewm(halflife=HALF_LIFE_SAMPLES, ignore_na=True).mean()
    return np.where(np.isnan(scores), np.nan, np.fmax(scores, squeeze(means.to_numpy().T)))
