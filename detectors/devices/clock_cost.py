"""What being held down costs a GPU: its clock against that of its busy peers, else against its own highest."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from trainwarden.detectors.devices.signs import LEAST_PEERS
from trainwarden.detectors.job.samples import FamilySamples

Floats = npt.NDArray[np.float64]
CLOCK: Final = "gpu_sm_clock_hertz"
HIGHEST: Final = "gpu_sm_clock_max_hertz"
METRICS: Final = (CLOCK, HIGHEST)
STALE_S: Final = (
    120.0  # a clock that is older than this is no peer's (as in `trainwarden.detectors.devices.peer_memory`)
)
LEAST_SHARE: Final = 0.01  # a difference of less is not worth a word: clocks come in steps of 15 MHz
_MHZ: Final = 1e6


def _none() -> Floats:
    return np.full(0, np.nan)


@dataclass(slots=True)
class ClockCost:
    """The newest clocks of all GPUs.

    Attributes
    ----------
    clock, highest, seen_s : float arrays [rows]
        The clock while the GPU works and the highest that it may reach, in hertz, and when the clock was told;
        NaN = not known.
    role : int array [rows]
        GPUs of one number are alike.
    """

    clock: Floats = field(default_factory=_none)
    highest: Floats = field(default_factory=_none)
    seen_s: Floats = field(default_factory=_none)
    role: Floats = field(default_factory=_none)
    roles: dict[str, int] = field(default_factory=dict)

    def observe(self, samples: FamilySamples, idle: npt.NDArray[np.bool_]) -> None:
        """New samples of GPUs, and which of them are known to be `idle` [rows, new samples]."""
        rows, past = samples.rows, samples.values.shape[2] - samples.fresh
        self._room(int(rows.max(initial=-1)) + 1)
        self.role[rows] = [self.roles.setdefault(role, len(self.roles)) for role in samples.roles]
        for place in range(samples.fresh):
            for name, kept in ((CLOCK, self.clock), (HIGHEST, self.highest)):
                if name in samples.names:
                    values = samples.values[:, samples.names.index(name), past + place]
                    known = np.isfinite(values)
                    if name == CLOCK:
                        self.seen_s[rows[known]] = samples.times_s[known, place]
                        values = np.where(idle[:, place], np.nan, values)
                    kept[rows[known]] = values[known]

    def words(self, row: int) -> str:
        """What the GPU of `row` loses; empty where that is not known, or nothing."""
        if row >= self.clock.size or not np.isfinite(self.clock[row]):
            return ""
        own = float(self.clock[row])
        peers = self.clock[(self.role == self.role[row]) & (np.abs(self.seen_s - self.seen_s[row]) < STALE_S)]
        peers = peers[np.isfinite(peers)]  # itself is one of them
        usual = float(np.median(peers)) if peers.size > LEAST_PEERS else np.nan
        for other, words in ((usual, "where its busy peers have"), (float(self.highest[row]), "of at most")):
            if own < (1.0 - LEAST_SHARE) * other:
                return f"SM clock {own / _MHZ:.0f} MHz {words} {other / _MHZ:.0f}, {1.0 - own / other:.0%} less"
        return ""

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Arrays for `restore`; `roles` goes beside them."""
        return {name: getattr(self, name) for name in _ARRAYS}

    def restore(self, arrays: dict[str, npt.NDArray[Any]], roles: dict[str, int]) -> None:
        """Go on from `state`'s arrays."""
        for name in _ARRAYS:
            setattr(self, name, arrays[name].astype(np.float64))
        self.roles = dict(roles)

    def _room(self, size: int) -> None:
        more = size - self.clock.size
        if more > 0:
            for name in _ARRAYS:
                setattr(self, name, np.append(getattr(self, name), np.full(more, np.nan)))


_ARRAYS: Final = ("clock", "highest", "seen_s", "role")
