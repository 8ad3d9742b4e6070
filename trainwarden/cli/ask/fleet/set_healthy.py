"""`trainwarden set-healthy`: a person's word that a node is well."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from trainwarden.cli.ask.jobs_on_bus import address_of, open_bus
from trainwarden.cli.shared.machine import user
from trainwarden.cli.shared.options import BusAddress, ConfigFile, Json, KeyFile
from trainwarden.cli.shared.output import Voice
from trainwarden.cli.shared.speak import speak
from trainwarden.commands import builders
from trainwarden.errors import ConfigError
from trainwarden.settings import load


def set_healthy(
    node: Annotated[str, typer.Argument(help="As the agents call it; `trainwarden nodes` lists them.")],
    *,
    why: Annotated[str, typer.Option(help="For the log, such as the test that it passed.")] = "",
    bus: BusAddress = None,
    key: KeyFile = None,
    config: ConfigFile = None,
    json: Json = None,
) -> int:
    """Say that a node is well: what was seen of it before takes it out no more; what comes new does.

    Example: trainwarden set-healthy n7 --why "new GPU 3, burnt in"
    """
    if not node.strip() or not node.isprintable():
        raise ConfigError("set-healthy: name one node; `trainwarden nodes` lists them")
    voice, settings = Voice(json), load(config)
    with open_bus(bus, config, asks=False) as connected:
        command = speak(connected, builders.set_healthy(node, why, user(), time.time()), key, settings)
    voice.say(f"said to the engines on {address_of(bus, settings, None)}: {node} is healthy")
    voice.answer({"command": {"id": command.id, "kind": command.kind, "node": command.node}})
    return 0
