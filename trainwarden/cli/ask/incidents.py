"""`trainwarden incidents`: what was found on the bus, oldest first."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from trainwarden.cli.ask.jobs_on_bus import open_bus, read_jobs
from trainwarden.cli.shared.follow import incident_line
from trainwarden.cli.shared.options import BusAddress, ConfigFile, JobName, Json, since_of
from trainwarden.cli.shared.output import Voice
from trainwarden.cli.shared.words import moment
from trainwarden.json_objects import incident_object


def incidents(
    *,
    open_only: Annotated[bool, typer.Option("--open", help="Only those that last.")] = False,
    since: Annotated[
        str | None,
        typer.Option(metavar="T", help="Only what lasted after T: 90s, 30m, 12h, 7d ago or ISO 8601."),
    ] = None,
    bus: BusAddress = None,
    job: JobName = None,
    config: ConfigFile = None,
    json: Json = None,
) -> int:
    """Incidents, oldest first; exit code 1 if there is any.

    Example: trainwarden incidents --open --since 12h --json
    """
    voice = Voice(json)
    since_s = since_of(since, time.time())
    with open_bus(bus, config, job) as connected:
        records = [i for view in read_jobs(connected, job).values() for i in view.incidents.values()]
        records = [one for one in records if not (open_only and one.state == "closed")]
        if since_s is not None:
            records = [one for one in records if one.closed_at_s is None or one.closed_at_s >= since_s]
        records.sort(key=lambda record: record.opened_at_s)
        for record in records:
            voice.say(f"{moment(record.opened_at_s)} {incident_line(record)}")
        if not records:
            voice.say("no incident")
    voice.answer({"incidents": [incident_object(record) for record in records]})
    return 1 if records else 0
