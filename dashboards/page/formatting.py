"""How values are said to a person: times, seconds, ratios, plans and evidence."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

MOST_CHARS: Final = 400  # of one value of a plan or of evidence
MOST_FACTS: Final = 40
UNIT: Final = "_s"


def iso(time_s: float) -> str:
    """A moment as machines write it; empty for what is no moment.

    Examples
    --------
    >>> iso(1_795_000_000.4), iso(1e300)
    ('2026-11-18T11:06:40Z', '')
    """
    moment = _moment(time_s)
    return "" if moment is None else moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def clock(time_s: float) -> str:
    """A moment as a person reads it, in UTC.

    Examples
    --------
    >>> clock(1_795_000_000.4)
    '18 Nov 11:06:40'
    """
    moment = _moment(time_s)
    return "?" if moment is None else moment.strftime("%d %b %H:%M:%S")


def seconds(value: float) -> str:
    """A length of time, three digits of it.

    Examples
    --------
    >>> seconds(0.0123), seconds(1.5), seconds(75.0), seconds(7_300.0)
    ('12.3 ms', '1.50 s', '75.0 s', '2.03 h')
    """
    for limit, unit, size in ((1.0, "ms", 1e-3), (600.0, "s", 1.0), (7_200.0, "min", 60.0)):
        if abs(value) < limit:
            return f"{_three(value / size)} {unit}"
    return f"{_three(value / 3_600.0)} h"


def times(ratio: float) -> str:
    """How many times as long.

    Examples
    --------
    >>> times(1.4567)
    '1.46 ×'
    """
    return f"{ratio:.2f} \u00d7"


def facts(said: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What a plan or evidence holds, as names and words; bounded, since it comes from outside.

    Examples
    --------
    >>> facts({"micro_batches": [7, 7, 3, 7], "micro_batch_s": [0.07, 0.14], "after_close": True, "nothing": None})
    [('micro batches', '7 7 3 7'), ('micro batch', '70.0 ms, 140 ms'), ('after close', 'yes'), ('nothing', 'unknown')]
    """
    named = [(name[: -len(UNIT)] if _is_seconds(name, value) else name, name, value) for name, value in said.items()]
    return [(short.replace("_", " ")[:80], _words(name, value)) for short, name, value in named[:MOST_FACTS]]


def _is_seconds(name: str, value: Any) -> bool:
    one = value[0] if isinstance(value, list | tuple) and value else value
    return name.endswith(UNIT) and isinstance(one, float | int) and not name.endswith("_at_s")


def _words(name: str, value: Any) -> str:
    match value:
        case None:
            return "unknown"
        case bool():
            return "yes" if value else "no"
        case float() if name.endswith("_at_s"):
            return clock(value)
        case float() | int() if _is_seconds(name, value):
            return seconds(value)
        case float():
            return f"{value:.4g}"
        case list() | tuple() if all(isinstance(one, str | int | float | None) for one in value):
            between = ", " if _is_seconds(name, value) else " "
            return cut(between.join(_words(name, one) for one in value[:MOST_CHARS]))
        case dict() | list() | tuple():
            return cut(msgspec.json.encode(value).decode())
        case _:
            return cut(str(value))


def cut(text: str, most: int = MOST_CHARS) -> str:
    """`text`, its end left out where it is too long.

    Examples
    --------
    >>> cut("abcdef", 4)
    'abc…'
    """
    return text if len(text) <= most else text[: most - 1] + "…"


def _three(value: float) -> str:
    digits = 2 if abs(value) < 10.0 else 1 if abs(value) < 100.0 else 0
    return f"{value:.{digits}f}"


def _moment(time_s: float) -> datetime | None:
    try:
        return datetime.fromtimestamp(time_s, UTC)
    except (ValueError, OverflowError, OSError):
        return None
