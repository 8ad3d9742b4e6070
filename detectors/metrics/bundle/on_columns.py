"""A model that was trained on some of the metrics of a vote: it sees those columns alone.

So detectors of different training runs, with different metrics kept and different scales, can vote together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from trainwarden.detectors.metrics.bundle.members import ALL_MODELS
from trainwarden.detectors.metrics.models.rows import Arrays, Floats
from trainwarden.errors import DetectorError

KEY: Final = "on_columns"


class OnColumns:
    """`model` on the metrics ``columns`` of ``[r, d]`` rows or ``[r, d, m]`` windows.

    Examples
    --------
    >>> from trainwarden.detectors.metrics.models.pca import Pca, PcaConfig
    >>> rows = np.random.default_rng(0).normal(size=(200, 5))
    >>> model = OnColumns(Pca.fit(rows[:, 2:], PcaConfig(), 0), np.array([2, 3, 4]), 5)
    >>> bool((model.blame(rows)[:, :2] == 0.0).all())
    True
    """

    def __init__(self, model: Any, columns: npt.NDArray[np.intp], width: int) -> None:
        self.model = model
        self.columns = columns
        self.width = width

    @property
    def config(self) -> Any:
        """Settings of the model."""
        return self.model.config

    def score(self, values: Floats, *groups: Any) -> Floats:
        """As the model's own."""
        return np.asarray(self.model.score(values[:, self.columns], *groups), dtype=np.float64)

    def score_each(self, series: Sequence[Floats], *groups: Any) -> Floats:
        """As the model's own, of one array for each metric."""
        return np.asarray(self.model.score_each([series[column] for column in self.columns], *groups), dtype=np.float64)

    def blame(self, values: Floats, *groups: Any) -> Floats:
        """As the model's own, nothing for the columns that it does not see."""
        found = self.model.blame(values[:, self.columns], *groups)
        out = np.zeros((len(found), self.width))
        out[:, self.columns] = found
        return out

    def to_arrays(self) -> Arrays:
        """The model's state with the columns."""
        return {**self.model.to_arrays(), KEY: np.append(self.columns, self.width)}


def model_of(name: str, arrays: Mapping[str, npt.NDArray[Any]]) -> Any:
    """The model `name` of its arrays, on columns where it was kept so.

    Raises
    ------
    DetectorError
        If the state is damaged.
    """
    if KEY not in arrays:
        return ALL_MODELS[name].from_arrays(arrays)
    try:
        *columns, width = (int(one) for one in np.asarray(arrays[KEY]))
    except (TypeError, ValueError) as error:
        raise DetectorError(f"state of {name} is damaged: {error}") from error
    if not columns or not all(0 <= column < width for column in columns):
        raise DetectorError(f"state of {name} is damaged: its columns do not fit")
    model = ALL_MODELS[name].from_arrays({key: value for key, value in arrays.items() if key != KEY})
    return OnColumns(model, np.array(columns, dtype=np.intp), width)
