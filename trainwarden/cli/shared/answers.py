"""The three answers that every question gets: an incident, healthy, or not judged; in words, in JSON, as exit code.

"No incident" is only an answer of a detector that ran and had input.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, Literal

import msgspec

Answer = Literal["incident", "healthy", "not judged"]
INCIDENT: Final[Answer] = "incident"
HEALTHY: Final[Answer] = "healthy"
NOT_JUDGED: Final[Answer] = "not judged"
BEGIN: Final = "begin one: trainwarden watch -- COMMAND"
EXIT_CODES: Final[dict[Answer, int]] = {HEALTHY: 0, INCIDENT: 1, NOT_JUDGED: 3}


class Blind(msgspec.Struct, frozen=True):
    """Why something was not judged, and what to do about it."""

    reason: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.reason}; {self.remedy}" if self.remedy else self.reason


def worst(answers: Collection[Answer]) -> Answer:
    """The answer about several jobs; about none at all nothing was judged.

    Examples
    --------
    >>> worst(["healthy", "incident", "not judged"]), worst(["healthy", "not judged"]), worst([])
    ('incident', 'not judged', 'not judged')
    """
    if INCIDENT in answers:
        return INCIDENT
    return HEALTHY if answers and set(answers) == {HEALTHY} else NOT_JUDGED
