"""What an alert is, in words that Prometheus and Grafana share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

RUNBOOKS = "docs/runbooks"
"""Where runbooks lie, if nothing else is said: in this repository."""


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert: it fires for every series that `expr` gives, once it has for `for_s`.

    `severity` is None where the series says it itself. `summary`, `command` and `page` are templates that both
    Prometheus and Grafana expand; `details` is one for Prometheus alone, which may ask it further questions.
    """

    name: str
    expr: str
    summary: str
    command: str
    for_s: int = 0
    severity: Literal["sev1", "sev2", "sev3"] | None = None
    page: str | None = None
    details: str | None = None

    def annotations(self, runbooks: str = RUNBOOKS) -> dict[str, str]:
        """What is said beside the labels, the same in both."""
        url = f"{runbooks}/{self.page or self.name}.md"
        return {"summary": self.summary, "command": self.command, "runbook_url": url}


@dataclass(frozen=True, slots=True)
class Recording:
    """One recording rule."""

    name: str
    expr: str


def duration(seconds: int) -> str:
    """`seconds` as Prometheus and Grafana write them.

    Examples
    --------
    >>> [duration(seconds) for seconds in (0, 90, 300, 7200)]
    ['0s', '90s', '5m', '2h']
    """
    for size, unit in ((3600, "h"), (60, "m")):
        if seconds and seconds % size == 0:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"
