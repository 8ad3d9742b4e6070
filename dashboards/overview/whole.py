"""Whole runs, read from the bus once: for reports."""

from __future__ import annotations

from typing import Any, Final

from trainwarden.dashboards.overview.job import JobOverview
from trainwarden.protocols import Bus
from trainwarden.topics import ACTIONS, EVENTS, HEARTBEATS, INCIDENTS, ITERATIONS, VERDICTS, Topic

# Incidents before verdicts: what is healthy follows from both.
TOPICS: Final[tuple[Topic[Any], ...]] = (HEARTBEATS, ITERATIONS, INCIDENTS, ACTIONS, EVENTS, VERDICTS)
SETTLE_EVERY: Final = 1_000


def read_whole(bus: Bus, job: str | None = None) -> dict[str, JobOverview]:
    """Every job on the bus (or `job` alone), from its oldest record that is kept to the newest.

    Raises
    ------
    BusUnavailable
        If the bus is away.
    """
    jobs: dict[str, JobOverview] = {}
    for topic in TOPICS:
        for count, message in enumerate(bus.read(topic)):
            name = getattr(message.record, "job", None)
            if name is None or job not in (None, name):
                continue
            known = jobs.get(name)
            if known is None:
                known = jobs[name] = JobOverview(name, whole=True)
            known.apply(message)
            if count % SETTLE_EVERY == 0:
                known.pace.apply_pending()
    for known in jobs.values():
        known.pace.apply_pending()
    return jobs
