"""Leading time stamps of log lines, as seconds since the Unix epoch in UTC."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from trainwarden.log_shapes import by_shape, unmasked
from trainwarden.recorded.job import Floats
from trainwarden.recorded.month_names import month_of

Flags = npt.NDArray[np.bool_]

# Every pattern is tried at one place only, repeats single classes and has no repeat inside a repeat: linear time. None
# names a digit, so that the shape of a line tells which of them fit.
_CLOCK = r"([0-9]{2}):([0-9]{2}):([0-9]{2}(?:[.,][0-9]{1,9})?)"
_HALF = r"(?: ?([AaPp])\.?[Mm]\b\.?)?"  # of a day, behind a clock of twelve hours
_ISO = re.compile(
    r"([0-9]{4})[-/]([0-9]{2})[-/]([0-9]{2})[T ]([0-9]{2}):([0-9]{2})(?::([0-9]{2}(?:[.,][0-9]{1,9})?))?"
    + _HALF
    + r"(?: ?(Z|UTC|GMT|[+-][0-9]{2}:?[0-9]{2})\b)?"
)
_ZONE_GROUP = 8
_UNIX = re.compile(r"([0-9]{10}(?:\.[0-9]{1,9})?)(?![0-9A-Za-z_./:-])")
_SYSLOG = re.compile(
    r"(?:[A-Z][a-z]{2} )?([A-Z][a-z]{2}) {1,2}([0-9]{1,2}) (?:([0-9]{4}) )?"
    + _CLOCK
    + r"(?:(?: [A-Z]{3,4})? ([0-9]{4})\b)?"
)
# The same as systems of other languages write it, the month before the day or behind it.
_WORD = r"[^\W\d_]{1,12}"
_MONTH = r"([^\W\d_]{3,12}|[0-9]{1,2}[月월])\.?"
_END = r"(?:(?: [A-Z]{3,4})? ([0-9]{4})\b)?"
_LOCAL = re.compile(
    rf"(?:{_WORD}[.,]{{0,2}} {{1,2}})?{_MONTH} {{1,2}}([0-9]{{1,2}})[.日일]? (?:([0-9]{{4}}),? )?{_CLOCK}{_END}"
)
_DAY_FIRST = re.compile(
    rf"(?:{_WORD}[.,]{{0,2}} {{1,2}})?([0-9]{{1,2}})\.? {_MONTH} (?:([0-9]{{4}}),? )?{_CLOCK}{_END}"
)
# Python's loggers with %m/%d/%Y, as transformers' examples set them, rich with %x, browsers; 18.05.2026 in Europe.
_US = re.compile(
    r"([0-9]{1,2})([/.-])([0-9]{1,2})[/.-]([0-9]{4}|[0-9]{2}),? {1,2}"
    r"([0-9]{1,2}):([0-9]{2}):([0-9]{2}(?:[.,][0-9]{1,9})?)" + _HALF
)
_NO_YEAR = re.compile(r"([0-9]{2})[-/]([0-9]{2}) {1,2}" + _CLOCK + r"\b(?!:)")  # vLLM, mmengine, detectron2
# A time of day alone is one only where it says which half: 04:05:51 may be how long something took.
_TIME_OF_DAY = re.compile(r"([0-9]{1,2}):([0-9]{2}):([0-9]{2}(?:[.,][0-9]{1,9})?) ?([AaPp])\.?[Mm]\b\.?")
# torchrun pads the month (E0603), c10's own logger does not (E603, ProcessGroupNCCL and TCPStore): month * 100 + day.
_GLOG = re.compile(r"[IWEFC]([0-9]{1,2})([0-9]{2}) " + _CLOCK)
_KERNEL = re.compile(r"\[ {0,8}([0-9]{1,9}\.[0-9]{6})\] ?")
_KMSG = re.compile(r"[0-9]{1,4},[0-9]{1,20},([0-9]{1,18}),[^;]{1,40};")
# AWS Neuron's runtime names the month, CANN writes a process before the date and a dash behind it.
_NEURON = re.compile(r"([0-9]{4})-([A-Z][a-z]{2})-([0-9]{2}) " + _CLOCK)
_CANN = re.compile(
    r"[A-Z]{4,7}\] [A-Z]{2,12}\([0-9]{1,10},[^)\s]{1,64}\):([0-9]{4})-([0-9]{2})-([0-9]{2})-"
    + _CLOCK
    + r"(?:\.[0-9]{3})?"
)
_MLLOG = re.compile(r':::MLLOG \{"namespace": "[^"]{0,64}", "time_ms": ([0-9]{12,13}),')
# What may stand before a stamp: a bracket, the key of logfmt (Go's loggers), the level and facility that dmesg -x,
# glog, NeMo and transformers write.
_BEFORE = re.compile(
    r"\s{0,8}(?:kern|user|daemon|syslog|auth) {0,3}:[a-z]{1,6} {0,3}: |\s{0,8}(?:(?:time|timestamp|ts|t)=\"?|[\[(]?)"
)
_LEVEL = re.compile(r"(?:NeMo )?[A-Za-z]{1,8}(?:\|[^\]\s|]{1,80})?[\]:]{0,2} {1,3}\[?")
# Without any hint of the year; a leap year, so that every date exists in it.
_UNKNOWN_YEAR = 1972
_QUARTER_S = 900.0
_WIDEST_ZONE_S = 14 * 3600.0  # Line Islands
_SAME_S = 60.0
_STRAY_S = 3600.0
_STRAY_LINES = 8
_FEWEST_LATER = 3
_DAY_S = 86_400.0
_YEAR_S = 365.2425 * _DAY_S
# No stamp without a path before it ends farther on: 29 characters before it, two levels of 19, 45 of its own.
_HEAD_CHARS = 120
_MOST_HEAD_CHARS = 200
_DATES = 4_096


Clock = Literal["utc", "unzoned", "boot"]
_Groups = Sequence[Any]
"""Texts of a pattern's groups; None where one took no part."""


