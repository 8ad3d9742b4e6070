"""Maintenance windows: days and hours, in UTC, in which nothing is done by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final, Literal

import msgspec

from trainwarden.settings import Config

Day = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
DAYS: Final[tuple[Day, ...]] = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
DAY_S: Final = 86_400.0
FIRST_DAY: Final = 3  # 1970-01-01, from which seconds are counted, was a Thursday
HourMinute = Annotated[str, msgspec.Meta(pattern=r"^(([01][0-9]|2[0-3]):[0-5][0-9]|24:00)$")]


class MaintenanceWindow(Config, frozen=True, kw_only=True):
    """Every week, on each of `days`, from `from_utc` until `to_utc`; where that is not later, of the next day.

    Examples
    --------
    >>> night = MaintenanceWindow(days=("sat",), from_utc="22:00", to_utc="06:00")
    >>> saturday_s = 1795219200.0
    >>> night.until_s(saturday_s + 21 * 3600), night.until_s(saturday_s + 29 * 3600) - saturday_s
    (None, 108000.0)
    """

    days: Annotated[tuple[Day, ...], msgspec.Meta(min_length=1, max_length=7)] = DAYS
    from_utc: HourMinute = "00:00"
    to_utc: HourMinute = "24:00"
    why: Annotated[str, msgspec.Meta(max_length=500)] = ""

    def until_s(self, now_s: float) -> float | None:
        """When the window ends that `now_s` lies in; None if it lies in none."""
        begins_s, length_s = _seconds(self.from_utc), _seconds(self.to_utc) - _seconds(self.from_utc)
        if length_s <= 0.0:
            length_s += DAY_S
        today = int(now_s // DAY_S)
        for day in (today, today - 1):
            begun_s = day * DAY_S + begins_s
            if DAYS[(day + FIRST_DAY) % 7] in self.days and begun_s <= now_s < begun_s + length_s:
                return begun_s + length_s
        return None


def over(windows: Sequence[MaintenanceWindow], now_s: float) -> tuple[MaintenanceWindow, float | None] | None:
    """The window that lies over `now_s`, and when all that join on to it end: None where they never do."""
    found = next(((one, until_s) for one in windows if (until_s := one.until_s(now_s)) is not None), None)
    if found is None:
        return None
    window, end_s = found
    while (more := max((one.until_s(end_s) or end_s for one in windows), default=end_s)) > end_s:
        if (end_s := more) > now_s + 8 * DAY_S:
            return window, None
    return window, end_s


def _seconds(hour_minute: str) -> float:
    hours, _, minutes = hour_minute.partition(":")
    return int(hours) * 3600.0 + int(minutes) * 60.0
