"""In which state each node is, since when and why, with its history: as people ask for it."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from trainwarden.actions.brakes.history import NODES_OUT
from trainwarden.actions.brakes.nodes import targets
from trainwarden.actions.nodes.commands import CLEARING, CORDONING
from trainwarden.actions.nodes.past import NodePasts
from trainwarden.launching import NodeCondition, NodeState
from trainwarden.records import ActionKind, ActionRecord, CommandRecord, HeartbeatRecord, IncidentRecord, Record

WORST: Final[tuple[NodeCondition, ...]] = ("lost", "cordoned", "suspect", "spare", "healthy")
HISTORY: Final = 100  # newest moments of one node
MAX_NODES: Final = 20_000  # ten times those of a job of 16,384 GPUs; names on the bus may be made up
OUT: Final[frozenset[ActionKind]] = NODES_OUT | {"cordon_node"}
BACK: Final[frozenset[ActionKind]] = frozenset({"uncordon_node"})


class Moment(msgspec.Struct, frozen=True):
    """Something that concerned a node; `by` is who said or approved it."""

    at_s: float
    what: str
    why: str
    job: str | None = None
    id: str | None = None
    by: str | None = None


class _Node(msgspec.Struct):
    jobs: set[str] = msgspec.field(default_factory=set)
    seen_s: float | None = None
    moments: dict[tuple[str, str], Moment] = msgspec.field(default_factory=dict)
    accused: dict[str, tuple[float | None, IncidentRecord]] = msgspec.field(default_factory=dict)
    out: Moment | None = None  # the newest action that took it out of use
    back: Moment | None = None  # the newest word that it is well, or action that put it back
    launcher: NodeState | None = None  # its launcher's word; the worst of all jobs


def _newer(known: Moment | None, moment: Moment) -> Moment:
    return moment if known is None or moment.at_s >= known.at_s else known


def _weight(node: _Node) -> tuple[bool, bool, float]:
    """Whoever is out of use is kept longest, then who was in trouble, then who was heard of last."""
    told_s = max((moment.at_s for moment in node.moments.values()), default=0.0)
    return node.out is not None, bool(node.accused or node.moments), max(node.seen_s or 0.0, told_s)


class NodeStates:
    """All nodes that were heard of, by the records of a bus in its order.

    Examples
    --------
    >>> states = NodeStates()
    >>> states.apply(HeartbeatRecord(job="llama", node="n7", time_s=100.0), 100.0)
    >>> [(one["node"], one["state"], one["jobs"]) for one in states.objects(101.0)]
    [('n7', 'healthy', ['llama'])]
    """

    def __init__(self) -> None:
        self._nodes: dict[str, _Node] = {}
        self._pasts = NodePasts()
        self._first: dict[str, str] = {}

    def apply(self, record: Record, at_s: float) -> None:
        """Take one record in; `at_s` is when it came to the bus."""
        match record:
            case HeartbeatRecord():
                node = self._known(record.node)
                node.jobs.add(record.job)
                node.seen_s = at_s if node.seen_s is None else max(at_s, node.seen_s)
            case IncidentRecord():
                self._take_incident(record, at_s)
            case ActionRecord():
                self._pasts.take_action(record, at_s)
                for name in targets(record) if record.kind in OUT | BACK else ():
                    self._take_action(self._known(name), record, at_s)
            case CommandRecord() if record.kind in CLEARING | CORDONING and record.node is not None:
                self._pasts.take_command(record, at_s)
                node, said = self._known(record.node), Moment(at_s, record.kind, record.why, by=record.by)
                node.moments[record.id, record.kind] = said
                if record.kind == "set_healthy":  # what the others ask for is told by the action that follows
                    node.back = _newer(node.back, said)
            case _:
                pass

    def launcher_says(self, job: str, said: NodeState) -> None:
        """Apply what the launcher of `job` says of a node that the job is on, or is kept for it."""
        node = self._known(said.node)
        node.jobs.add(job)
        if node.launcher is None or WORST.index(said.state) < WORST.index(node.launcher.state):
            node.launcher = said

    def last_job_on(self, node: str) -> str | None:
        """The job that was last spoken of with `node`; None if nobody did."""
        known = self._nodes.get(node)
        about = [moment for moment in known.moments.values() if moment.job is not None] if known else []
        return max(about, key=lambda moment: moment.at_s).job if about else None

    def forget(self, before_s: float) -> None:
        """Let go of what happened before, and of nodes that nothing else is known of but that they were there once."""
        for name, node in list(self._nodes.items()):
            node.moments = {key: moment for key, moment in node.moments.items() if moment.at_s >= before_s}
            heard = node.seen_s is not None and node.seen_s >= before_s
            if not (node.moments or node.accused or node.out or heard):
                del self._nodes[name]
        self._first = {
            incident: name
            for incident, name in self._first.items()
            if name in self._nodes and (incident, "blamed") in self._nodes[name].moments
        }
        self._pasts.forget(before_s)

    def objects(self, now_s: float) -> list[dict[str, Any]]:
        """Every node as programs read it, by name."""
        return [self._object(name, self._nodes[name], now_s) for name in sorted(self._nodes)]

    def _known(self, name: str) -> _Node:
        node = self._nodes.get(name)
        if node is None:
            if len(self._nodes) >= MAX_NODES:
                for gone in sorted(self._nodes, key=lambda known: _weight(self._nodes[known]))[: MAX_NODES // 10]:
                    del self._nodes[gone]
            node = self._nodes[name] = _Node()
        return node

    def _take_incident(self, incident: IncidentRecord, at_s: float) -> None:
        name = next((suspect.node for suspect in incident.suspects if suspect.node is not None), None)
        before = self._first.get(incident.id)
        if before is not None and before != name:  # who was suspected first may change
            self._known(before).accused.pop(incident.id, None)
        if name is None:
            return
        self._first[incident.id] = name
        node = self._known(name)
        why, job = f"{incident.kind} ({incident.severity}): {incident.reason}", incident.job
        blamed = Moment(incident.opened_at_s, "blamed", why, job=job, id=incident.id)
        node.moments.setdefault((incident.id, "blamed"), blamed)
        if incident.wants_action:
            first_s = node.accused.get(incident.id, (at_s, incident))[0]
            node.accused[incident.id] = (first_s, incident)
        else:
            node.accused.pop(incident.id, None)
            ended_s = incident.closed_at_s or incident.updated_at_s
            node.moments[incident.id, "closed"] = Moment(ended_s, "incident closed", why, job=job, id=incident.id)

    def _take_action(self, node: _Node, action: ActionRecord, at_s: float) -> None:
        what = f"{action.kind} {action.outcome}"
        moment = Moment(action.finished_at_s or action.at_s, what, action.why, action.job, action.id, action.by)
        node.moments[action.id, action.outcome] = moment
        said = msgspec.structs.replace(moment, at_s=at_s)
        if action.outcome == "done" and action.kind in OUT:
            node.out = _newer(node.out, said)
        elif action.outcome == "done":
            node.back = _newer(node.back, said)

    def _object(self, name: str, node: _Node, now_s: float) -> dict[str, Any]:
        state, since_s, why = self._state(name, node)
        history = sorted(node.moments.values(), key=lambda moment: moment.at_s)[-HISTORY:]
        return {
            "node": name,
            "state": state,
            "jobs": sorted(node.jobs | {incident.job for _, incident in node.accused.values()}),
            "since_s": since_s,
            "why": why,
            "seen_s": node.seen_s,
            "advice": self._pasts.advice(name, now_s),
            "history": [msgspec.to_builtins(moment) for moment in history],
        }

    def _state(self, name: str, node: _Node) -> tuple[NodeCondition, float | None, str | None]:
        """What it is in, since when, why; nobody says that of a node about which nothing was ever said."""
        told, out = node.launcher, node.out
        in_use = told is not None and told.state in ("healthy", "suspect")
        if out is not None and (in_use or (node.back is not None and node.back.at_s >= out.at_s)):
            out = None
        if told is not None and not in_use and (out is None or told.since_s is not None or told.why):
            return told.state, told.since_s, told.why or None
        if out is not None:
            return "cordoned", out.at_s, f"{out.what}{f' by {out.by}' if out.by else ''}: {out.why}"
        standing = [one for said_s, one in node.accused.values() if self._pasts.cleared(name, said_s) is None]
        if standing:
            worst = min(standing, key=lambda one: (one.kind != "node_lost", one.severity, one.opened_at_s))
            state: NodeCondition = "lost" if worst.kind == "node_lost" else "suspect"
            return state, worst.opened_at_s, f"{worst.kind} ({worst.severity}): {worst.reason}"
        if told is not None and told.state == "suspect":
            return told.state, told.since_s, told.why or None
        if node.back is not None:
            return "healthy", node.back.at_s, f"{node.back.what} by {node.back.by}: {node.back.why}".rstrip(": ")
        ended = [moment for moment in node.moments.values() if moment.what == "incident closed"]
        last = max(ended, key=lambda moment: moment.at_s, default=None)
        return ("healthy", None, None) if last is None else ("healthy", last.at_s, f"{last.what}: {last.why}")
