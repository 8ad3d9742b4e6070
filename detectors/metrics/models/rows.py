"""What every row model shares: its protocol, the checks on what comes in, and the filling of missing values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from trainwarden.errors import DetectorError
from trainwarden.settings import Config

Floats = npt.NDArray[np.float64]
C = TypeVar("C", bound=Config)
Arrays = dict[str, npt.NDArray[Any]]
FILLED_SHARE: Final = 0.8
"""A mean is judged once so much of it is measured: one of fewer samples varies more than those of training."""
KNOWN_SHARE: Final = 0.5
"""Of the metrics trained on so many have to be there: what fewer of them say of an entity is not what was learnt."""


def training_rows(rows: npt.ArrayLike, least: int) -> Floats:
    """`rows` ``[n, d]`` as finite numbers, rows without any value left out, gaps filled with the metric's median.

    Raises
    ------
    DetectorError
        If fewer than `least` rows remain or a value is infinite.
    """
    array = np.asarray(rows, dtype=np.float64)
    if array.ndim != 2 or not array.shape[1]:
        raise DetectorError(f"training rows must be [rows, metrics], not {array.shape}")
    if np.isinf(array).any():
        raise DetectorError("training rows hold an infinite value")
    array = array[~np.isnan(array).all(axis=1)]
    if len(array) < least:
        raise DetectorError(f"{len(array)} training rows, at least {least} needed")
    return filled(array, center(array))


def center(rows: Floats) -> Floats:
    """Median of each metric, 0 for one never measured."""
    measured = ~np.isnan(rows).all(axis=0)
    medians = np.zeros(rows.shape[1])
    if measured.any():
        medians[measured] = np.nanmedian(rows[:, measured], axis=0)
    return medians


def filled(rows: Floats, by: Floats) -> Floats:
    """`rows` with missing values set to the normal value `by` ``[d]``.

    Looks normal only to a model that takes each metric for itself: among others that move together, the mean is odd.

    Examples
    --------
    >>> filled(np.array([[1.0, np.nan]]), np.array([0.0, 7.0])).tolist()
    [[1.0, 7.0]]
    """
    missing = np.isnan(rows)
    return np.where(missing, by, rows) if missing.any() else rows


def whole(samples: Floats) -> npt.NDArray[np.bool_]:
    """Whether a mean over the last axis speaks for all of it: something is there of its oldest and newest third.

    A metric that has just come, or gone, would be compared with other times of the others.

    Examples
    --------
    >>> whole(np.array([[np.nan, np.nan, 1.0], [1.0, np.nan, 1.0]])).tolist()
    [False, True]
    """
    there = ~np.isnan(samples)
    third = -(-samples.shape[-1] // 3)
    return np.asarray(there[..., :third].any(axis=-1) & there[..., -third:].any(axis=-1), dtype=np.bool_)


def scored_rows(rows: npt.ArrayLike, metrics: int) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """`rows` as an array and which of them have fewer than `KNOWN_SHARE` of their values.

    Raises
    ------
    DetectorError
        If the number of metrics is not that of training.
    """
    array = np.asarray(rows, dtype=np.float64)
    if array.ndim != 2 or array.shape[1] != metrics:
        raise DetectorError(f"rows {array.shape} do not have the {metrics} metrics of training")
    return array, np.asarray((~np.isnan(array)).sum(axis=1) < KNOWN_SHARE * metrics, dtype=np.bool_)


def config_arrays(config: Config) -> Arrays:
    """A config as an array of UTF-8 bytes, so that a model is arrays and nothing else."""
    return {"config": np.frombuffer(msgspec.json.encode(config), dtype=np.uint8)}


def read(kind: type[C], arrays: Mapping[str, npt.NDArray[Any]], *names: str) -> tuple[C, list[Floats]]:
    """Config and the named arrays as float64.

    Raises
    ------
    DetectorError
        If one is missing or is not what it should be.
    """
    try:
        config = msgspec.json.decode(np.asarray(arrays["config"], dtype=np.uint8).tobytes(), type=kind)
        return config, [np.asarray(arrays[name], dtype=np.float64) for name in names]
    except (KeyError, ValueError, TypeError, msgspec.MsgspecError) as error:
        raise DetectorError(f"model state is damaged: {error}") from error
