"""Cells of other tools' tables as numbers: units, words for "not measured", masks, decimal commas."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Final

import numpy as np

from trainwarden.recorded.job import Floats

# Unit word, in lower case: the catalogue's unit, and what a value is to be multiplied by to be in it.
UNITS: Final[dict[str, tuple[str, float]]] = {
    "mhz": ("hertz", 1e6), "ghz": ("hertz", 1e9), "khz": ("hertz", 1e3), "hz": ("hertz", 1.0),
    "w": ("watts", 1.0), "watt": ("watts", 1.0), "watts": ("watts", 1.0), "mw": ("watts", 1e-3), "kw": ("watts", 1e3),
    "uw": ("watts", 1e-6),
    "c": ("celsius", 1.0), "°c": ("celsius", 1.0), "celsius": ("celsius", 1.0), "degc": ("celsius", 1.0),
    "celsius degree": ("celsius", 1.0),
    "%": ("ratio", 0.01), "pct": ("ratio", 0.01), "percent": ("ratio", 0.01), "percentage": ("ratio", 0.01),
    "b": ("bytes", 1.0), "bytes": ("bytes", 1.0), "kib": ("bytes", 1024.0), "mib": ("bytes", 1024.0**2),
    "gib": ("bytes", 1024.0**3), "tib": ("bytes", 1024.0**4), "kb": ("bytes", 1e3), "mb": ("bytes", 1e6),
    "gb": ("bytes", 1e9), "tb": ("bytes", 1e12), "megabytes": ("bytes", 1e6), "gigabytes": ("bytes", 1e9),
    "b/s": ("bytes_per_second", 1.0), "kb/s": ("bytes_per_second", 1e3), "mb/s": ("bytes_per_second", 1e6),
    "kib/s": ("bytes_per_second", 1024.0), "mib/s": ("bytes_per_second", 1024.0**2),
    "gib/s": ("bytes_per_second", 1024.0**3), "gb/s": ("bytes_per_second", 1e9), "mb/sec": ("bytes_per_second", 1e6),
    "kb/sec": ("bytes_per_second", 1e3), "gb/sec": ("bytes_per_second", 1e9),
    "s": ("seconds", 1.0), "sec": ("seconds", 1.0), "secs": ("seconds", 1.0), "second": ("seconds", 1.0),
    "seconds": ("seconds", 1.0), "ms": ("seconds", 1e-3), "msec": ("seconds", 1e-3), "millis": ("seconds", 1e-3),
    "milliseconds": ("seconds", 1e-3), "us": ("seconds", 1e-6), "µs": ("seconds", 1e-6), "ns": ("seconds", 1e-9),
    "ki": ("bytes", 1024.0), "mi": ("bytes", 1024.0**2), "gi": ("bytes", 1024.0**3), "ti": ("bytes", 1024.0**4),
    "m": ("cores", 1e-3),  # Kubernetes' quantities
    "j": ("joules", 1.0), "mj": ("joules", 1e-3), "kj": ("joules", 1e3),
}  # fmt: skip
NOT_MEASURED: Final = frozenset({
    "", "-", "--", "nan", "-nan", "na", "n/a", "[n/a]", "null", "none", "<na>", "not supported", "[not supported]",
    "[unknown error]", "unknown error", "unknown", "[unknown]", "undefined", "err!", "[insufficient permissions]",
    "[gpu requires reset]", "[gpu is lost]", "no data", "not available", "[not found]", "#n/a", "?", "unsupported",
    "requested functionality has been deprecated", "[requested functionality has been deprecated]",
})  # fmt: skip
_STATES: Final = {"active": 1.0, "not active": 0.0, "enabled": 1.0, "disabled": 0.0, "yes": 1.0, "no": 0.0,
                  "true": 1.0, "false": 0.0, "on": 1.0, "off": 0.0}  # fmt: skip
# Bounded repetition: linear in the cell.
_NUMBER: Final = re.compile(
    r"\s{0,8}([-+]?(?:[0-9]{1,40}(?:[.,'][0-9]{0,40}){0,8}|\.[0-9]{1,40})(?:[eE][-+]?[0-9]{1,4})?|[-+]?inf)\s{0,8}"
    r"([A-Za-zµ°%/]{0,24})\.?\s{0,8}$"
)
_HEX: Final = re.compile(r"\s{0,8}0[xX]([0-9a-fA-F]{1,16})\s{0,8}$")
_PSTATE: Final = re.compile(r"\s{0,8}P([0-9]{1,2})\s{0,8}$")
_WIDTH: Final = re.compile(r"\s{0,8}(?:x([0-9]{1,2})|([0-9]{1,2})x)\s{0,8}$")
_THOUSANDS: Final = re.compile(r"[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]*)?$")


_OF_RANK: Final = re.compile(
    r"(?i)\s{0,4}(?:(?:global[ _-]?)?(?:ranks?|gpus?|workers?|trainers?|process|proc|r)[ _:#.=-]{0,2})?([0-9]{1,6})"
    r"(?:\.0)?\s{0,4}$"
)


def rank_of_cell(cell: object) -> int | None:
    """The rank that a cell names; None if it names none.

    Examples
    --------
    >>> [rank_of_cell(cell) for cell in (3, "3.0", "rank0", "Rank 3", "gpu-5", "a3", "", -1)]
    [3, 3, 0, 3, 5, None, None, None]
    """
    match = _OF_RANK.match(str(cell).strip('"')) if cell is not None else None
    return int(match[1]) if match is not None else None


class NotNumber(ValueError):
    """A cell that holds no number."""


def number_of(text: str, *, comma: bool = False) -> tuple[float, str]:
    """The number that a cell holds and the unit behind it ("" for none); NaN says that nothing was measured.

    Parameters
    ----------
    comma : bool
        Whether a comma is the decimal mark.

    Raises
    ------
    NotNumber
        If it is neither.

    Examples
    --------
    >>> number_of("1605 MHz"), number_of("0x80"), number_of("[Not Supported]"), number_of("1,5", comma=True)
    ((1605.0, 'MHz'), (128.0, ''), (nan, ''), (1.5, ''))
    >>> number_of("(1605Mhz)")  # rocm-smi's clocks
    (1605.0, 'Mhz')
    >>> number_of("5,469"), number_of("P2"), number_of("x16"), number_of("Not Active")
    ((5469.0, ''), (2.0, ''), (16.0, ''), (0.0, ''))
    """
    bare = text.strip().strip('"').lower()
    if bare in NOT_MEASURED:
        return math.nan, ""
    if bare in _STATES:
        return _STATES[bare], ""
    for pattern, base in ((_HEX, 16), (_PSTATE, 10), (_WIDTH, 10)):
        if (match := pattern.match(text)) is not None:
            return float(int(next(group for group in match.groups() if group), base)), ""
    match = _NUMBER.match(text.strip()[1:-1] if bare.startswith("(") and bare.endswith(")") else text)
    if match is None:
        raise NotNumber(text)
    digits, unit = match[1], match[2]
    if comma:
        digits = digits.replace(".", "").replace("'", "").replace(",", ".")
    elif "," in digits:
        if not _THOUSANDS.match(digits.lstrip("+-")):
            raise NotNumber(text)
        digits = digits.replace(",", "")
    try:
        value = float(digits.replace("'", ""))
    except ValueError as error:
        raise NotNumber(text) from error
    if unit and unit.lower() not in UNITS:
        raise NotNumber(text)
    return (value if math.isfinite(value) else math.nan), unit


class Numbers:
    """A column of cells as numbers.

    Attributes
    ----------
    values : float array [rows]
        NaN = not measured, or no number.
    unit : str
        The unit that stands in the cells; "" for none.
    bad : list of (row, text)
        The first cells that hold no number.
    bad_count, measured : int
    """

    def __init__(self, cells: Sequence[object], *, comma: bool = False) -> None:
        import pandas as pd  # half a second of a processor: services that know columns by name alone go without

        codes, distinct = pd.factorize(np.asarray(cells, dtype=object), use_na_sentinel=False)
        values = np.full(len(distinct), np.nan)
        wrong = np.zeros(len(distinct), dtype=np.bool_)
        self.unit = ""
        for place, cell in enumerate(distinct):
            if isinstance(cell, bool | int | float | np.number):
                values[place] = float(cell)
                continue
            if cell is None:
                continue
            try:
                number, unit = number_of(str(cell), comma=comma)
            except NotNumber:
                wrong[place] = True
                continue
            if unit:
                scale = UNITS[unit.lower()][1] / UNITS[self.unit.lower()][1] if self.unit else 1.0
                number, self.unit = number * scale, self.unit or unit
            values[place] = number
        self.values: Floats = np.where(np.isfinite(values[codes]), values[codes], np.nan)
        rows = np.flatnonzero(wrong[codes])
        self.bad = [(row, str(cells[row])) for row in rows[:5].tolist()]
        self.bad_count = int(rows.size)
        self.measured = int(np.isfinite(self.values).sum())


def decimal_comma(cells: Sequence[str], delimiter: str) -> bool:
    """Whether numbers of a file have a decimal comma: not where commas part its cells, nor where all are thousands.

    Examples
    --------
    >>> decimal_comma(["691,4", "0,5"], ";"), decimal_comma(["1,605", "x"], ";"), decimal_comma(["691,4"], ",")
    (True, False, False)
    """
    if delimiter == ",":
        return False
    found = [match for cell in cells if (match := _COMMA.match(cell)) is not None]
    dotted = any(_DOT.match(cell) for cell in cells)
    return bool(found) and not dotted and any(len(match[1]) != 3 for match in found)


_COMMA: Final = re.compile(r"\s{0,8}[-+]?[0-9]{1,20},([0-9]{1,20})\s{0,8}[A-Za-z°%/]{0,24}\s{0,8}$")
_DOT: Final = re.compile(r"\s{0,8}[-+]?[0-9]{1,20}\.[0-9]{1,20}\s{0,8}[A-Za-z°%/]{0,24}\s{0,8}$")
