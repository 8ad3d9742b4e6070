"""The newest word of every device of a family, and which of its signs have lasted over the newest comparisons."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from trainwarden.detectors.job.samples import Entity, FamilySamples

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
LAST: Final = 8  # comparisons remembered
ENOUGH: Final = 6  # of which a sign must show in so many
SPAN_S: Final = 70.0  # and so much time
STALE_S: Final = 120.0  # a word that is older than this counts no more


@dataclass(slots=True)
class PeerFamily:
    """Devices of one family.

    Attributes
    ----------
    metrics, signs : tuples of str
        What is looked at, and what is found.
    latest, latest_s : float arrays [rows, metrics], [rows]
    shown : bool array [rows, signs, LAST]
        Which signs each device showed in the newest comparisons.
    times_s : float array [LAST]
        When these were; NaN = not yet.
    size, middle : float arrays [rows, signs]
        A device's own value and its peers' median when the sign was last shown.
    since_s : float array [rows, signs]
        Since when a sign shows; NaN if it does not.
    """

    metrics: tuple[str, ...]
    signs: tuple[str, ...]
    entities: list[Entity] = field(default_factory=list)
    roles: list[str] = field(default_factory=list)
    latest: Floats = field(init=False)
    latest_s: Floats = field(init=False)
    shown: Flags = field(init=False)
    times_s: Floats = field(init=False)
    size: Floats = field(init=False)
    middle: Floats = field(init=False)
    since_s: Floats = field(init=False)

    def __post_init__(self) -> None:
        signs = len(self.signs)
        self.latest, self.latest_s = np.zeros((0, len(self.metrics))), np.zeros(0)
        self.shown, self.times_s = np.zeros((0, signs, LAST), dtype=np.bool_), np.full(LAST, np.nan)
        self.size, self.middle, self.since_s = (np.zeros((0, signs)) for _ in range(3))

    def observe(self, samples: FamilySamples, place: int) -> None:
        """Sample number `place` of those that are new."""
        rows, column = samples.rows, samples.values.shape[2] - samples.fresh + place
        self._room(int(rows.max(initial=-1)) + 1)
        for row, entity, role in zip(rows.tolist(), samples.entities, samples.roles, strict=True):
            self.entities[row], self.roles[row] = entity, role
        there = np.isfinite(samples.times_s[:, place])
        for number, name in enumerate(self.metrics):
            if name in samples.names:
                values = samples.values[:, samples.names.index(name), column]
                known = there & np.isfinite(values)
                self.latest[rows[known], number] = values[known]
                self.latest_s[rows[known]] = samples.times_s[known, place]

    def now(self, now_s: float) -> dict[str, Floats]:
        """Values of every metric [rows]; NaN where a device has said nothing of late."""
        stale = ~(now_s - self.latest_s <= STALE_S)
        values = np.where(stale[:, None], np.nan, self.latest)
        return {name: values[:, number] for number, name in enumerate(self.metrics)}

    def note(self, now_s: float, found: dict[str, tuple[Flags, Floats, Floats]]) -> None:
        """One comparison: who shows which sign, with the value and the median of the peers."""
        self.shown[:, :, :-1] = self.shown[:, :, 1:]
        self.times_s[:-1] = self.times_s[1:]
        self.times_s[-1] = now_s
        for number, sign in enumerate(self.signs):
            flags, size, middle = found[sign]
            self.shown[:, number, -1] = flags
            self.size[:, number] = np.where(flags, size, self.size[:, number])
            self.middle[:, number] = np.where(flags, middle, self.middle[:, number])
            since_s = self.since_s[:, number]
            begun_s = np.where(flags & np.isnan(since_s), now_s, since_s)
            self.since_s[:, number] = np.where(self.shown[:, number].any(axis=1), begun_s, np.nan)

    def lasting(self) -> Flags:
        """Signs that show in most of the newest comparisons, over enough time [rows, signs]."""
        if not self.times_s[-1] - self.times_s[LAST - ENOUGH] >= SPAN_S:
            return np.zeros(self.shown.shape[:2], dtype=np.bool_)
        return np.asarray(self.shown.sum(axis=2) >= ENOUGH)

    def _room(self, size: int) -> None:
        more = size - len(self.entities)
        if more <= 0:
            return
        self.entities += [Entity()] * more
        self.roles += [""] * more
        for name in ("latest", "latest_s", "size", "middle", "since_s"):
            array = getattr(self, name)
            setattr(self, name, np.concatenate([array, np.full((more, *array.shape[1:]), np.nan)]))
        self.shown = np.concatenate([self.shown, np.zeros((more, *self.shown.shape[1:]), dtype=np.bool_)])
