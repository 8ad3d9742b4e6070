"""The table of limits (`limits.toml`), and the memory of one limit over the devices of a family."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from trainwarden.catalogue import CATALOGUE
from trainwarden.errors import ConfigError
from trainwarden.records import IncidentKind, Severity

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Rows = npt.NDArray[np.int64]
FILE: Final = Path(__file__).with_name("limits.toml")
BUCKETS: Final = 12  # of the time in which growth is counted
GONE_S: Final = 600.0  # of a device that has told nothing for so long nothing is said


class Limit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One limit; see the head of `limits.toml`."""

    id: str
    metric: str
    kind: IncidentKind
    severity: Severity
    says: str
    source: str
    above: float | None = None
    total: Annotated[float, msgspec.Meta(ge=0.0)] | None = None
    over_s: Annotated[float, msgspec.Meta(ge=0.0, le=86_400.0)] = 0.0
    hotter: float | None = None

    @property
    def bar(self) -> float:
        """What is not to be exceeded."""
        return self.above if self.above is not None else self.total or 0.0

    def words(self, value: float) -> str:
        """What is said of a device with `value`."""
        return self.says.format(value=value, bar=self.bar, over_s=self.over_s)


def read_limits(path: Path = FILE) -> tuple[Limit, ...]:
    """The limits of a table.

    Raises
    ------
    ConfigError
        If it cannot be read or a limit is wrong; the message names it.
    """
    limits: list[Limit] = []
    try:
        for number, raw in enumerate(tomllib.loads(path.read_text(encoding="utf-8")).get("limit", []), 1):
            try:
                limit = msgspec.convert(raw, Limit)
                limit.words(0.0)
            except (msgspec.ValidationError, LookupError, ValueError, AttributeError) as error:
                raise ConfigError(f"{path.name}: limit {number}: {error}") from error
            if (limit.above is None) == (limit.total is None) or (limit.total is not None and not limit.over_s):
                raise ConfigError(f"{path.name}: limit {limit.id} needs either above, or total and over_s")
            if limit.metric not in CATALOGUE:
                raise ConfigError(f"{path.name}: limit {limit.id}: the catalogue has no metric '{limit.metric}'")
            limits.append(limit)
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path.name}: cannot be read ({error})") from error
    return tuple(limits)


@cache
def shipped_limits() -> tuple[Limit, ...]:
    """The table that comes with us."""
    return read_limits()


def _none() -> Floats:
    return np.full(0, np.nan)


@dataclass(slots=True)
class LimitMemory:
    """One limit over all devices of a family.

    Attributes
    ----------
    since_s : float array [rows]
        Since when a device is above, or its counter grows; NaN if it is not.
    seen_s : float array [rows]
        Its newest sample of the metric.
    value : float array [rows]
        That sample, or the growth counted.
    peer : float array [rows]
        That sample, if the device was at work then: what others are held against.
    buckets, bucket : arrays [rows, BUCKETS], [rows]
        Growth by stretches of time, and the newest stretch's number.
    """

    limit: Limit
    since_s: Floats = field(default_factory=_none)
    seen_s: Floats = field(default_factory=_none)
    value: Floats = field(default_factory=_none)
    peer: Floats = field(default_factory=_none)
    buckets: Floats = field(default_factory=lambda: np.zeros((0, BUCKETS)))
    bucket: Floats = field(default_factory=_none)

    def take(self, rows: Rows, values: Floats, times_s: Floats, idle: Flags | None = None) -> None:
        """Samples of one moment: ``values [n]`` of the devices `rows`, taken at ``times_s [n]``, and who was `idle`."""
        self._room(int(rows.max(initial=-1)) + 1)
        known = np.isfinite(values) & ~(times_s <= self.seen_s[rows])
        if self.limit.above is not None:
            self.peer[rows[known]] = np.where(False if idle is None else idle, np.nan, values)[known]
            self._level(rows[known], values[known], times_s[known])
        else:
            self._growth(rows[known], values[known], times_s[known])
        self.seen_s[rows[known]] = times_s[known]

    def broken(self, now_s: float) -> Rows:
        """The devices above the limit."""
        with np.errstate(invalid="ignore"):
            lasts = self.seen_s - self.since_s >= self.limit.over_s
            over = lasts if self.limit.above is not None else self.value > self.limit.bar
            return np.flatnonzero(over & np.isfinite(self.since_s) & (now_s - self.seen_s < GONE_S))

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Arrays for `restore`."""
        names = ("since_s", "seen_s", "value", "peer", "buckets", "bucket")
        return {name: getattr(self, name) for name in names}

    def restore(self, arrays: dict[str, npt.NDArray[Any]]) -> None:
        """Go on from `state`'s arrays."""
        for name, array in arrays.items():
            setattr(self, name, array.astype(np.float64))

    # -- internals -------------------------------------------------------------------------------------------

    def _apart(self, values: Floats, now_s: float) -> Flags:
        """Whether each value is as far above the median of all devices at work as the limit asks."""
        if self.limit.hotter is None:
            return np.ones(values.size, dtype=np.bool_)
        peers = self.peer[np.isfinite(self.peer) & ~(now_s - self.seen_s >= GONE_S)]
        return np.asarray(values - (np.median(peers) if peers.size else np.nan) > self.limit.hotter)

    def _level(self, rows: Rows, values: Floats, times_s: Floats) -> None:
        over = (values > self.limit.bar) & self._apart(values, float(times_s.max(initial=-np.inf)))
        since_s = self.since_s[rows]
        self.since_s[rows] = np.where(over, np.where(np.isnan(since_s), times_s, since_s), np.nan)
        self.value[rows] = values

    def _growth(self, rows: Rows, rates: Floats, times_s: Floats) -> None:
        width_s = self.limit.over_s / BUCKETS
        number = np.floor(times_s / width_s)
        passed = np.where(np.isnan(self.bucket[rows]), BUCKETS, number - self.bucket[rows])
        age = np.mod(number[:, None] - np.arange(BUCKETS), BUCKETS)  # of each bucket: 0 is the newest
        kept = np.where(age < passed[:, None], 0.0, self.buckets[rows])
        # Nobody knows when it grew between two samples: evenly, and what is before the stretch is not of it.
        elapsed_s = np.minimum(np.nan_to_num(times_s - self.seen_s[rows]), self.limit.over_s)
        grown = np.maximum(rates, 0.0) * elapsed_s
        spread = np.clip(passed, 1, BUCKETS)[:, None]
        kept += np.where(age < spread, grown[:, None] / spread, 0.0)
        total = kept.sum(axis=1)
        since_s = self.since_s[rows]
        self.since_s[rows] = np.where(total > 1e-6, np.where(np.isnan(since_s), times_s, since_s), np.nan)
        self.buckets[rows], self.bucket[rows], self.value[rows] = kept, number, np.round(total, 3)

    def _room(self, size: int) -> None:
        more = size - self.since_s.size
        if more <= 0:
            return
        for name in ("since_s", "seen_s", "value", "peer", "bucket"):
            setattr(self, name, np.append(getattr(self, name), np.full(more, np.nan)))
        self.buckets = np.concatenate([self.buckets, np.zeros((more, BUCKETS))])
