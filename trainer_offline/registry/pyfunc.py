"""How MLflow loads one of our artifacts: `mlflow.pyfunc.load_model` calls `_load_pyfunc` with the artifact's folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from trainwarden.detectors.metrics.bundle.bundle import MANIFEST, ModelBundle
from trainwarden.detectors.metrics.bundle.calibration import unsqueeze
from trainwarden.detectors.metrics.bundle.members import by_name
from trainwarden.detectors.metrics.bundle.metric_vote import MetricVote
from trainwarden.errors import DetectorError
from trainwarden.trainer_offline.registry.parts import ENSEMBLE


class Served:
    """One detector (or the vote's calibration) over rows of one entity in time order, all on the scale of training."""

    def __init__(self, bundle: ModelBundle) -> None:
        self._bundle = bundle
        self._name = next(iter(bundle.versions))

    def predict(self, rows: Any, params: dict[str, Any] | None = None) -> Any:
        """Calibrated scores ``[t]`` of a frame: metrics as columns, or for the ensemble its members' scores."""
        del params
        columns = [str(column) for column in rows.columns]
        values = np.asarray(rows.to_numpy(), dtype=np.float64)
        vote = self._vote(columns)
        if self._name == ENSEMBLE:
            weights = np.array([by_name(vote.config.members).get(name, 0.0) for name in columns])
            counts = ~np.isnan(values) * weights
            total = counts.sum(axis=1)
            mean = (np.nan_to_num(unsqueeze(values)) * counts).sum(axis=1) / np.where(total > 0.0, total, np.nan)
            return vote.calibrations[ENSEMBLE].score(mean)
        place = {name: index for index, name in enumerate(columns)}
        ordered = np.full((len(values), len(vote.preparation.all_names)), np.nan)
        for column, name in enumerate(vote.preparation.all_names):
            if name in place:
                ordered[:, column] = values[:, place[name]]
        if self._name == "dtw":
            raise DetectorError("dtw compares ranks: one entity's rows say nothing to it")
        return vote.score_series(ordered)[0].members[self._name]

    def _vote(self, columns: list[str]) -> MetricVote:
        """The family whose metrics the columns are."""
        votes = list(self._bundle.votes.values())
        return max(votes, key=lambda vote: len({*vote.preparation.all_names} & {*columns}))


def _load_pyfunc(path: str) -> Served:
    """What MLflow asks for; verifies checksums and executes nothing that the artifact holds."""
    found = sorted(Path(path).rglob(MANIFEST))
    if len(found) != 1:
        raise DetectorError(f"{path} holds no models ({MANIFEST})")
    return Served(ModelBundle.load(found[0].parent))