class Stamp(NamedTuple):
    """Time of a line (NaN if it has none), where what follows the stamp begins, and which clock it is of."""

    time_s: float
    end: int
    clock: Clock


_NO_STAMP = Stamp(math.nan, 0, "utc")


def iso_time_s(text: str) -> float:
    """An ISO 8601 date or time as seconds since the Unix epoch, NaN if it is none. No zone means UTC.

    Examples
    --------
    >>> iso_time_s("1970-01-01T01:00:00.5+01:00"), iso_time_s("1970-01-02 00:00"), iso_time_s("yesterday")
    (0.5, 86400.0, nan)
    """
    try:
        moment = datetime.fromisoformat(text.replace(",", "."))
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return moment.timestamp()
    except (ValueError, OverflowError):
        return math.nan


@lru_cache(maxsize=256)
def _midnight_s(year: int, month: int, day: int) -> float:
    try:
        return datetime(year, month, day, tzinfo=UTC).timestamp()
    except ValueError:
        return math.nan


@lru_cache(maxsize=256)
def _zone_s(zone: str) -> float:
    if zone[0] not in "+-":
        return 0.0
    digits = zone[1:].replace(":", "")
    seconds = int(digits[:2]) * 3600.0 + int(digits[2:]) * 60.0
    return -seconds if zone[0] == "-" else seconds


def _clock_s(hours: str, minutes: str, seconds: str, half: str | None = None) -> float:
    """Seconds since midnight; a leap second (60) is allowed. With `half` (a or p) twelve hours are a half day."""
    second, hour = float(seconds.replace(",", ".")), int(hours)
    if hour > 23 or int(minutes) > 59 or second >= 61.0:
        return math.nan
    if half is not None and 1 <= hour <= 12:
        hour = hour % 12 + 12 * (half in "Pp")
    return hour * 3600 + int(minutes) * 60 + second


