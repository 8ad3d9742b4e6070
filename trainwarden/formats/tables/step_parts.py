"""What a step's time is made of, and the step's time where only its parts are written."""

from __future__ import annotations

from typing import Final

import numpy as np
import pandas as pd

from trainwarden.formats import names
from trainwarden.recorded.job import Floats

NOTE: Final = "no step times: a step is taken for as long as the longest work of its ranks"
# Parts that together are the rank's own work, where nothing tells that as a whole.
_OF_COMPUTE: Final = ("forward_s", "backward_s", "optimizer_s")
_NEEDED: Final = frozenset({"forward_s", "backward_s"})
DATA: Final = "data_s"


def parts_of(frame: pd.DataFrame, scale: float = 1.0) -> dict[str, Floats]:
    """Seconds of the parts that columns of `frame` hold, by the names of our own tables.

    Parameters
    ----------
    scale : float
        What makes seconds of columns whose names tell no unit.

    Examples
    --------
    >>> frame = pd.DataFrame({"forward_ms": [100.0], "backward_ms": [200.0]})
    >>> {name: values.round(3).tolist() for name, values in parts_of(frame).items()}
    {'compute_s': [0.3]}
    """
    found: dict[str, Floats] = {}
    for column in frame.columns:
        if (part := names.part_factor(str(column))) is not None and part[0] not in found:
            values = frame[column].to_numpy(np.float64)
            if np.isfinite(values).any():
                found[part[0]] = values * (scale if part[1] is None else part[1])
    pieces = [found.pop(one) for one in _OF_COMPUTE if one in found] if _NEEDED & found.keys() else []
    found.pop("optimizer_s", None)
    if pieces and "compute_s" not in found:
        found["compute_s"] = np.asarray(np.sum(pieces, axis=0))
    return found


def step_of_parts(frame: pd.DataFrame) -> Floats | None:
    """How long steps last at least by what ranks compute: in synchronous training the longest holds up the others.

    Where waits are written too, each rank's parts add up to its own step. None where no rank tells its work.

    Examples
    --------
    >>> step_of_parts(pd.DataFrame({"step": [1, 1], "rank": ["0", "1"], "compute_ms": [500.0, 750.0]})).tolist()
    [0.75, 0.75]
    """
    parts = parts_of(frame)
    own = parts.get("compute_s")
    if own is None or np.isfinite(own).sum() < 2:
        return None
    if "wait_s" in parts:
        own = np.asarray(own + np.nan_to_num(parts["wait_s"]))
    if "rank" not in frame.columns:
        return own
    longest = pd.Series(own).groupby(frame["step"].to_numpy()).transform("max").to_numpy(np.float64)
    return np.where(np.isfinite(own), longest, np.nan)
