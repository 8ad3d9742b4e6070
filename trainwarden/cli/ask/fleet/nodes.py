"""`trainwarden nodes`: in which state each node is, since when and why, with what it was blamed for."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from trainwarden.cli.ask.jobs_on_bus import open_bus
from trainwarden.cli.shared.options import BusAddress, ConfigFile, Json
from trainwarden.cli.shared.output import Voice
from trainwarden.cli.shared.words import moment
from trainwarden.topics import ACTIONS, COMMANDS, HEARTBEATS, INCIDENTS

HEARD_S = 60.0  # of heartbeats: each node sends one a second


def nodes(
    node: Annotated[str | None, typer.Argument(metavar="[NODE]", help="This one alone, with its history.")] = None,
    *,
    bus: BusAddress = None,
    config: ConfigFile = None,
    json: Json = None,
) -> int:
    """Nodes: their state, since when and why; exit code 1 if one is not healthy.

    Example: trainwarden nodes n7
    """
    from actions.nodes.states import NodeStates
    from dashboards.explain.sentences import line

    voice, now_s, states = Voice(json), time.time(), NodeStates()
    with open_bus(bus, config) as connected:
        for topic, from_s in ((COMMANDS, None), (INCIDENTS, None), (ACTIONS, None), (HEARTBEATS, now_s - HEARD_S)):
            for message in connected.read(topic, from_time_s=from_s):
                states.take(message.record, message.time_s)
    told = [one for one in states.objects(now_s) if node in (None, one["node"])]
    for one in told:
        voice.say(line(_line(one)))
        if one["advice"] is not None:
            voice.say(line(f"advice: {one['advice']}", 4))
        for past in one["history"] if node is not None else ():
            voice.say(line(f"{moment(past['at_s'])} {past['what']}{_by(past)}: {past['why']}", 4))
    if not told:
        voice.say("no node" if node is None else f"nothing was heard of node {node}")
    voice.answer({"nodes": told})
    return 1 if any(one["state"] != "healthy" for one in told) else 0


def _line(one: dict[str, Any]) -> str:
    since = "" if one["since_s"] is None else f" since {moment(one['since_s'])}"
    jobs = f", jobs {', '.join(one['jobs'])}" if one["jobs"] else ""
    return f"{one['node']} {one['state']}{since}{jobs}" + (f": {one['why']}" if one["why"] else "")


def _by(past: dict[str, Any]) -> str:
    return f" by {past['by']}" if past["by"] else ""
