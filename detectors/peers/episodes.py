"""Spells of one rank being slow: where they began and ended, and how slow they were."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Basis = Literal["self", "peers"]
Evidence = Literal["compute", "wait", "duration"]
CLIP: Final = 3.0  # one stalled step counts as so many half heights when the begin of a spell is looked for


@dataclass(slots=True)
class Episode:
    """One spell of one rank being slow; `to_step` None while it lasts.

    Attributes
    ----------
    row : int
        Judged steps before it.
    needed : int
        Steps it took to be believed, and so to be disbelieved.
    worst : float
        Largest mean log ratio over `needed` steps, or over `relief_steps` if these are more.
    stage : str
        Role all of whose ranks are slow against the other roles, or empty.
    """

    rank: int
    node: str
    from_step: int
    reported_step: int
    onset_s: float
    ratio: float
    basis: Basis
    evidence: Evidence
    row: int = 0
    to_step: int | None = None
    needed: int = 8
    worst: float = 0.0
    stage: str = ""

    def of_stage(self, ratio: float) -> str:
        """What is said of a stage that is slow from the start."""
        return (
            f"all of {self.stage} compute {ratio:.2f} times as long as the other stages, from the start: "
            "the model is split unevenly, no rank is accused"
        )

    def reason(self, ratio: float) -> str:
        """One sentence part that follows the rank's name."""
        if self.stage:
            return f"computes {ratio:.2f} times as long as the median rank, as do all of {self.stage}"
        if self.basis == "peers":
            return f"computes {ratio:.2f} times as long as the median rank{', from the start' if self.row == 0 else ''}"
        what = "takes" if self.evidence == "duration" else "computes"
        return f"{what} {ratio:.2f} times as long as it did, relative to the other ranks, and waits least"


def onset_rows(risen: Floats, heights: Floats) -> npt.NDArray[np.int64]:
    """Since how many of the newest steps each rank has been risen: the likeliest begin of a step of known height.

    Of a level that rises by `heights` in Gaussian noise the likeliest begin is where the sum of ``risen - heights / 2``
    from there to the end is largest (Page, Continuous Inspection Schemes, Biometrika 41, 1954).

    Parameters
    ----------
    risen : float [rows, ranks]
        Newest last; NaN = unknown, counts neither way.
    heights : float [ranks]

    Examples
    --------
    >>> onset_rows(np.array([[0.0], [0.1], [1.0], [0.4], [1.1]]), np.array([1.0])).tolist()
    [3]
    """
    half = heights / 2.0
    gain = np.nan_to_num(np.clip(risen - half, -CLIP * half, CLIP * half))
    gain[-1] = np.maximum(gain[-1], 0.0)
    total = np.cumsum(gain[::-1], axis=0)
    return np.asarray(np.argmax(total, axis=0) + 1)


def calm_rows(risen: Floats, least: float) -> int:
    """How many of the newest steps of one rank are no longer part of a spell above `least`, in a series [rows].

    Examples
    --------
    >>> calm_rows(np.array([0.5, 0.6, 0.5, 0.0, 0.01, 0.0]), 0.1)
    3
    """
    gain = np.nan_to_num(np.clip(risen - least, -CLIP * least, CLIP * least))
    return len(gain) - 1 - int(np.argmax(np.cumsum(gain)))


def trimmed_mean(values: Floats) -> Floats:
    """Mean along the rows without the unknown and without the largest and smallest eighth; NaN where nothing is known.

    Examples
    --------
    >>> trimmed_mean(np.array([1.0, 1.0, 2.0, 2.0, 9.0, 1.5, 1.5, 0.0, np.nan])).tolist()
    1.5
    """
    ordered = np.sort(values, axis=0)  # NaN last
    known = np.isfinite(ordered).sum(axis=0)
    place = np.arange(len(ordered)).reshape(-1, *(1,) * (ordered.ndim - 1))
    kept = (place >= known // 8) & (place < known - known // 8)
    count = kept.sum(axis=0)
    total = np.where(kept, ordered, 0.0).sum(axis=0)
    return np.asarray(np.divide(total, count, out=np.full(np.shape(total), np.nan), where=count > 0))


def spell_ratio(risen: Floats, worst: float, spread: float, needed: int) -> float:
    """How slow a spell is: its mean, or its worst part where that is clearly worse than noise makes it.

    Parameters
    ----------
    risen : float [rows]
        Log ratios of the spell's steps.
    worst : float
        Largest mean log ratio over `needed` steps, 0 if there were not so many.
    """
    middle = float(trimmed_mean(risen))
    clear = max(0.1, 4.0 * spread / float(np.sqrt(needed)))  # the largest of many means is some 3 to 4 errors above
    return float(np.exp(middle if middle >= worst - clear else worst))