class Stamps:
    """Reads the leading stamps of one file, line by line.

    Recognised are Unix seconds, ISO 8601 (also with ``/`` and ``,``), syslog, ctime and fabric-manager dates also in
    other languages, ``05/18/26 04:05:51 PM``, ``05-18 16:05:51``, ``04:05:51 PM`` of the stamp before's day, glog (``E0102 03:04:05``, also without the month's zero), MLPerf, and the kernel's seconds since boot. A zone that is not written is taken for UTC.
    A year that is not written is the one that brings the stamp nearest to the stamp before it (so time rises over New
    Year), for the first one nearest to `reference_s`.

    Parameters
    ----------
    reference_s : float or None
        A time of the same job, since the epoch.

    Examples
    --------
    >>> stamps = Stamps(1_704_067_200.0)  # 2024-01-01
    >>> stamps.read("[2024-01-01 00:00:01,500] [INFO] hello")
    Stamp(time_s=1704067201.5, end=25, clock='unzoned')
    >>> stamps.read("Dec 31 23:59:59 n1 kernel: x").time_s, stamps.read("no stamp").time_s
    (1704067199.0, nan)
    >>> stamps.read("[   12.500000] NVRM: x")
    Stamp(time_s=12.5, end=15, clock='boot')
    >>> stamps.read("2024-Jan-01 00:00:02.5 58100:58100 ERROR  TDRV:tdrv_init  x").time_s
    1704067202.5
    >>> stamps.read("[ERROR] HCCL(1041,train):2024-01-01-00:00:03.624.966 [x.cc:314] x").time_s
    1704067203.624
    """  # noqa: E501

    def __init__(self, reference_s: float | None = None) -> None:
        self._near_s = reference_s
        self._dates: dict[str, float] = {}  # times of the newest stamps with a year
        self.guessed = False  # a stamp without a year was read before anything said which year it is
        self.day_guessed = False  # nor anything which day
        self.dated_s: float | None = None  # the first stamp with a year
        self.leap_s: float | None = None  # a 29th of February: it says which years are meant

    def read(self, text: str) -> Stamp:
        """The stamp that `text` begins with."""
        for one in _possible(text):
            written = text[one.start : one.stop]
            time_s = self._dates.get(written) if one.clock != "boot" else None
            if time_s is None:
                time_s = one.time_of(self, [text[start:end] if end >= 0 else None for start, end in one.groups])
                if math.isnan(time_s):
                    continue
                if one.time_of is Stamps._iso:
                    if len(self._dates) >= _DATES:
                        self._dates.clear()
                    self._dates[written] = time_s
            if one.clock != "boot":
                self._near_s = time_s
            return Stamp(time_s, one.end, one.clock)
        return _NO_STAMP

    def _iso(self, groups: _Groups) -> float:
        year, month, day, hours, minutes, seconds, half, zone = groups
        midnight_s = _midnight_s(int(year), int(month), int(day))
        of_day_s = _clock_s(hours, minutes, seconds or "0", half)
        return self._dated(midnight_s + of_day_s - (_zone_s(zone) if zone else 0.0))

    def _dated(self, time_s: float) -> float:
        if self.dated_s is None and not math.isnan(time_s):
            self.dated_s = time_s
        return time_s

    def _named_month(self, groups: _Groups) -> float:
        year, name, day, hours, minutes, seconds = groups
        month = month_of(name) or (int(name) if name.isdecimal() else 0)
        return self._dated(_midnight_s(int(year), month, int(day)) + _clock_s(hours, minutes, seconds))

    def _syslog(self, groups: _Groups) -> float:
        name, day, year_before, hours, minutes, seconds, year_after = groups
        year = year_before or year_after
        of_day_s = _clock_s(hours, minutes, seconds)
        month = month_of(name)
        if not month:
            return math.nan
        if year:
            return self._dated(_midnight_s(int(year), month, int(day)) + of_day_s)
        return self._without_year(month, int(day), of_day_s)

    def _day_first(self, groups: _Groups) -> float:
        day, name, *others = groups
        return self._syslog((name, day, *others))

    def _us(self, groups: _Groups) -> float:
        """A date in numbers: which of them is the day is known by its size, else by the stamp before, else by habit."""
        first, mark, second, year, *clock = groups
        year = f"20{year}" if len(year) == 2 else year
        orders = [(second, first), (first, second)] if mark != "/" else [(first, second), (second, first)]
        midnights_s = [_midnight_s(int(year), int(month), int(day)) for month, day in orders]
        times_s = [time_s + _clock_s(*clock) for time_s in midnights_s if not math.isnan(time_s)]
        if not times_s:
            return math.nan
        near_s = self._near_s
        return self._dated(times_s[0] if near_s is None else min(times_s, key=lambda time_s: abs(time_s - near_s)))

    def _no_year(self, groups: _Groups) -> float:
        month, day, *clock = groups
        return self._without_year(int(month), int(day), _clock_s(*clock)) if 1 <= int(month) <= 12 else math.nan

    def _time_of_day(self, groups: _Groups) -> float:
        """On the day that brings it nearest to the stamp before it."""
        of_day_s, near_s = _clock_s(*groups), self._near_s
        if near_s is None:
            self.guessed = self.day_guessed = True
            return _midnight_s(_UNKNOWN_YEAR, 1, 1) + of_day_s
        return of_day_s + _DAY_S * round((near_s - of_day_s) / _DAY_S)

    def _glog(self, groups: _Groups) -> float:
        month, day, hours, minutes, seconds = groups
        if not 1 <= int(month) <= 12:
            return math.nan
        return self._without_year(int(month), int(day), _clock_s(hours, minutes, seconds))

    def _without_year(self, month: int, day: int, of_day_s: float) -> float:
        near_s = self._near_s
        if near_s is None:
            self.guessed = True
            return _midnight_s(_UNKNOWN_YEAR, month, day) + of_day_s
        year = int(1970 + near_s / _YEAR_S)
        if (month, day) != (2, 29):
            time_s = _midnight_s(year, month, day) + of_day_s
            if abs(time_s - near_s) < _YEAR_S / 4:  # of every other year it is farther
                return time_s
        around = range(max(1, year - 4), min(9999, year + 5)) if (month, day) == (2, 29) else range(year - 1, year + 2)
        times_s = [time_s for y in around if not math.isnan(time_s := _midnight_s(y, month, day) + of_day_s)]
        time_s = min(times_s, key=lambda time_s: abs(time_s - near_s), default=math.nan)
        self.leap_s = time_s if (month, day) == (2, 29) else self.leap_s
        return time_s

    def _unix(self, groups: _Groups) -> float:
        """Seconds; a number of ten digits far from the job's other times is a count of something else."""
        (digits,) = groups
        if digits[0] not in "12":
            return math.nan
        time_s = float(digits)
        return math.nan if self._near_s is not None and abs(time_s - self._near_s) > _YEAR_S else time_s

    def _mllog(self, groups: _Groups) -> float:
        return self._dated(int(groups[0]) / 1000.0)

    def _kernel(self, groups: _Groups) -> float:
        return float(groups[0])

    def _kmsg(self, groups: _Groups) -> float:
        return int(groups[0]) / 1e6


