"""Shapes of log lines: a program writes the same lines again and again, with other digits.

What a pattern finds in a line, and where, depends on the line's shape alone as long as the pattern treats all digits
alike. So it is looked for once a shape, in the shape itself; `loosened` makes such a pattern of any other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import re2

Found = TypeVar("Found")

SHAPES: Final = 8_192  # remembered of one question, the newest
MAX_CHARS: Final = 1_024  # longer lines are looked at each time: few are alike
_RECENT: Final = 2_048  # lines whose shape is remembered: several detectors ask of one line
_AS_ZERO: Final = bytes.maketrans(b"123456789", b"000000000")
_TOKEN: Final = re.compile(
    r"(?P<group>\(\?(?:P<[A-Za-z_][A-Za-z_0-9]*>|[imsU-]*[:)]))|(?P<repeat>\{[0-9]+(?:,[0-9]*)?\})"
    r"|(?P<class>\[\^?\]?(?:\\.|\[:\^?[a-z]+:\]|[^\]\\])*\])|(?P<escape>\\.)|(?P<digit>[0-9])|(?P<other>.)",
    re.DOTALL,
)
# Of escapes only those that name no digit by its number, its script or in a quotation.
_KNOWN_ESCAPES: Final = re.compile(r"\\[^0-9A-Za-z]|\\[abBdDfnrstvwWsSzA]")
_IN_CLASS: Final = re.compile(r"\[:\^?[a-z]+:\]|\\.|[^\\]", re.DOTALL)
_recent: dict[str, bytes] = {}


def masked(text: str) -> bytes:
    """`text` with 0 for every digit, as UTF-8.

    Examples
    --------
    >>> masked("step 12 of 900")
    b'step 00 of 000'
    """
    return text.encode("utf-8", "surrogatepass").translate(_AS_ZERO)


def unmasked(shape: bytes) -> str:
    """A shape as the line that it is the shape of itself."""
    return shape.decode("utf-8", "surrogatepass")


def by_shape(find: Callable[[bytes], Found]) -> Callable[[str], Found]:
    """`find` for lines: called once for each shape of those that come again and again.

    Parameters
    ----------
    find : callable
        Of a shape (`masked`). What it returns is shared by all lines of the shape, so it must not change.

    Examples
    --------
    >>> shapes = []
    >>> width = by_shape(lambda shape: shapes.append(shape) or len(shape))
    >>> width("step 7"), width("step 8"), width("step 10"), shapes
    (6, 6, 7, [b'step 0', b'step 00'])
    """
    known: dict[bytes, Found] = {}

    def of(line: str) -> Found:
        if len(line) > MAX_CHARS:
            return find(masked(line))
        shape = _recent.get(line)
        if shape is None:
            if len(_recent) >= _RECENT:
                _recent.clear()
            shape = _recent[line] = masked(line)
        try:
            return known[shape]
        except KeyError:
            pass
        if len(known) >= SHAPES:
            known.clear()
        found = known[shape] = find(shape)
        return found

    return of


def may_fit(patterns: Sequence[str], options: Any) -> Callable[[str], bool]:
    """Whether a line can fit any of RE2's `patterns`, by its shape: most lines of most programs cannot.

    Parameters
    ----------
    options : re2.Options
        What the patterns are compiled with.
    """
    loose = [loosened(pattern) for pattern in patterns]
    if None in loose:
        return lambda line: True
    fits = re2.Set.SearchSet(options)
    for pattern in loose:
        fits.Add(pattern)
    fits.Compile()
    return by_shape(lambda shape: bool(fits.Match(shape)))


def loosened(pattern: str) -> str | None:
    """An RE2 pattern that treats all digits alike and fits all that `pattern` fits; None if that cannot be told.

    Examples
    --------
    >>> loosened(r"Errno 28\\b"), loosened("code (1[0-2]|[2-7a-f]){1,2}")
    ('Errno [0-9][0-9]\\\\b', 'code ([0-9][0-9]|[0-9a-f]){1,2}')
    >>> loosened(r"\\x31"), loosened("[^0-9]"), loosened("[^1]")
    (None, '[^0-9]', None)
    """
    parts = []
    for token in _TOKEN.finditer(pattern):
        text = token[0]
        if token.lastgroup == "digit":
            text = "[0-9]"
        elif token.lastgroup == "escape" and not _KNOWN_ESCAPES.fullmatch(text):
            return None
        elif token.lastgroup == "class":
            loose = _loosened_class(text)
            if loose is None:
                return None
            text = loose
        parts.append(text)
    return "".join(parts)


def _loosened_class(text: str) -> str | None:
    negated = text.startswith("[^")
    items = _IN_CLASS.findall(text[1 + negated : -1])
    if any(one in {"[:digit:]", "[:alnum:]", "[:word:]", "[:xdigit:]"} for one in items):
        return None  # nobody writes them here
    if any(len(one) == 2 and not _KNOWN_ESCAPES.fullmatch(one) for one in items):
        return None
    plain, digits, place = [], set[str](), 0
    while place < len(items):
        low = items[place]
        high = items[place + 2] if items[place + 1 : place + 2] == ["-"] and place + 2 < len(items) else low
        if low.isdecimal() != high.isdecimal():
            return None
        if low.isdecimal():
            digits.update(map(str, range(int(low), int(high) + 1)))
        else:
            single = f"\\{low}" if low in {"-", "]", "^"} else low
            plain.append(single if low is high else f"{low}-{high}")
        place += 1 if low is high else 3
    if not digits:
        return text
    if negated:
        return text if len(digits) == 10 else None
    return f"[0-9{''.join(plain)}]"
