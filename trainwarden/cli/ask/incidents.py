"""`trainwarden incidents`: what was found on the bus, oldest first."""

from __future__ import annotations

from trainwarden.cli.ask.jobs_on_bus import open_bus, read_jobs
from trainwarden.cli.shared.follow import incident_line
from trainwarden.cli.shared.options import BusAddress, ConfigFile, JobName, Json
from trainwarden.cli.shared.output import Voice
from trainwarden.json_objects import incident_object


def incidents(*, bus: BusAddress = None, job: JobName = None, config: ConfigFile = None, json: Json = None) -> int:
    """Incidents, oldest first; exit code 1 if there is any.

    Example: trainwarden incidents --job llama-70b --json
    """
    voice = Voice(json)
    with open_bus(bus, config, job) as connected:
        records = [i for view in read_jobs(connected, job).values() for i in view.incidents.values()]
        records.sort(key=lambda record: record.opened_at_s)
        for record in records:
            voice.say(incident_line(record))
        if not records:
            voice.say("no incident")
    voice.answer({"incidents": [incident_object(record) for record in records]})
    return 1 if records else 0
