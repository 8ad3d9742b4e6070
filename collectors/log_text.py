"""From the bytes of a log line to clean text: character set, terminal codes, rank prefixes, floods."""

from __future__ import annotations

from collections.abc import Sequence

import re2

from trainwarden.records import MAX_LINE_CHARS

# Colours and cursor movements (ECMA-48 control sequences).
_TERMINAL_CODE = re2.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_NUMBER = re2.compile(r"[0-9]+")
# torch writes [rank3]: (global), torchrun's own tee writes [default3]: (local, role name first).
_RANK_PREFIX = re2.compile(r"^\[(rank|default)([0-9]{1,6})\]:")
_CONTROLS = {code: "\ufffd" for code in (*range(1, 32), 127) if code != 9} | {0: None}


def clean(line: bytes) -> str:
    """Text of a line: what is left on the screen of a rewritten line, no terminal codes, junk as U+FFFD.

    Examples
    --------
    >>> clean(b" 10%|#   \\r 20%|##  \\r")
    ' 20%|##'
    >>> clean(b"\\x1b[31mERROR\\x1b[0m at \\xff")
    'ERROR at \ufffd'
    """
    if b"\r" in line:
        parts = [part for part in line.split(b"\r") if part.strip()]
        line = parts[-1] if parts else b""
    text = line[: 4 * MAX_LINE_CHARS].decode("utf-8", "replace")
    if not text.isprintable():
        if "\x1b" in text:
            text = _TERMINAL_CODE.sub("", text)
        text = text.translate(_CONTROLS)
    return text.rstrip()[:MAX_LINE_CHARS]


def rank_prefix(text: str) -> tuple[int, bool] | None:
    """Rank that the line names as its writer, and whether it is a local one; None if it names none.

    Examples
    --------
    >>> rank_prefix("[rank3]: Traceback"), rank_prefix("[default1]:loss 2.1"), rank_prefix("[info] x")
    ((3, False), (1, True), None)
    """
    if not text.startswith("["):
        return None
    match = _RANK_PREFIX.match(text)
    return (int(match.group(2)), match.group(1) == "default") if match else None


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