_Kind = tuple["re.Pattern[str]", Callable[[Stamps, _Groups], float], Clock]
_DIGIT_KINDS: tuple[_Kind, ...] = (
    (_ISO, Stamps._iso, "unzoned"), (_UNIX, Stamps._unix, "utc"), (_NEURON, Stamps._named_month, "unzoned"),
    (_US, Stamps._us, "unzoned"), (_NO_YEAR, Stamps._no_year, "unzoned"), (_LOCAL, Stamps._syslog, "unzoned"),
    (_DAY_FIRST, Stamps._day_first, "unzoned"), (_TIME_OF_DAY, Stamps._time_of_day, "unzoned"),
)  # fmt: skip
_LETTER_KINDS: tuple[_Kind, ...] = (
    (_SYSLOG, Stamps._syslog, "unzoned"), (_GLOG, Stamps._glog, "unzoned"), (_CANN, Stamps._named_month, "unzoned"),
    (_LOCAL, Stamps._syslog, "unzoned"), (_DAY_FIRST, Stamps._day_first, "unzoned"),
)  # fmt: skip
_KINDS_OF: dict[str, tuple[_Kind, ...]] = {
    **dict.fromkeys("0123456789", _DIGIT_KINDS),
    **dict.fromkeys("ABCDEFGHIJKLMNOPQRSTUVWXYZ", _LETTER_KINDS),
    ":": ((_MLLOG, Stamps._mllog, "utc"),),
}
_SINCE_BOOT: dict[str, tuple[_Kind, ...]] = {
    "[": ((_KERNEL, Stamps._kernel, "boot"),),
    **dict.fromkeys("0123456789", ((_KMSG, Stamps._kmsg, "boot"),)),
}


class _Form(NamedTuple):
    """A form of stamp that a line may begin with: whose time may still be none, as on the 31st of February."""

    time_of: Callable[[Stamps, _Groups], float]
    clock: Clock
    start: int
    stop: int
    end: int  # with the bracket behind it
    groups: tuple[tuple[int, int], ...]


