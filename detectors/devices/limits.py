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
    buckets, bucket : arrays [rows, BUCKETS], [rows]
        Growth by stretches of time, and the newest stretch's number.
    """

    limit: Limit
    since_s: Floats = field(default_factory=_none)
    seen_s: Floats = field(default_factory=_none)
    value: Floats = field(default_factory=_none)
    buckets: Floats = field(default_factory=lambda: np.zeros((0, BUCKETS)))
    bucket: Floats = field(default_factory=_none)

    def take(self, rows: Rows, values: Floats, times_s: Floats) -> None:
        """Samples of one moment: ``values [n]`` of the devices `rows`, taken at ``times_s [n]``."""
        self._room(int(rows.max(initial=-1)) + 1)
        known = np.isfinite(values) & ~(times_s <= self.seen_s[rows])
        if self.limit.above is not None:
            self._level(rows[known], values[known], times_s[known], self._apart(values)[known])
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
        names = ("since_s", "seen_s", "value", "buckets", "bucket")
        return {name: getattr(self, name) for name in names}

    def restore(self, arrays: dict[str, npt.NDArray[Any]]) -> None:
        """Go on from `state`'s arrays."""
        for name, array in arrays.items():
            setattr(self, name, array.astype(np.float64))

    # -- internals -------------------------------------------------------------------------------------------

    def _apart(self, values: Floats) -> npt.NDArray[np.bool_]:
        """Whether each value is as far above the others' median as the limit asks."""
        if self.limit.hotter is None or not np.isfinite(values).any():
            return np.ones(values.size, dtype=np.bool_)
        with np.errstate(invalid="ignore"):
            return np.asarray(values - np.nanmedian(values) > self.limit.hotter)

    def _level(self, rows: Rows, values: Floats, times_s: Floats, apart: npt.NDArray[np.bool_]) -> None:
        over = (values > self.limit.bar) & apart
        since_s = self.since_s[rows]
        self.since_s[rows] = np.where(over, np.where(np.isnan(since_s), times_s, since_s), np.nan)
        self.value[rows] = values

    def _growth(self, rows: Rows, rates: Floats, times_s: Floats) -> None:
        width_s = self.limit.over_s / BUCKETS
        number = np.floor(times_s / width_s)
        passed = np.where(np.isnan(self.bucket[rows]), BUCKETS, number - self.bucket[rows])
        age = np.mod(number[:, None] - np.arange(BUCKETS), BUCKETS)  # of each bucket: 0 is the newest
        kept = np.where(age < passed[:, None], 0.0, self.buckets[rows])
        elapsed_s = np.nan_to_num(times_s - self.seen_s[rows])
        grown = np.maximum(rates, 0.0) * elapsed_s
        kept[np.arange(rows.size), np.mod(number, BUCKETS).astype(np.int64)] += grown
        total = kept.sum(axis=1)
        since_s = self.since_s[rows]
        self.since_s[rows] = np.where(total > 1e-6, np.where(np.isnan(since_s), times_s, since_s), np.nan)
        self.buckets[rows], self.bucket[rows], self.value[rows] = kept, number, np.round(total, 3)

    def _room(self, size: int) -> None:
        more = size - self.since_s.size
        if more <= 0:
            return
        for name in ("since_s", "seen_s", "value", "bucket"):
            setattr(self, name, np.append(getattr(self, name), np.full(more, np.nan)))
        self.buckets = np.concatenate([self.buckets, np.zeros((more, BUCKETS))])
