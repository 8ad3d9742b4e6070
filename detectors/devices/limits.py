"""The table of limits: what ships (`limits.toml`), and an operator's own laid over it."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec

from trainwarden.catalogue import CATALOGUE
from trainwarden.detectors.job.samples import value_in_words
from trainwarden.errors import ConfigError
from trainwarden.records import IncidentKind, Severity

FILE: Final = Path(__file__).with_name("limits.toml")
Phase = Literal["start", "restart", "checkpoint", "evaluation", "compile", "data", "exit"]
_UNSET: Final = (None, False, ())


class Limit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One limit; see the head of `limits.toml`."""

    id: str
    metric: str
    kind: IncidentKind
    severity: Severity
    says: str
    source: str
    above: float | None = None
    below: float | None = None
    total: Annotated[float, msgspec.Meta(ge=0.0)] | None = None
    over_s: Annotated[float, msgspec.Meta(ge=0.0, le=86_400.0)] = 0.0
    relief: float | None = None
    of: str | None = None
    than: str | None = None
    when: str | None = None
    hotter: Annotated[float, msgspec.Meta(ge=0.0)] | None = None
    times: Annotated[float, msgspec.Meta(gt=0.0)] | None = None
    at_work: bool = False
    turned: bool = False
    per_lane: bool = False
    not_in: tuple[Phase, ...] = ()

    @property
    def bar(self) -> float:
        """What is not to be exceeded, or fallen below."""
        return next(one for one in (self.above, self.below, self.total, 0.0) if one is not None)

    @property
    def side(self) -> float:
        """1 where larger values are worse, -1 where smaller ones are."""
        return 1.0 if self.below is None else -1.0

    @property
    def metrics(self) -> tuple[str, ...]:
        """Every metric that it looks at, its own first."""
        return (self.metric, *(name for name in (self.of, self.than, self.when) if name is not None))

    def words(self, value: float) -> str:
        """What is said of a device with `value`."""
        return self.says.format(value=value, words=value_in_words(self.metric, value), bar=self.bar, over_s=self.over_s)

    def mistake(self) -> str:
        """What is wrong with a limit whose fields are right one by one; empty if nothing is."""
        if sum(one is not None for one in (self.above, self.below, self.total)) != 1:
            return "needs either above or below or total"
        if self.total is not None:
            given = [name for name in _OF_LEVELS if getattr(self, name) not in _UNSET]
            if given:
                return f"counts growth (total), where {given[0]} means nothing"
            if not self.over_s:
                return "needs over_s, the time in which growth is counted"
        if self.of is not None and self.than is not None:
            return "compares with one other metric: of or than"
        if self.relief is not None and self.side * (self.relief - self.bar) > 0.0:
            return f"is over at relief = {self.relief:g}, which lies beyond its bar {self.bar:g}"
        for name in self.metrics:
            if name not in CATALOGUE:
                return f"the catalogue has no metric '{name}'"
        return ""


_OF_LEVELS: Final = ("of", "than", "when", "hotter", "times", "at_work", "turned", "not_in")


def read_limits(path: Path = FILE) -> tuple[Limit, ...]:
    """The limits of a table.

    Raises
    ------
    ConfigError
        If it cannot be read or a limit is wrong; the message names it.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path.name}: cannot be read ({error})") from error
    if set(table) - {"limit"} or not isinstance(table.get("limit", []), list):
        raise ConfigError(f"{path.name}: holds tables [[limit]] and nothing else")
    limits: dict[str, Limit] = {}
    for number, raw in enumerate(table.get("limit", []), 1):
        limit = _limit(raw, f"{path.name}: limit {number}")
        if limit.id in limits:
            raise ConfigError(f"{path.name}: limit {number}: there is a limit {limit.id} before it")
        limits[limit.id] = limit
    return tuple(limits.values())


def _limit(raw: Any, where: str) -> Limit:
    try:
        limit = msgspec.convert(raw, Limit)
        limit.words(0.0)
    except (msgspec.ValidationError, LookupError, ValueError, AttributeError) as error:
        raise ConfigError(f"{where}: {error}") from error
    if wrong := limit.mistake():
        raise ConfigError(f"{where}: {limit.id} {wrong}")
    return limit


@cache
def limits_in_force(path: str | None = None) -> tuple[Limit, ...]:
    """What ships, with the limits of the file at `path` in the place of those of the same id, new ones after them.

    A file is read once by a process.

    Raises
    ------
    ConfigError
        If the file is wrong.

    Examples
    --------
    >>> limits_in_force()[0].id
    'gpu.row_remap_failure'
    """
    limits = {limit.id: limit for limit in read_limits()}
    if path is not None:
        try:
            limits |= {limit.id: limit for limit in read_limits(Path(path))}
        except ConfigError as error:
            raise ConfigError(f"detection.detectors.device_limits: {Path(path).parent / str(error)}") from error
    return tuple(limits.values())
