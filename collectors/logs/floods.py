"""Floods of log lines: many like ones become one with a count."""

from __future__ import annotations

from collections.abc import Sequence

import re2

_NUMBER = re2.compile(r"[0-9]+")


def template(text: str) -> str:
    """`text` with every number masked: lines of one flood have the same template."""
    return str(_NUMBER.sub("0", text))


def collapse(ends: Sequence[int], lines: Sequence[str], spare: int) -> tuple[list[int], list[str], list[int]]:
    """One line in place of many like ones: of each template the first `spare` lines stay, the rest become one.

    Returns
    -------
    tuple of lists
        Ends, lines, counts; the collapsed line is the first of those it stands for, so ends still grow.

    Examples
    --------
    >>> collapse([3, 6, 9, 12], ["e 1", "e 2", "ok", "e 3"], 1)
    ([3, 6, 9], ['e 1', 'e 2', 'ok'], [1, 2, 1])
    """
    if len(lines) <= spare:
        return list(ends), list(lines), [1] * len(lines)
    kept: tuple[list[int], list[str], list[int]] = ([], [], [])
    seen: dict[str, int] = {}
    first_of: dict[str, int] = {}
    for end, line in zip(ends, lines, strict=True):
        key = template(line)
        number = seen[key] = seen.get(key, 0) + 1
        if number > spare + 1:
            kept[2][first_of[key]] += 1
            continue
        if number == spare + 1:
            first_of[key] = len(kept[0])
        kept[0].append(end)
        kept[1].append(line)
        kept[2].append(1)
    return kept
