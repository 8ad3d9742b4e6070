"""Times of other tools' files as seconds since the Unix epoch."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

import numpy as np
import pandas as pd

from trainwarden.recorded.job import Floats
from trainwarden.recorded.log_stamps import iso_time_s
from trainwarden.recorded.rows import epoch_factor

_DATE: Final = re.compile(r"([0-9]{1,2})[/.-]([0-9]{1,2})[/.-]([0-9]{4})[ T,]{1,2}(.{4,24})$")
_YEAR_FIRST: Final = re.compile(r"([0-9]{4})[/.]([0-9]{1,2})[/.]([0-9]{1,2})([ T].{1,40})?$")
_COMPACT: Final = re.compile(r"([0-9]{4})([0-9]{2})([0-9]{2})[ T]([0-9:]{6,8}(?:\.[0-9]{1,9})?)$")
_OF_DAY: Final = re.compile(r"([0-9]{1,2}):([0-9]{2}):([0-9]{2}(?:[.,][0-9]{1,9})?)$")
_ZONE: Final = re.compile(r"\s{1,2}(UTC|GMT|Z)$")
_HAS_ZONE: Final = re.compile(r"(?:[Zz]|[+-][0-9]{2}:?[0-9]{2}|UTC|GMT)\s{0,2}$")
_LEAST_ROWS: Final = 8
_LONG_FRACTION: Final = re.compile(r"(\.[0-9]{6})[0-9]{1,12}")
_FORMS: Final = ("%a %b %d %H:%M:%S %Y", "%a %b %d %H:%M:%S UTC %Y", "%a %d %b %Y %I:%M:%S %p%z",
                 "%d %b %Y %H:%M:%S", "%b %d %Y %H:%M:%S", "%b %d, %Y, %I:%M:%S %p",
                 "%b %d, %Y %H:%M:%S", "%b %d, %Y @ %H:%M:%S.%f", "%d-%b-%Y %H:%M:%S", "%b %d %H:%M:%S %Y")  # fmt: skip


class Times:
    """A column of times.

    Attributes
    ----------
    values_s : float array [rows]
        NaN where a cell holds no time.
    note : str
        What was assumed, "" for nothing.
    bad : list of (row, text)
        The first cells that hold no time.
    """

    def __init__(self, cells: Sequence[object]) -> None:
        codes, distinct = pd.factorize(np.asarray(cells, dtype=object), use_na_sentinel=False)
        texts = ["" if cell is None else str(cell).strip().strip('"') for cell in distinct]
        numbers = np.array([_number(text) for text in texts])
        self.note, self.numeric, of_day = "", False, False
        if texts and np.isfinite(numbers).sum() * 2 >= sum(bool(text) for text in texts):
            factor, unit = epoch_factor(numbers)
            values = numbers * factor
            self.note = f"times taken for {unit} since 1970" if unit != "seconds" else ""
            self.numeric = True
        elif of_day := bool(texts) and all(map(_OF_DAY.match, texts)):
            values = np.array([of_day_s(text) for text in texts])
            self.note = "times of day taken for those of one day after the other"
        else:
            day_first, self.note = _order(texts)
            values = np.array([_stamp_s(text, day_first) for text in texts])
        self.values_s: Floats = rising(values[codes]) if of_day else values[codes]
        if not self.numeric and not of_day and not any(map(_HAS_ZONE.search, texts[:50])):
            self.values_s, note = winter(self.values_s)
            self.note = self.note or note
        rows = np.flatnonzero(~np.isfinite(self.values_s))
        self.bad = [(row, str(cells[row])) for row in rows[:5].tolist()]
        self.bad_count = int(rows.size)


def time_s_of(text: str) -> float:
    """One time, as in `Times`; NaN if it is none.

    Examples
    --------
    >>> time_s_of("2026/09/21 14:53:20.000") == time_s_of("2026-09-21T14:53:20Z") == time_s_of("1790002400000")
    True
    >>> time_s_of("21.09.2026 14:53:20") == time_s_of("Mon Sep 21 14:53:20 2026") == time_s_of("20260921 14:53:20")
    True
    """
    return float(Times([text]).values_s[0])


def of_day_s(text: str) -> float:
    """Seconds since midnight; NaN if `text` is no time of day.

    Examples
    --------
    >>> of_day_s("07:33:20.5"), of_day_s("2026-11-04 07:33:20")
    (27200.5, nan)
    """
    match = _OF_DAY.match(text)
    if match is None:
        return np.nan
    return int(match[1]) * 3600.0 + int(match[2]) * 60.0 + float(match[3].replace(",", "."))


def rising(times_s: Sequence[float] | Floats) -> Floats:
    """Times of day that go on over midnight.

    Examples
    --------
    >>> rising([86399.0, 0.0, 1.0]).tolist()
    [86399.0, 86400.0, 86401.0]
    """
    times = np.asarray(times_s, np.float64)
    falls = np.diff(times, prepend=times[:1]) < -43_200.0
    return np.asarray(times + 86_400.0 * np.cumsum(falls))


def winter(times_s: Floats) -> tuple[Floats, str]:
    """Local times whose hour comes twice at the end of summer time, the second one an hour later; else unchanged.

    Zones change in the small hours of a Sunday in spring or autumn. A column that goes back by an hour once, there, and
    rises else, is such a one; rows keep their order.

    Examples
    --------
    >>> start = 1761444000.0  # 2025-10-26 02:00
    >>> clock = np.concatenate([start + 60.0 * np.arange(60), start + 60.0 * np.arange(60)])
    >>> np.diff(winter(clock)[0]).max(), winter(clock + 86_400.0)[1]
    (np.float64(60.0), '')
    """
    known = np.flatnonzero(np.isfinite(times_s))
    steps = np.diff(times_s[known])
    falls = np.flatnonzero(steps < 0.0)
    if falls.size != 1 or steps.size < _LEAST_ROWS:
        return times_s, ""
    fall = int(falls[0])
    at = datetime.fromtimestamp(float(times_s[known[fall]]), UTC)
    usual = float(np.median(steps[steps > 0.0])) if (steps > 0.0).any() else np.inf
    late = float(steps[fall]) + 3_600.0
    if at.weekday() != 6 or at.month not in (3, 4, 9, 10, 11) or at.hour > 3 or not 0.0 <= late <= 3.0 * usual:
        return times_s, ""
    found = times_s.copy()
    found[known[fall + 1] :] += 3_600.0
    return found, f"times go back by an hour at row {int(known[fall + 1]) + 1}: taken for the end of summer time"


def _number(text: str) -> float:
    try:
        return float(text) if text and "_" not in text else np.nan
    except ValueError:
        return np.nan


def _order(texts: Sequence[str]) -> tuple[bool, str]:
    """Whether the day stands before the month, and what is to be said of it."""
    pairs = [(int(match[1]), int(match[2]), "." in text[:3]) for text in texts if (match := _DATE.match(text))]
    if not pairs or any(dotted for *_, dotted in pairs):
        return True, ""
    if any(first > 12 for first, *_ in pairs):
        return True, ""
    if any(second > 12 for _, second, _ in pairs):
        return False, ""
    return False, "dates taken for month/day/year"


def _stamp_s(text: str, day_first: bool) -> float:
    if not text:
        return np.nan
    text = _LONG_FRACTION.sub(r"\1", _ZONE.sub("+00:00", text))
    if (match := _YEAR_FIRST.match(text)) is not None:
        text = f"{match[1]}-{int(match[2]):02d}-{int(match[3]):02d}{match[4] or ''}"
    elif (match := _COMPACT.match(text)) is not None:
        text = f"{match[1]}-{match[2]}-{match[3]} {match[4]}"
    elif (match := _DATE.match(text)) is not None:
        day, month = (match[1], match[2]) if day_first else (match[2], match[1])
        rest = match[4].strip()
        if rest.upper().endswith(("AM", "PM")):
            return _by_form(f"{match[3]}-{int(month):02d}-{int(day):02d} {rest}", ("%Y-%m-%d %I:%M:%S %p",))
        text = f"{match[3]}-{int(month):02d}-{int(day):02d} {rest}"
    found = iso_time_s(text)
    return found if np.isfinite(found) else _by_form(text, _FORMS)


def _by_form(text: str, forms: Sequence[str]) -> float:
    for form in forms:
        try:
            return datetime.strptime(text, form).replace(tzinfo=UTC).timestamp()
        except ValueError:
            continue
    return np.nan
