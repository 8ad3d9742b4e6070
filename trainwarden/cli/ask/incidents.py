"""`trainwarden incidents`: what was found on the bus, oldest first."""

from __future__ import annotations

import time
from typing import Annotated, Final

import typer

from trainwarden.cli.ask.jobs_on_bus import views_of
from trainwarden.cli.ask.judging.no_incident import say_none
from trainwarden.cli.shared.answers import EXIT_CODES, INCIDENT
from trainwarden.cli.shared.follow import incident_line
from trainwarden.cli.shared.formatting import counted, moment
from trainwarden.cli.shared.options import BusAddress, ConfigFile, JobName, Json, since_of
from trainwarden.cli.shared.output import Voice
from trainwarden.json_objects import incident_object

SHOWN: Final = 40  # lines that a terminal shows at once


def incidents(
    *,
    open_only: Annotated[
        bool, typer.Option("--open", help="Only those that last, or whose job is down by them.")
    ] = False,
    since: Annotated[
        str | None,
        typer.Option(metavar="T", help="Only what lasted after T: 90s, 30m, 12h, 7d ago or ISO 8601."),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help=f"Only the newest N; {SHOWN} on the screen, and all as JSON, if not given."
        ),
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
    views = views_of(bus, config, job)
    records = [one for view in views for one in view.incidents.values()]
    records = [one for one in records if one.wants_action or not open_only]
    if since_s is not None:
        records = [one for one in records if one.closed_at_s is None or one.closed_at_s >= since_s]
        views = [view for view in views if (heard_s := view.heard_s()) is None or heard_s >= since_s]
    if not records:
        return say_none(views, time.time(), voice, alone=bus is None and config is None, incidents=[])
    records.sort(key=lambda record: record.opened_at_s)
    shown = records[-(limit or SHOWN) :]
    if earlier := len(records) - len(shown):
        voice.say(f"{counted(earlier, 'earlier incident')} not shown (--limit, --since, --job, --open)")
    for record in shown:
        voice.say(f"{moment(record.opened_at_s)} {incident_line(record)}")
    voice.answer({"answer": INCIDENT, "incidents": [incident_object(record) for record in records[-(limit or 0) :]]})
    return EXIT_CODES[INCIDENT]
