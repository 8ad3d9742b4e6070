"""A model's scores beside those of scikit-learn, which fitted it: one that says something else is refused.

Our scorers read what scikit-learn's models hold, some of it under names that it does not promise to keep, and search
for neighbours in another way. Whether they still say the same is therefore seen at every fit, on a few rows. Nothing
here is imported by what only scores.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from trainwarden.errors import DetectorError

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

COMPARED_ROWS: Final = 64
"""Compared at each fit: 0.15 s of the 0.7 s that lof takes on 10,000 x 38, most of it for the tree that is searched."""
RELATIVE: Final = 1e-6
"""scikit-learn measures some distances as |a|^2 - 2ab + |b|^2, which keeps half of float64's 16 digits at worst."""


def compared_rows(rows: Floats) -> Floats:
    """A few of the training ``rows [n, d]``, each moved by about a normal spread, the same ones each time.

    Moved, as a row that equals a reference has distances of rounding alone, and equally near references by the dozen.

    Examples
    --------
    >>> compared_rows(np.zeros((1_000, 2))).shape
    (64, 2)
    """
    chosen = rows[np.linspace(0, len(rows) - 1, min(COMPARED_ROWS, len(rows))).astype(np.intp)]
    moved: Floats = chosen + np.random.default_rng(0).normal(size=chosen.shape)
    return moved


def refuse_unlike(name: str, rows: Floats, ours: Floats, theirs: Floats) -> None:
    """Compare scores ``[r]`` of ``rows [r, d]``, ours with scikit-learn's.

    Raises
    ------
    DetectorError
        If they differ by more than rounding.

    Examples
    --------
    >>> refuse_unlike("pca", np.ones((1, 2)), np.array([2.0]), np.array([2.0 + 1e-9]))
    >>> refuse_unlike("pca", np.ones((1, 2)), np.array([2.0]), np.array([2.1]))
    Traceback (most recent call last):
        ...
    trainwarden.errors.DetectorError: pca is refused: it scores 1 of 1 rows unlike scikit-learn (2 for 2.1)
    """
    # A short rest of a long row has lost the digits that the row's length took.
    slack = RELATIVE * np.maximum(np.abs(theirs), np.sqrt(np.einsum("rd,rd->r", rows, rows)))
    # Not "greater than": what is no number differs too.
    unlike: Flags = np.asarray(~(np.abs(ours - theirs) <= slack), dtype=np.bool_)
    if unlike.any():
        worst = int(np.flatnonzero(unlike)[0])
        raise DetectorError(
            f"{name} is refused: it scores {unlike.sum()} of {len(rows)} rows unlike scikit-learn "
            f"({ours[worst]:.6g} for {theirs[worst]:.6g})"
        )
