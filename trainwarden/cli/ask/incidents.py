"""`trainwarden incidents`: what was found on the bus, oldest first."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final

import typer

from trainwarden.cli.ask.jobs_on_bus import addresses_of, open_bus, read_jobs
from trainwarden.cli.shared.answers import EXIT_CODES, HEALTHY, INCIDENT, NOT_JUDGED, Blind
from trainwarden.cli.shared.follow import JobView, incident_line
from trainwarden.cli.shared.formatting import moment
from trainwarden.cli.shared.options import BusAddress, ConfigFile, JobName, Json, since_of
from trainwarden.cli.shared.output import Voice
from trainwarden.json_objects import incident_object

UNJUDGED: Final = Blind(
    "no detector has judged any job here", "start one: trainwarden up, or trainwarden watch -- COMMAND"
)


def incidents(
    *,
    open_only: Annotated[
        bool, typer.Option("--open", help="Only those that last, or whose job is down by them.")
    ] = False,
    since: Annotated[
        str | None,
        typer.Option(metavar="T", help="Only what lasted after T: 90s, 30m, 12h, 7d ago or ISO 8601."),
    ] = None,
    bus: BusAddress = None,
    job: JobName = None,
    config: ConfigFile = None,
    json: Json = None,
) -> int:
    """Incidents, oldest first; exit codes 0 there is none, 1 there is one, 3 no detector has judged anything.

    Without --bus, kept runs and kept results of detect are searched as well.

    Example: trainwarden incidents --open --since 12h --json
    """
    voice = Voice(json)
    since_s = since_of(since, time.time())
    views = list(_views(bus, config, job))
    judged = any(view.verdicts for view in views)
    records = [one for view in views for one in view.incidents.values()]
    records = [one for one in records if one.wants_action or not open_only]
    if since_s is not None:
        records = [one for one in records if one.closed_at_s is None or one.closed_at_s >= since_s]
    records.sort(key=lambda record: record.opened_at_s)
    for record in records:
        voice.say(f"{moment(record.opened_at_s)} {incident_line(record)}")
    if not records:
        voice.say("no incident" if judged else f"NOT JUDGED: {UNJUDGED}")
    answer = INCIDENT if records else HEALTHY if judged else NOT_JUDGED
    voice.answer({"answer": answer, "incidents": [incident_object(record) for record in records]})
    return EXIT_CODES[answer]


def _views(bus: str | None, config: Path | None, job: str | None) -> Iterator[JobView]:
    """Every job of the bus that was named, or of the bus at hand and all kept runs."""
    if bus is not None or not (addresses := addresses_of(bus, config, job)):
        with open_bus(bus, config, job) as connected:
            yield from read_jobs(connected, job).values()
        return
    for address in addresses:
        with open_bus(address, config) as connected:
            yield from read_jobs(connected, job).values()
