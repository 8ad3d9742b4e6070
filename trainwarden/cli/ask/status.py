"""`trainwarden status`: what every job on the bus is doing."""

from __future__ import annotations

import time
from typing import Any

from trainwarden.cli.ask.jobs_on_bus import open_bus, read_jobs
from trainwarden.cli.shared.follow import JobView, incident_line
from trainwarden.cli.shared.options import BusAddress, ConfigFile, Json
from trainwarden.cli.shared.output import Voice
from trainwarden.json_objects import incident_object
from trainwarden.records import IncidentRecord


def status(*, bus: BusAddress = None, config: ConfigFile = None, json: Json = None) -> int:
    """What every job on the bus is doing; exit code 1 while an incident is open.

    Example: trainwarden status --bus kafka://broker:9092 --json
    """
    voice = Voice(json)
    with open_bus(bus, config) as connected:
        rows = []
        for _, view in sorted(read_jobs(connected).items()):
            incidents = [i for i in view.incidents.values() if i.state != "closed"]
            rows.append(_row(view, incidents))
            median = view.iteration_s()
            pace = "no iteration yet" if median is None else f"step {view.last_step()}, {median:.3f} s/iteration"
            voice.say(f"{view.job}: {'ended' if view.ended else 'running'}, {len(view.ranks())} ranks, {pace}")
            for incident in incidents:
                voice.say(f"  {incident_line(incident)}")
        if not rows:
            voice.say("no job on this bus yet")
    voice.answer({"jobs": rows})
    return 1 if any(row["open_incidents"] for row in rows) else 0


def _row(view: JobView, incidents: list[IncidentRecord]) -> dict[str, Any]:
    """The JSON object of one job with its open `incidents`."""
    seen_at_s = max((beat.time_s for beat in view.heartbeats.values()), default=None)
    return {
        "job": view.job,
        "ended": view.ended,
        "ranks": len(view.ranks()),
        "steps": view.steps_done(),
        "iteration_s": {"median": view.iteration_s()},
        "last_seen_s": None if seen_at_s is None else round(time.time() - seen_at_s, 1),
        "open_incidents": [incident_object(incident) for incident in incidents],
    }
