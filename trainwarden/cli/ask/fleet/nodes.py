"""`trainwarden nodes`: in which state each node is, since when and why, with what it was blamed for."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from trainwarden.cli.ask.jobs_on_bus import open_bus
from trainwarden.cli.shared.formatting import moment
from trainwarden.cli.shared.options import BusAddress, ConfigFile, Json
from trainwarden.cli.shared.output import Voice
from trainwarden.cli.shared.speak import heard
from trainwarden.errors import ConfigError, LauncherError, LauncherUnavailable
from trainwarden.protocols import Scope
from trainwarden.settings import Settings, load
from trainwarden.topics import ACTIONS, COMMANDS, HEARTBEATS, INCIDENTS

if TYPE_CHECKING:
    from trainwarden.actions.nodes.states import NodeStates

HEARD_S: Final = 120.0  # of heartbeats, one a second of each node: 16,384 ranks' are 3 s of a processor


def nodes(
    node: Annotated[str | None, typer.Argument(metavar="[NODE]", help="This one alone, with its history.")] = None,
    *,
    bus: BusAddress = None,
    config: ConfigFile = None,
    json: Json = None,
) -> int:
    """Nodes: their state, since when and why; exit code 1 if one is suspect or lost.

    The launcher's word goes over the bus's, where it can be asked: it knows the nodes that jobs are on.

    Example: trainwarden nodes n7
    """
    from trainwarden.actions.nodes.states import NodeStates
    from trainwarden.dashboards.explain.sentences import line

    voice, now_s, states, settings = Voice(json), time.time(), NodeStates(), load(config)
    with open_bus(bus, config) as connected:
        for topic, from_s in ((COMMANDS, None), (INCIDENTS, None), (ACTIONS, None), (HEARTBEATS, now_s - HEARD_S)):
            messages = connected.read(topic, from_time_s=from_s)
            for message in heard(messages, settings) if topic is COMMANDS else messages:
                states.apply(message.record, message.time_s)
    why_not = _ask_launcher(states, settings, now_s)
    told = [one for one in states.objects(now_s) if node in (None, one["node"])]
    for one in told:
        voice.say(line(_line(one, now_s)))
        if one["advice"] is not None:
            voice.say(line(f"advice: {one['advice']}", 4))
        for past in one["history"] if node is not None else ():
            voice.say(line(f"{moment(past['at_s'])} {past['what']}{_by(past)}: {past['why']}", 4))
    if not told:
        voice.say("no node" if node is None else f"nothing was heard of node {node}")
    if why_not is not None:
        voice.say(line(f"the launcher was not asked, so the bus alone says which nodes are out: {why_not}"))
    voice.answer({"nodes": told, "launcher": {"name": settings.engine.launcher, "why_not": why_not}})
    return int(any(one["state"] in ("suspect", "lost") for one in told))


def _ask_launcher(states: NodeStates, settings: Settings, now_s: float) -> str | None:
    """Let the launcher say what it knows of the nodes of the jobs; why it could not, if it could not."""
    from trainwarden.actions.engine.service import make_launcher

    jobs = sorted({job for one in states.objects(now_s) if one["seen_s"] is not None for job in one["jobs"]})
    scope = Scope(job=settings.job, node=settings.node, run_dir=settings.run_dir or ".")
    try:
        launcher = make_launcher(settings.engine, scope)
    except ConfigError as error:  # its package or its secret may lie where the engine runs alone
        return str(error)
    for job in jobs if launcher.job is None else {launcher.job}.intersection(jobs):
        try:
            for said in launcher.state(job).nodes:
                states.launcher_says(job, said)
        except LauncherUnavailable as error:
            return str(error)  # each job more would cost its limit of time
        except LauncherError:
            continue  # a job of another launcher's
    return None


def _line(one: dict[str, Any], now_s: float) -> str:
    from trainwarden.dashboards.overview.job import SILENT_S

    since = "" if one["since_s"] is None else f" since {moment(one['since_s'])}"
    jobs = f", jobs {', '.join(one['jobs'])}" if one["jobs"] else ""
    silent = one["seen_s"] is not None and now_s - one["seen_s"] > SILENT_S
    quiet = f", its agent silent since {moment(one['seen_s'])}" if silent else ""
    return f"{one['node']} {one['state']}{since}{jobs}{quiet}" + (f": {one['why']}" if one["why"] else "")


def _by(past: dict[str, Any]) -> str:
    return f" by {past['by']}" if past["by"] else ""
