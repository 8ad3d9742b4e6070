"""`trainwarden actions`: what was done on a job, and a person's word to the engine."""

from __future__ import annotations

import time
from collections.abc import Mapping
from itertools import chain
from typing import Annotated, Literal

import typer

from trainwarden.cli.ask.jobs_on_bus import address_of, open_bus
from trainwarden.cli.shared.machine import user
from trainwarden.cli.shared.options import BusAddress, ConfigFile, JobName, Json, KeyFile, since_of
from trainwarden.cli.shared.output import Voice
from trainwarden.cli.shared.speak import speak
from trainwarden.commands import builders
from trainwarden.commands.trust import Trust, in_order
from trainwarden.errors import ConfigError
from trainwarden.protocols import Bus
from trainwarden.records import ActionRecord, CommandRecord
from trainwarden.settings import Settings, load
from trainwarden.topics import ACTIONS, COMMANDS, EVENTS, INCIDENTS

Word = Literal["list", "approve", "deny", "stop", "resume", "reset"]


def actions(
    word: Annotated[Word, typer.Argument()] = "list",
    action: Annotated[str | None, typer.Argument(metavar="[ACTION]", help="For approve and deny: its id.")] = None,
    *,
    since: Annotated[
        str | None,
        typer.Option(metavar="T", help="Only what was last spoken of after T: 90s, 30m, 12h, 7d ago or ISO 8601."),
    ] = None,
    bus: BusAddress = None,
    job: JobName = None,
    key: KeyFile = None,
    config: ConfigFile = None,
    json: Json = None,
) -> int:
    """The log of actions; approve or deny one; stop or resume all acting; reset the brake on nodes taken out.

    Example: trainwarden actions --since 12h
    """
    voice, settings = Voice(json), load(config)
    with open_bus(bus, config, job, asks=word == "list") as connected:
        if word == "list":
            _list(connected, settings, job, since_of(since, time.time()), voice)
            return 0
        # A stop does not wait for anything to be read first.
        about = _waiting(word, action, _known(connected, job)) if word in ("approve", "deny") else None
        command = speak(connected, _command(word, about, job, time.time()), key, settings)
    # Where it was said matters: a stop on the bus of a run that is over stops nobody.
    voice.say(f"said to the engines on {address_of(bus, settings, job)}: {word} {action or ''}".rstrip())
    told = {"id": command.id, "kind": command.kind, "action": command.action, "plan_digest": command.plan_digest}
    voice.answer({"command": told})
    return 0


def _list(bus: Bus, settings: Settings, job: str | None, since_s: float | None, voice: Voice) -> None:
    """The log of actions, with what people said in between, and what does not count of it."""
    from trainwarden.dashboards.explain.action_log import entry_lines, entry_object, taken, word_line, word_object
    from trainwarden.dashboards.explain.launcher_operations import job_word_line, job_word_object

    messages = (message for topic in (INCIDENTS, COMMANDS, ACTIONS) for message in in_order(bus.read(topic)))
    log = taken(chain(messages, bus.read(EVENTS)), Trust.of(settings.commands.trusted), job, since_s)
    entries, words, asked = log.entries(), log.words(), log.asked_of_launchers()
    told = [(entry.at_s, tuple(entry_lines(entry))) for entry in entries]
    told += [(word.at_s, (word_line(word),)) for word in words]
    told += [(one.at_s, (job_word_line(one),)) for one in asked]
    for _, lines in sorted(told, key=lambda one: one[0]):
        for line in lines:
            voice.say(line)
    if not entries:
        voice.say("no action")
    objects = {"words": [word_object(one) for one in words], "asked": [job_word_object(one) for one in asked]}
    voice.answer({"actions": [entry_object(one) for one in entries], **objects})


def _known(bus: Bus, job: str | None) -> dict[str, ActionRecord]:
    """Actions by id as they last were, of `job` or of all."""
    messages = bus.read(ACTIONS)
    records = [message.record for message in messages if isinstance(message.record, ActionRecord)]
    return {record.id: record for record in records if job in (None, record.job)}


def _waiting(word: Word, action: str | None, known: Mapping[str, ActionRecord]) -> ActionRecord:
    """The action that a person has a word on.

    Raises
    ------
    ConfigError
        If it does not exist or does not wait for a word.
    """
    if action is None or action not in known or known[action].outcome != "proposed":
        waiting = ", ".join(r.id for r in known.values() if r.outcome == "proposed") or "none"
        raise ConfigError(f"actions {word}: no action '{action}' waits for a word; waiting: {waiting}")
    return known[action]


def _command(word: Word, about: ActionRecord | None, job: str | None, now_s: float) -> CommandRecord:
    """The record by which the engine is told; an approval is of the plan that stands now."""
    if word in ("stop", "resume", "reset"):
        return builders.on_job(word, job, user(), now_s)
    assert about is not None
    return builders.on_action("approve" if word == "approve" else "deny", about, user(), now_s)
