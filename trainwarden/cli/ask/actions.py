"""`trainwarden actions`: what was done on a job, and a person's word to the engine."""

from __future__ import annotations

import getpass
import time
import uuid
from collections.abc import Mapping
from typing import Annotated, Literal

import typer

from trainwarden.cli.ask.jobs_on_bus import open_bus, read_jobs
from trainwarden.cli.shared.follow import action_line
from trainwarden.cli.shared.options import BusAddress, ConfigFile, JobName, Json
from trainwarden.cli.shared.output import Voice
from trainwarden.errors import ConfigError
from trainwarden.json_objects import action_object
from trainwarden.records import ActionRecord, CommandRecord
from trainwarden.topics import COMMANDS

Word = Literal["list", "approve", "deny", "stop", "resume"]


def actions(
    word: Annotated[Word, typer.Argument()] = "list",
    action: Annotated[str | None, typer.Argument(metavar="[ACTION]", help="For approve and deny: its id.")] = None,
    *,
    bus: BusAddress = None,
    job: JobName = None,
    config: ConfigFile = None,
    json: Json = None,
) -> int:
    """List actions; approve or deny one; stop or resume all acting.

    Example: trainwarden actions approve ID
    """
    voice = Voice(json)
    with open_bus(bus, config, job) as connected:
        views = read_jobs(connected, job)
        known = {record.id: record for view in views.values() for record in view.actions.values()}
        if word == "list":
            _list(known, voice)
            return 0
        command = _command(word, action, job, known)
        connected.publish(COMMANDS, command.job, command)
        connected.flush()
    voice.say(f"said to the engine: {word} {action or ''}".rstrip())
    voice.answer({"command": {"id": command.id, "kind": command.kind, "action": command.action}})
    return 0


def _list(known: Mapping[str, ActionRecord], voice: Voice) -> None:
    ordered = sorted(known.values(), key=lambda record: record.at_s)
    for record in ordered:
        voice.say(action_line(record))
    if not ordered:
        voice.say("no action")
    voice.answer({"actions": [action_object(record) for record in ordered]})


def _command(word: Word, action: str | None, job: str | None, known: dict[str, ActionRecord]) -> CommandRecord:
    """The record by which the engine is told.

    Raises
    ------
    ConfigError
        If an action to approve or deny does not exist or is not waiting for a word.
    """
    target = None
    if word in ("approve", "deny"):
        if action not in known or known[action].outcome != "proposed":
            waiting = ", ".join(r.id for r in known.values() if r.outcome == "proposed") or "none"
            raise ConfigError(f"actions {word}: no action '{action}' waits for a word; waiting: {waiting}")
        target = known[action].job
    return CommandRecord(
        id=f"command/{uuid.uuid4().hex[:12]}",
        job=target or job or "*",  # the engine takes "*" for every job
        at_s=time.time(),
        kind=word,  # type: ignore[arg-type] # the command line allows just these words
        by=getpass.getuser(),
        action=action,
    )
