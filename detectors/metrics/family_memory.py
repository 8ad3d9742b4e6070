"""What a model's vote remembers of one family's entities, as arrays by the board's rows."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from trainwarden.detectors.job.last_seen import absent_after
from trainwarden.detectors.job.samples import Entity, Floats
from trainwarden.detectors.metrics.hysteresis import ABSENT, REFERENCE_S

PARTS: Final = (
    "recent",
    "below",
    "missing",
    "opened",
    "usual",
    "learnt",
    "open_s",
    "onset_s",
    "peak",
    "latest",
    "shared",
    "last_s",
    "heard_s",
    "common",
)
PACE_SAMPLES: Final = 1_000  # the sampling interval is the mean, in logarithms, over about so many samples


@dataclass(slots=True)
class FamilyMemory:
    """What is remembered of a family's entities, by the board's rows."""

    entities: list[Entity] = field(default_factory=list)
    size: int = 0  # entities seen
    recent: npt.NDArray[np.uint64] = field(default_factory=lambda: np.zeros(0, dtype=np.uint64))  # newest in bit 0
    below: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    missing: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    opened: npt.NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))
    usual: Floats = field(default_factory=lambda: np.zeros(0))  # nats of rarity that are usual for the entity
    learnt: Floats = field(default_factory=lambda: np.zeros(0))  # what will be usual once it is not anomalous
    open_s: Floats = field(default_factory=lambda: np.zeros(0))  # for how long it has been anomalous
    onset_s: Floats = field(default_factory=lambda: np.zeros(0))
    peak: Floats = field(default_factory=lambda: np.zeros(0))  # highest score since the onset
    latest: Floats = field(default_factory=lambda: np.zeros(0))
    shared: Floats = field(default_factory=lambda: np.zeros(0))  # the whole vote's highest score since the onset
    last_s: Floats = field(default_factory=lambda: np.zeros(0))
    heard_s: Floats = field(default_factory=lambda: np.zeros(0))  # when its newest score came
    common: npt.NDArray[np.bool_] = field(
        default_factory=lambda: np.zeros(0, dtype=np.bool_)
    )  # opened with most others
    blamed: dict[int, tuple[str, ...]] = field(default_factory=dict)
    pace: float = float(np.log(REFERENCE_S))  # logarithm of the sampling interval
    paced: int = 0  # samples that it was learnt from

    @property
    def every_s(self) -> float:
        """Seconds between two samples of an entity."""
        return float(np.exp(self.pace))

    def keep_pace(self, times_s: Floats, last_s: Floats) -> Floats:
        """Learn the sampling interval from times ``[r, k]`` after `last_s` ``[r]``; what it is at each sample."""
        # A sample that was left out has no time; the next one's interval is that since the last one taken.
        before_s = np.fmax.accumulate(np.concatenate([last_s[:, None], times_s], axis=1), axis=1)[:, :-1]
        elapsed_s = times_s - before_s
        elapsed_s[~(elapsed_s > 0.0)] = np.nan
        known = ~np.isnan(elapsed_s).all(axis=0)
        middle = np.full(times_s.shape[1], np.nan)
        middle[known] = elapsed_s[0, known] if len(elapsed_s) == 1 else np.nanmedian(elapsed_s[:, known], axis=0)
        paces = np.empty(middle.size)
        for sample, pace in enumerate(np.log(middle).tolist()):
            if not math.isnan(pace):
                self.paced = min(self.paced + 1, PACE_SAMPLES)
                self.pace += (pace - self.pace) / self.paced
            paces[sample] = self.pace
        return np.exp(paces)

    def concerned(self, besides: npt.NDArray[np.int64]) -> tuple[int, int]:
        """How many entities, `besides` these rows, are strange now, and how many are known."""
        known = ~np.isnan(self.latest)
        known[besides] = False
        return int((known & strange_now(self.opened, self.recent)).sum()), int(known.sum())

    def observe(
        self, rows: npt.NDArray[np.int64], times_s: Floats, measured: npt.NDArray[np.bool_], now_s: float
    ) -> None:
        """Samples of `rows` taken at ``times_s [r, k]``, some of them `measured`, have come at `now_s`."""
        newest_s = np.fmax.reduce(np.where(measured, times_s, np.nan), axis=1)
        came_s = now_s - (np.fmax.reduce(times_s, axis=1) - newest_s)
        self.heard_s[rows] = np.where(np.isnan(came_s), self.heard_s[rows], came_s)

    def let_go(self, now_s: float) -> None:
        """Nothing is said of whoever has had no score for long: what is lost is neither strange nor normal."""
        with np.errstate(invalid="ignore"):
            absent = now_s - self.heard_s > absent_after(np.array(self.every_s))
        absent |= self.missing >= ABSENT
        if absent.any():
            self.opened[absent], self.recent[absent], self.below[absent] = False, 0, 0
            self.latest[absent], self.common[absent] = np.nan, False

    def resize(self, size: int) -> None:
        more = max(size, len(self.entities) + len(self.entities) // 2) - self.opened.size
        if size <= self.opened.size:
            return
        self.entities.extend([Entity()] * (self.opened.size + more - len(self.entities)))
        for part in PARTS:
            array = getattr(self, part)
            fill = np.nan if array.dtype.kind == "f" and part not in {"usual", "learnt", "open_s"} else 0
            setattr(self, part, np.append(array, np.full(more, fill, dtype=array.dtype)))


def strange_now(opened: npt.NDArray[np.bool_], recent: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
    """Whose newest sample is strange, or who is anomalous; an older single one is anybody's."""
    return np.asarray(opened | (recent & np.uint64(1) != 0), dtype=np.bool_)
