"""What the metric models see and say: the newest samples of every entity as arrays, and their calibrated scores.

An entity is whatever a row of metrics is about: a node, a GPU or a NIC of it, a rank. Entities of one family have the
same metrics and are scored together by the models trained for that family.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from trainwarden.records import Suspect

Floats = npt.NDArray[np.float64]
MOST: Final = 1e38
"""What is not nearer to 0 is damage and no measurement in any unit; peers are compared in float32, which ends there."""


class Entity(NamedTuple):
    """Who a row of metrics is about; what is unknown is None."""

    node: str | None = None
    device: str | None = None
    rank: int | None = None

    def suspect(self, score: float, reason: str, weight: float | None = None) -> Suspect:
        """It, as one that is accused; the row of a rank itself is of no device, though it has the rank for one."""
        device = None if _repeats(self.device, self.rank) else self.device
        return Suspect(score=score, reason=reason, rank=self.rank, node=self.node, device=device, weight=weight)


def _repeats(device: str | None, rank: int | None) -> bool:
    return rank is not None and device == f"rank-{rank}"


def name_of(node: str | None, device: str | None, rank: int | None = None) -> str:
    """A device as people call it.

    Examples
    --------
    >>> name_of("n1", "3"), name_of("n1", "mlx5_0:1"), name_of(None, None, 4), name_of("n1", None)
    ('GPU 3 of n1', 'mlx5_0:1 of n1', 'rank 4', 'n1')
    >>> name_of("n1", "rank-4", 4)
    'rank 4 on n1'
    """
    if _repeats(device, rank):
        return " on ".join(word for word in (f"rank {rank}", node) if word)
    own = f"GPU {device}" if device and device[0].isdigit() else device or ("" if rank is None else f"rank {rank}")
    return " of ".join(word for word in (own, node) if word) or "a device"


def size_in_words(count: float) -> str:
    """Bytes in words.

    Examples
    --------
    >>> size_in_words(1.5e6), size_in_words(2.25e9)
    ('1.5 MB', '2.2 GB')
    """
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count / 1e3:.1f} kB"


def value_in_words(metric: str, value: float) -> str:
    """A measured value as people read it.

    Examples
    --------
    >>> value_in_words("rank_resident_memory_bytes", 1.458e9), value_in_words("rank_cpu_ratio", 0.123456)
    ('1.5 GB', '0.1235')
    >>> value_in_words("gpu_sm_clock_hertz", 8.85e8)
    '885 MHz'
    """
    if metric.endswith("_hertz"):
        return f"{value / 1e6:.4g} MHz"
    return size_in_words(value) if metric.endswith("_bytes") else f"{value:.4g}"


@dataclass(frozen=True, slots=True)
class FamilySamples:
    """New samples of entities of one family that have the same number of them.

    Attributes
    ----------
    family : str
        The catalogue's `per` (``gpu``, ``nic``, ``host``, ``rank``), or ``""`` where rows carry no device.
    names : tuple of str, length d
        Metrics, counters already as rates per second.
    rows : int array [r]
        Place of each entity in the board's list of the family; never changes while the job lasts.
    entities : tuple of Entity, length r
    roles : tuple of str, length r
        Ranks of one role behave alike, and so do devices of one model; empty where nothing is known.
    values : float array [r, d, m + k]
        The newest m + k samples, NaN where not measured, oldest first; the last k are new.
    times_s : float array [r, k]
        When the new samples were taken.
    normal : bool
        Somebody has said that nothing in them is strange: they are what models are trained on.
    past_s : float array [r, m], optional
        When the older samples were taken, NaN where there is none; None where nobody knows.
    """

    family: str
    names: tuple[str, ...]
    rows: npt.NDArray[np.int64]
    entities: tuple[Entity, ...]
    roles: tuple[str, ...]
    values: Floats
    times_s: Floats
    normal: bool = False
    past_s: Floats | None = None

    @property
    def fresh(self) -> int:
        """How many of the samples are new, k."""
        return int(self.times_s.shape[1])


@dataclass(frozen=True, slots=True)
class ScoredSamples:
    """Calibrated scores of new samples of one family.

    Attributes
    ----------
    rows, entities
        As in `FamilySamples`.
    times_s : float array [r, k]
        NaN where a sample was left out, since the models were trained at another interval.
    scores : dict of float array [r, k]
        By model, in 0..1, 0.5 = one normal sample in 10,000 is as strange; NaN where it abstains.
    ensemble : float array [r, k]
        The weighted vote of all models, calibrated in the same way.
    blamed : callable
        ``blamed(row index, sample index)`` names the metrics most to blame there, each followed by its twins.
    versions : dict of str
        Model versions by detector.
    """

    family: str
    rows: npt.NDArray[np.int64]
    entities: tuple[Entity, ...]
    times_s: Floats
    scores: Mapping[str, Floats]
    ensemble: Floats
    blamed: Callable[[int, int], tuple[str, ...]]
    versions: Mapping[str, str] = field(default_factory=dict)

    def until(self, first: int, end: int) -> ScoredSamples:
        """The samples ``first <= index < end`` alone."""
        part = slice(first, end)
        return ScoredSamples(
            family=self.family,
            rows=self.rows,
            entities=self.entities,
            times_s=self.times_s[:, part],
            scores={name: scores[:, part] for name, scores in self.scores.items()},
            ensemble=self.ensemble[:, part],
            blamed=lambda row, sample: self.blamed(row, first + sample),
            versions=self.versions,
        )

    @classmethod
    def joined(cls, parts: Sequence[ScoredSamples]) -> ScoredSamples:
        """Stretches of the same entities, one after the other, as one; the versions are those of the last."""
        names = {name: None for part in parts for name in part.scores}
        missing = [np.full(part.times_s.shape, np.nan) for part in parts]
        ends = np.cumsum([part.times_s.shape[1] for part in parts])

        def blamed(row: int, sample: int) -> tuple[str, ...]:
            place = int(np.searchsorted(ends, sample, side="right"))
            return parts[place].blamed(row, sample - (int(ends[place - 1]) if place else 0))

        return replace(
            parts[-1],
            times_s=np.concatenate([part.times_s for part in parts], axis=1),
            scores={
                name: np.concatenate(
                    [part.scores.get(name, gap) for part, gap in zip(parts, missing, strict=True)], axis=1
                )
                for name in names
            },
            ensemble=np.concatenate([part.ensemble for part in parts], axis=1),
            blamed=blamed,
        )
