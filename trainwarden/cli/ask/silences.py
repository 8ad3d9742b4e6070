"""`trainwarden silences`: what nobody is to act on or be told of for a while, such as a node that is being mended."""

from __future__ import annotations

import time
from typing import Annotated, Literal

import typer

from trainwarden.cli.ask.jobs_on_bus import address_of, open_bus
from trainwarden.cli.shared.formatting import moment
from trainwarden.cli.shared.machine import user
from trainwarden.cli.shared.options import BusAddress, ConfigFile, JobName, Json, KeyFile, length_of
from trainwarden.cli.shared.output import Voice
from trainwarden.cli.shared.speak import heard, speak
from trainwarden.commands.builders import EVERY_JOB, LONGEST_SILENCE_S, silence
from trainwarden.commands.silences import Silences, silence_object
from trainwarden.errors import ConfigError
from trainwarden.protocols import Bus
from trainwarden.records import CommandRecord, IncidentKind
from trainwarden.settings import Settings, load
from trainwarden.topics import COMMANDS

Word = Literal["list", "add", "end"]


def silences(
    word: Annotated[Word, typer.Argument()] = "list",
    *,
    node: Annotated[str | None, typer.Option(help="Of incidents whose first suspect is on this node.")] = None,
    kind: Annotated[IncidentKind | None, typer.Option(help="Of incidents of this kind; default all.")] = None,
    lasts: Annotated[str | None, typer.Option("--for", metavar="T", help="So long: 90s, 30m, 12h, 7d.")] = None,
    bus: BusAddress = None,
    job: JobName = None,
    key: KeyFile = None,
    config: ConfigFile = None,
    json: Json = None,
) -> int:
    """List the silences that stand; add one, such as a maintenance window; end one early.

    Example: trainwarden silences add --node node-7 --for 2h
    """
    voice, now_s, settings = Voice(json), time.time(), load(config)
    until_s = _until_s(word, lasts, now_s)
    if word != "list" and job is None and kind is None and node is None:
        raise ConfigError(f"silences {word}: of which --job, --kind or --node? `trainwarden actions stop` stops all")
    with open_bus(bus, config, job, asks=word == "list") as connected:
        standing = _standing(connected, now_s, settings)
        if word == "list":
            _list([one for one in standing if job is None or one.job in (job, EVERY_JOB)], voice)
            return 0
        said = silence(user(), now_s, until_s, job=job, incident_kind=kind, node=node)
        if word == "end" and _of(said) not in map(_of, standing):
            raise ConfigError(f"silences end: no silence is of {_shown(said)}; `trainwarden silences` lists them")
        said = speak(connected, said, key, settings)
    over = "ended" if word == "end" else f"until {moment(until_s)}"
    voice.say(f"said to the engines on {address_of(bus, settings, job)}: silence of {_shown(said)} {over}")
    voice.answer({"silence": silence_object(said)})
    return 0


def _until_s(word: Word, lasts: str | None, now_s: float) -> float:
    if word != "add":
        if lasts is not None:
            raise ConfigError(f"silences {word}: --for is of add")
        return now_s
    lasts_s = length_of(lasts, "--for")
    if lasts_s is None or lasts_s > LONGEST_SILENCE_S:
        raise ConfigError(f"silences add: --for says how long, {LONGEST_SILENCE_S / 86_400:.0f}d at most")
    return now_s + lasts_s


def _standing(bus: Bus, now_s: float, settings: Settings) -> list[CommandRecord]:
    known = Silences()
    for message in heard(bus.read(COMMANDS), settings):
        if isinstance(message.record, CommandRecord):
            known.apply(message.record, message.offset)
    return sorted(known.standing(now_s), key=lambda one: one.until_s or 0.0)


def _list(standing: list[CommandRecord], voice: Voice) -> None:
    for one in standing:
        voice.say(f"until {moment(one.until_s or 0.0)}: {_shown(one)}, said by {one.by or 'somebody'}")
    if not standing:
        voice.say("no silence")
    voice.answer({"silences": [silence_object(one) for one in standing]})


def _of(one: CommandRecord) -> tuple[str, str | None, str | None]:
    return one.job, one.incident_kind, one.node


def _shown(one: CommandRecord) -> str:
    named = (("job", one.job if one.job != EVERY_JOB else None), ("kind", one.incident_kind), ("node", one.node))
    return ", ".join(f"{what} {value}" for what, value in named if value is not None)