def _possible(text: str) -> tuple[_Form, ...]:
    """The forms of stamp that `text` may begin with, in the order in which they are tried; remembered by shape."""
    head = text[:_HEAD_CHARS]
    if "|" in head or head.startswith(":::"):
        head = text[:_MOST_HEAD_CHARS]
    return _forms_of(head)


def _find_forms(head: str) -> Iterator[_Form]:
    before = _BEFORE.match(head)
    start = before.end() if before else 0  # it matches the empty text too
    yield from _forms_at(head, start, _KINDS_OF)
    for _ in range(2):  # a stamp behind a level: ``INFO:2024-``, ``[NeMo W 2024-``, ``[INFO|trainer.py:9] 2024-``
        level = _LEVEL.match(head, start)
        if level is None:
            break
        start = level.end()
        if head[start : start + 1].isdigit():
            yield from _forms_at(head, start, _KINDS_OF)
            break
    yield from _forms_at(head, 0, _SINCE_BOOT)


def _forms_at(head: str, start: int, kinds: Mapping[str, tuple[_Kind, ...]]) -> Iterator[_Form]:
    """Those that begin at `start` exactly; the first character says of which kinds they are."""
    first = head[start : start + 1]
    # Names of days and months begin with any letter in some language.
    others = _LETTER_KINDS if kinds is _KINDS_OF and first.isalpha() else ()
    for pattern, time_of, clock in kinds.get(first, others):
        match = pattern.match(head, start)
        if match is None:
            continue
        zoned = pattern is _ISO and match[_ZONE_GROUP] is not None
        end = match.end()
        if clock != "boot" and head[end : end + 1] in ("]", ")"):
            end += 1
        groups = tuple(match.span(number + 1) for number in range(pattern.groups))
        yield _Form(time_of, "utc" if zoned else clock, start, match.end(), end, groups)


_forms_of = by_shape(lambda shape: tuple(_find_forms(unmasked(shape))))


def zone_s(times_s: Sequence[float] | Floats, clocks: Sequence[Clock]) -> float:
    """Seconds that the unzoned stamps of one file are ahead of UTC, as its UTC stamps show; 0 if they show nothing.

    The first unzoned stamp between two UTC stamps of the same minute decides; zones differ by quarters of an hour.

    Examples
    --------
    >>> zone_s([10.0, 7212.0, 15.0], ["utc", "unzoned", "utc"])
    7200.0
    >>> zone_s([10.0, 7212.0, 8000.0], ["utc", "unzoned", "utc"])  # a pause, for all that is known
    0.0
    """
    before_s: float | None = None
    between_s: float | None = None
    for time_s, clock in zip(map(float, times_s), clocks, strict=True):
        if clock == "unzoned" and between_s is None and before_s is not None:
            between_s = time_s
        if clock != "utc":
            continue
        if between_s is not None and before_s is not None and 0.0 <= time_s - before_s <= _SAME_S:
            ahead_s = _QUARTER_S * round((between_s - before_s) / _QUARTER_S)
            if abs(ahead_s) <= _WIDEST_ZONE_S and abs(between_s - ahead_s - before_s) <= _SAME_S:
                return ahead_s
        before_s, between_s = time_s, None
    return 0.0


def strays(clocks: Sequence[Clock], times_s: Floats) -> Flags:
    """Which stamps of a file are far ahead of most of those that follow, three at least: no time of their line.

    A line may begin with a date that says something else (a sample of the data, when a licence ends); all lines after
    it would be taken for as late. Times since boot are left alone.

    Parameters
    ----------
    clocks : sequence of Clock
    times_s : float array
        The stamps' times on one clock.
    """
    wall = np.flatnonzero(np.fromiter((clock != "boot" for clock in clocks), np.bool_, len(clocks)))
    told_s = times_s[wall]
    falls = np.flatnonzero(told_s[1:] < told_s[:-1] - _STRAY_S).tolist()
    found = np.zeros(len(clocks), np.bool_)
    # Only what stands shortly before a fall can be ahead of most of what follows.
    for number in {before for fall in falls for before in range(max(0, fall - _STRAY_LINES), fall + 1)}:
        later_s = told_s[number + 1 : number + 1 + _STRAY_LINES]
        older = int((later_s < told_s[number] - _STRAY_S).sum())
        found[wall[number]] = len(later_s) >= _FEWEST_LATER and 2 * older > len(later_s)
    return found
