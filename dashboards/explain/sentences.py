"""Places, moments and other people's text, as a person reads them in one line."""

from __future__ import annotations

import time
from typing import Final

from trainwarden.records import Suspect

MOST_CHARS: Final = 600


def place(suspect: Suspect) -> str:
    """Whom a suspect is, as far as is known.

    Examples
    --------
    >>> place(Suspect(score=1.0, reason="slow", rank=2, node="n7"))
    'rank 2, node n7'
    """
    named = (("rank", suspect.rank), ("node", suspect.node), ("device", suspect.device))
    return ", ".join(f"{word} {value}" for word, value in named if value is not None)


def moment(time_s: float) -> str:
    """A moment on the clock of the job; a recording's own clock may count from anywhere."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(time_s))
    except (ValueError, OverflowError, OSError):
        return f"{time_s:g} s"


def line(text: str, indent: int = 0) -> str:
    """`text`, which others may have written, as one line that a terminal shows and does not obey."""
    shown = "".join(letter if letter.isprintable() else " " for letter in text[: 2 * MOST_CHARS])
    shown = " ".join(shown.split())
    return " " * indent + (shown if len(shown) <= MOST_CHARS else shown[: MOST_CHARS - 1] + "…")
