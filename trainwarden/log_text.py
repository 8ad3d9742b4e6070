"""From the bytes of a log line to clean text and to the rank that its prefix names."""

from __future__ import annotations

import re2

from trainwarden.records import MAX_LINE_CHARS

# Colours and cursor movements (ECMA-48 control sequences).
_TERMINAL_CODE = re2.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
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
