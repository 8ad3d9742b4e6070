"""`status`, `incidents`, `actions`, `report`: what is on the bus, for people and for programs."""

from __future__ import annotations

import getpass
import time
import uuid
from pathlib import Path

from trainwarden.bus import address as buses
from trainwarden.cli.follow import Follower, JobView, action_line, incident_line
from trainwarden.cli.output import Voice, check_json_target, write_json
from trainwarden.cli.report_html import write_report
from trainwarden.errors import ConfigError
from trainwarden.json_objects import action_object, incident_object
from trainwarden.protocols import Bus
from trainwarden.records import CommandRecord
from trainwarden.settings import load
from trainwarden.topics import COMMANDS


def _open(config: Path | None, bus: str | None) -> Bus:
    settings = load(config)
    address = bus or settings.bus
    path = Path(address.partition(":")[2])
    if address.startswith("embedded:") and not path.exists():
        raise ConfigError(f"bus: there is no embedded bus at '{path}'; name one with --bus or TRAINWARDEN_BUS")
    return buses.connect(address, settings.kafka)


def read_jobs(bus: Bus, job: str | None = None) -> dict[str, JobView]:
    """Every job on the bus (or `job` alone) as its records tell it, from the oldest kept to the newest."""
    views: dict[str, JobView] = {}
    for topic in Follower.TOPICS:
        for message in bus.read(topic):
            name = getattr(message.record, "job", None)
            if name is not None and job in (None, name):
                views.setdefault(name, JobView(name)).feed(message.record)
    return views


def status(*, bus: str | None, config: Path | None, json: str | None) -> int:
    """Each job: steps, iteration time, open incidents; 1 if an incident is open."""
    check_json_target(json)
    voice = Voice(json)
    connected = _open(config, bus)
    rows = []
    for name, view in sorted(read_jobs(connected).items()):
        incidents = [i for i in view.incidents.values() if i.state != "closed"]
        seen_at_s = max((beat.time_s for beat in view.heartbeats.values()), default=None)
        rows.append(
            {
                "job": name,
                "ended": view.ended,
                "ranks": len(view.ranks()),
                "steps": view.steps_done(),
                "iteration_s": {"median": view.iteration_s()},
                "last_seen_s": None if seen_at_s is None else round(time.time() - seen_at_s, 1),
                "open_incidents": [incident_object(i) for i in incidents],
            }
        )
        median = view.iteration_s()
        pace = "no iteration yet" if median is None else f"step {view.last_step()}, {median:.3f} s/iteration"
        voice.say(f"{name}: {'ended' if view.ended else 'running'}, {len(view.ranks())} ranks, {pace}")
        for incident in incidents:
            voice.say(f"  {incident_line(incident)}")
    if not rows:
        voice.say("no job on this bus yet")
    connected.close()
    write_json({"jobs": rows}, json)
    return 1 if any(row["open_incidents"] for row in rows) else 0


def incidents(*, bus: str | None, config: Path | None, job: str | None, json: str | None) -> int:
    """Incidents, oldest first; 1 if there is any."""
    check_json_target(json)
    voice = Voice(json)
    connected = _open(config, bus)
    records = [i for view in read_jobs(connected, job).values() for i in view.incidents.values()]
    records.sort(key=lambda record: record.opened_at_s)
    for record in records:
        voice.say(incident_line(record))
    if not records:
        voice.say("no incident")
    connected.close()
    write_json({"incidents": [incident_object(record) for record in records]}, json)
    return 1 if records else 0


def actions(
    word: str, action: str | None, *, bus: str | None, config: Path | None, job: str | None, json: str | None
) -> int:
    """List actions, or say approve, deny, stop, resume to the engine.

    Raises
    ------
    ConfigError
        If an action to approve or deny does not exist or is not waiting for a word.
    """
    check_json_target(json)
    voice = Voice(json)
    connected = _open(config, bus)
    views = read_jobs(connected, job)
    known = {record.id: record for view in views.values() for record in view.actions.values()}
    if word == "list":
        ordered = sorted(known.values(), key=lambda record: record.at_s)
        for record in ordered:
            voice.say(action_line(record))
        if not ordered:
            voice.say("no action")
        write_json({"actions": [action_object(record) for record in ordered]}, json)
        connected.close()
        return 0
    target = None
    if word in ("approve", "deny"):
        if action not in known or known[action].outcome != "proposed":
            waiting = ", ".join(r.id for r in known.values() if r.outcome == "proposed") or "none"
            raise ConfigError(f"actions {word}: no action '{action}' waits for a word; waiting: {waiting}")
        target = known[action].job
    command = CommandRecord(
        id=f"command/{uuid.uuid4().hex[:12]}",
        job=target or job or "*",  # the engine takes "*" for every job
        at_s=time.time(),
        kind=word,  # type: ignore[arg-type] # the command line allows just these words
        by=getpass.getuser(),
        action=action,
    )
    connected.publish(COMMANDS, command.job, command)
    connected.flush()
    connected.close()
    voice.say(f"said to the engine: {word} {action or ''}".rstrip())
    write_json({"command": {"id": command.id, "kind": command.kind, "action": command.action}}, json)
    return 0


def report(*, bus: str | None, config: Path | None, job: str | None, out: Path) -> int:
    """Write the HTML report of one job.

    Raises
    ------
    ConfigError
        If the job is not on the bus, or several are and none was named.
    """
    connected = _open(config, bus)
    views = read_jobs(connected, job)
    connected.close()
    if len(views) != 1:
        names = ", ".join(sorted(views)) or "none"
        raise ConfigError(f"report: name one job with --job; on this bus: {names}")
    view = next(iter(views.values()))
    counted = f"{len(view.incidents)} incident(s), {len(view.actions)} action(s)"
    summary = f"{len(view.ranks())} ranks, {view.steps_done()} steps, {counted}."
    write_report(out, view, title=f"trainwarden: {view.job}", summary=summary)
    Voice().say(f"report: {out}")
    return 0
