"""`trainwarden nodes`: every node, what the bus and the launcher know of it, and what was done about it."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from trainwarden.cli.ask.jobs_on_bus import open_bus
from trainwarden.cli.shared.options import BusAddress, ConfigFile, JobName, Json
from trainwarden.cli.shared.output import Voice
from trainwarden.cli.shared.words import moment
from trainwarden.errors import LauncherError, LauncherUnavailable
from trainwarden.launching import NodeCondition, NodeState
from trainwarden.protocols import Bus, Scope
from trainwarden.records import ActionRecord, EventRecord, HeartbeatRecord, IncidentRecord
from trainwarden.settings import Settings, load
from trainwarden.topics import ACTIONS, EVENTS, HEARTBEATS, INCIDENTS

SILENT_S: Final = 30.0  # heartbeats come every second
HEARD_WITHIN_S: Final = 600.0  # of a thousand nodes that is 600,000 heartbeats
MOST_HISTORY: Final = 20


class _Node(msgspec.Struct):
    """What is known of one node so far; `beats` are jobs and when their agent there last spoke."""

    beats: dict[str, float] = msgspec.field(default_factory=dict)
    state: NodeCondition = "healthy"
    since_s: float | None = None
    why: str = ""
    history: list[dict[str, Any]] = msgspec.field(default_factory=list)

    def put(self, state: NodeCondition, since_s: float | None, why: str) -> None:
        self.state, self.since_s, self.why = state, since_s, why


def nodes(*, bus: BusAddress = None, job: JobName = None, config: ConfigFile = None, json: Json = None) -> int:
    """Every node: healthy, suspect, cordoned, lost or spare, and why; exit code 1 if one is suspect or lost.

    The launcher's word goes over the bus's, where it can be asked: it knows the nodes that jobs are on.

    Example: trainwarden nodes --json
    """
    voice, now_s = Voice(json), time.time()
    with open_bus(bus, config, job) as connected:
        found = _on_bus(connected, job, now_s)
    why_not = _ask_launcher(found, load(config), job)
    rows = [_row(name, found[name]) for name in sorted(found)]
    for row in rows:
        since = f" since {moment(row['since_s'])}" if row["since_s"] is not None else ""
        said = f": {row['why']}" if row["why"] else ""
        voice.say(f"{row['node']}: {row['state']}{since}, {', '.join(row['jobs']) or 'no job'}{said}")
    if not rows:
        voice.say("no node has spoken within ten minutes")
    if why_not:
        voice.say(f"the launcher was not asked, so nobody says which nodes are cordoned: {why_not}")
    voice.answer({"nodes": rows, "launcher": {"name": load(config).engine.launcher, "why_not": why_not or None}})
    return int(any(row["state"] in ("suspect", "lost") for row in rows))


def _on_bus(bus: Bus, job: str | None, now_s: float) -> dict[str, _Node]:
    """Nodes by who spoke lately, whom open incidents suspect first, and what was done about them."""
    since_s = now_s - HEARD_WITHIN_S
    found: dict[str, _Node] = {}
    ended: dict[str, float] = {}
    incidents: dict[str, IncidentRecord] = {}
    actions: dict[str, ActionRecord] = {}
    for topic in (HEARTBEATS, EVENTS, INCIDENTS, ACTIONS):
        for message in bus.read(topic, from_time_s=since_s if topic in (HEARTBEATS, EVENTS) else None):
            match record := message.record:
                case HeartbeatRecord() if job in (None, record.job):
                    found.setdefault(record.node, _Node()).beats[record.job] = message.time_s
                case EventRecord(kind="job_end"):
                    ended[record.job] = message.time_s
                case IncidentRecord() if job in (None, record.job):
                    incidents[record.id] = record
                case ActionRecord() if job in (None, record.job):
                    actions[record.id] = record
    for name, node in list(found.items()):
        node.beats = {of: at_s for of, at_s in node.beats.items() if at_s >= ended.get(of, 0.0)}
        spoke_s = max(node.beats.values(), default=None)
        if spoke_s is None:
            del found[name]
        elif now_s - spoke_s > SILENT_S:
            node.put("lost", spoke_s, "its agent has not spoken since")
    _blame(found, incidents.values(), actions.values())
    return found


def _blame(found: dict[str, _Node], incidents: Iterable[IncidentRecord], actions: Iterable[ActionRecord]) -> None:
    """What nodes are suspected of, and what became of it."""
    for incident in sorted(incidents, key=lambda one: one.opened_at_s):
        suspect = next((one for one in incident.suspects if one.node is not None), None)
        if suspect is None or suspect.node is None:
            continue
        lasts = incident.state != "closed"
        node = found.setdefault(suspect.node, _Node()) if lasts else found.get(suspect.node)
        if node is None:
            continue
        if lasts:
            node.put("suspect", incident.opened_at_s, f"{incident.kind}: {suspect.reason}")
        outcome = "open" if lasts else "closed"
        node.history.append(_event(incident.opened_at_s, incident.id, incident.kind, outcome, incident.reason))
    for action in sorted(actions, key=lambda one: one.at_s):
        out = action.kind == "evict_node" and action.outcome == "done"
        for name in action.plan.get("nodes", ()):
            node = found.setdefault(name, _Node()) if out else found.get(name)
            if node is not None:
                at_s = action.finished_at_s or action.at_s
                node.history.append(_event(at_s, action.id, action.kind, action.outcome, action.why))
                if out:
                    node.put("cordoned", at_s, f"taken out by {action.id}: {action.why}")


def _event(at_s: float, name: str, kind: str, outcome: str, why: str) -> dict[str, Any]:
    return {"at_s": at_s, "id": name, "kind": kind, "outcome": outcome, "why": why}


def _ask_launcher(found: dict[str, _Node], settings: Settings, job: str | None) -> str:
    """Let the launcher say which nodes of the jobs are cordoned or lost; why it could not, if it could not."""
    from actions.engine.service import make_launcher

    scope = Scope(job=job or settings.job, node=settings.node, run_dir=settings.run_dir or ".")
    launcher = make_launcher(settings.engine, scope)
    jobs = {name for node in found.values() for name in node.beats}
    for name in sorted(jobs if launcher.job is None else jobs & {launcher.job}):
        try:
            for state in launcher.state(name).nodes:
                _take(found.setdefault(state.node, _Node()), name, state)
        except LauncherUnavailable as error:
            return str(error)  # each job more would cost its limit of time
        except LauncherError:
            continue  # a job of another launcher's
    return ""


def _take(node: _Node, job: str, said: NodeState) -> None:
    """The launcher's word on a node that `job` is on. Health is no news of one that is suspected or silent."""
    node.beats.setdefault(job, 0.0)
    if said.state in ("cordoned", "lost", "spare"):
        known_s, known_why = (node.since_s, node.why) if node.state == said.state else (None, "")
        node.put(said.state, said.since_s or known_s, said.why or known_why)
    elif node.state == "cordoned":
        node.put("healthy", None, "")  # somebody has put it back


def _row(name: str, node: _Node) -> dict[str, Any]:
    history = sorted(node.history, key=lambda one: one["at_s"])[-MOST_HISTORY:]
    return {
        "node": name, "state": node.state, "jobs": sorted(node.beats), "since_s": node.since_s, "why": node.why or None,
        "history": history,
    }  # fmt: skip
