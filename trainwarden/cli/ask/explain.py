"""`trainwarden explain`: one incident in plain words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import msgspec
import typer

from dashboards.explain.explanation import NEAR_S, Explanation, opening
from dashboards.explain.explanation import explain as explained
from trainwarden.cli.ask.jobs_on_bus import open_bus
from trainwarden.cli.shared.options import BusAddress, ConfigFile, JobName, Json
from trainwarden.cli.shared.output import Voice
from trainwarden.errors import ConfigError
from trainwarden.protocols import Bus
from trainwarden.records import ActionRecord, IncidentRecord, VerdictRecord
from trainwarden.topics import ACTIONS, INCIDENTS, VERDICTS


def explain(
    incident: Annotated[str, typer.Argument(metavar="INCIDENT", help="Its id, as `trainwarden incidents` shows it.")],
    *,
    bus: BusAddress = None,
    job: JobName = None,
    config: ConfigFile = None,
    json: Json = None,
) -> int:
    """One incident in plain words: what, where, the evidence, why not others, and what to do next.

    Example: trainwarden explain llama-70b/hang/1f2e --json
    """
    voice = Voice(json)
    with open_bus(bus, config, job) as connected:
        found = _explained(connected, incident)
    voice.say(found.what)
    voice.say(f"  where: {found.where or 'nobody is singled out'}")
    for title, lines in (("evidence", found.evidence), ("why not others", found.why_not_others), ("next", found.next)):
        for number, line in enumerate(lines):
            voice.say(f"  {title + ':' if number == 0 else '':<16}{line}")
    voice.say(f"  {'more:':<16}{found.runbook}")
    voice.answer(msgspec.to_builtins(found))
    return 0


def _explained(bus: Bus, name: str) -> Explanation:
    """The explanation of incident `name`, of what the bus still keeps.

    Raises
    ------
    ConfigError
        If there is no such incident.
    """
    revisions = [
        one.record for one in bus.read(INCIDENTS) if isinstance(one.record, IncidentRecord) and one.record.id == name
    ]
    if not revisions:
        raise ConfigError(f"explain: there is no incident '{name}' on this bus; `trainwarden incidents` lists them")
    incident = max(revisions, key=lambda one: one.revision)
    actions = {
        one.record.id: one.record
        for one in bus.read(ACTIONS)
        if isinstance(one.record, ActionRecord) and one.record.incident == name
    }
    return explained(incident, list(actions.values()), opening(incident, _verdicts(bus, incident)))


def _verdicts(bus: Bus, incident: IncidentRecord) -> Iterator[VerdictRecord]:
    """Verdicts of the incident's job about when it was opened; those of one job come in order."""
    for message in bus.read(VERDICTS, from_time_s=incident.opened_at_s - NEAR_S):
        record = message.record
        if isinstance(record, VerdictRecord) and record.job == incident.job:
            if record.time_s > incident.opened_at_s + NEAR_S:
                return
            yield record
