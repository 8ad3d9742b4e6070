"""What the engine knows: incidents, actions and commands as the bus tells them, in any number of repeats.

Nothing here is kept elsewhere; a restarted engine reads the three topics again and knows the same.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator

import msgspec

from trainwarden.actions.brakes.history import NODES_OUT, begun
from trainwarden.actions.nodes.commands import NodeCommands
from trainwarden.actions.nodes.past import NodePasts
from trainwarden.actions.planners import slow
from trainwarden.actions.planners.ladder import Ladder
from trainwarden.actions.remedies.adoption import Adoptions
from trainwarden.commands.builders import EVERY_JOB
from trainwarden.commands.latches import Latches
from trainwarden.commands.silences import Silences
from trainwarden.records import ActionRecord, CommandRecord, EventRecord, IncidentKind, IncidentRecord, Outcome, Record

_PROGRESS: dict[Outcome, int] = {"proposed": 0, "skipped": 0, "started": 1, "failed": 2, "done": 3}


class IncidentState:
    """One incident as it last was, with the ladder of what it has cost.

    `fresh` tells whether its newest revision brought evidence of its own or only repeats an earlier one's, `said_s`
    when that came to the bus, `first_said_s` when its first revision did.
    """

    def __init__(self, incident: IncidentRecord, ladder: Ladder) -> None:
        self.fresh = True
        self.said_s: float | None = None
        self.first_said_s: float | None = None
        self.incident = incident
        self.ladder = ladder
        self.slowness = slow.Slowness()
        self.apply(incident)

    @property
    def wants_action(self) -> bool:
        """Whether something may be done about it: it lasts, or it closed only as all ranks have ended."""
        return self.incident.wants_action

    def apply(self, incident: IncidentRecord, ladder: Ladder | None = None) -> None:
        """A newer revision, with a `ladder` if of another kind. Damaged evidence leaves the last good one in place."""
        if ladder is not None:
            ladder.go_on_from(self.ladder)
            self.ladder = ladder
        self.fresh = incident is self.incident or incident.evidence != self.incident.evidence
        self.incident = incident
        self.slowness = slow.read(incident.evidence) or self.slowness
        seen = self.slowness
        if seen.iteration_s is not None and seen.healthy_iteration_s is not None:
            self.ladder.accumulate(seen.slow_iterations, seen.iteration_s, seen.healthy_iteration_s)


class Approval(msgspec.Struct, frozen=True):
    """Who approved an action, and the plan that was shown then."""

    by: str
    plan_digest: str | None


class EngineState:
    """Everything taken in so far.

    Parameters
    ----------
    new_ladder : callable
        Makes the ladder of a new incident of some kind.
    adoptions : Adoptions, optional
        What ranks were heard to run by; that is so whoever acts on their job.

    Attributes
    ----------
    said_s : dict of str to float
        When the newest record of an action came to the bus, whose clock is one for all.
    """

    def __init__(self, new_ladder: Callable[[IncidentKind], Ladder], adoptions: Adoptions | None = None) -> None:
        self.cases: dict[str, IncidentState] = {}
        self.actions: dict[str, ActionRecord] = {}
        self.said_s: dict[str, float] = {}
        self.under_way: dict[str, ActionRecord] = {}
        self.approved: dict[str, Approval] = {}
        self.denied: dict[str, str] = {}
        self.silences = Silences()
        self.latches = Latches()
        self.nodes = NodePasts()
        self.node_words = NodeCommands()
        self.adoptions = adoptions or Adoptions()
        self._new_ladder = new_ladder
        self._of_cause: dict[str, list[str]] = defaultdict(list)
        self._of_job: dict[str, dict[str, None]] = defaultdict(dict)  # in the order in which they were heard of
        self._out: dict[str, None] = {}  # those that took nodes out, or are about to
        self._stops: dict[str, tuple[int, str | None]] = {}

    def apply(self, record: Record, offset: int = 0, at_s: float | None = None) -> None:
        """Take one record in; a repeat or an older revision changes nothing.

        Parameters
        ----------
        offset : int
            Of a command, its place on the bus: the bus keeps the order of what was said, clocks do not.
        at_s : float, optional
            When it came to the bus; None: it has not come there yet.
        """
        match record:
            case IncidentRecord():
                case = self.cases.get(record.id)
                if case is None:
                    case = self.cases[record.id] = IncidentState(record, self._new_ladder(record.kind))
                elif record.revision > case.incident.revision:
                    another = record.kind != case.incident.kind
                    case.apply(record, self._new_ladder(record.kind) if another else None)
                if record == case.incident:
                    case.said_s = at_s
                case.first_said_s = at_s if case.first_said_s is None else case.first_said_s
            case ActionRecord():
                self._take_action(record, at_s)
            case CommandRecord():
                self._take_command(record, offset, at_s)
            case EventRecord():
                self.adoptions.apply(record)
            case _:
                pass

    def _take_action(self, action: ActionRecord, at_s: float | None) -> None:
        known = self.actions.get(action.id)
        ends = known is not None and known.outcome == "started" and action.outcome in ("done", "failed")
        if known is not None and (ends or not action.plan):  # it may be shortened, as the topic took no more
            action = msgspec.structs.replace(action, plan={**known.plan, **action.plan})
        if known is None:
            self._of_cause[action.cause].append(action.id)
            self._of_job[action.job][action.id] = None
        self.nodes.take_action(action, at_s)
        if known is None or _follows(action, known):
            self.actions[action.id] = action
            self.under_way.pop(action.id, None)
            if action.kind in NODES_OUT and begun(action):
                self._out[action.id] = None
            if action.outcome == "started":
                self.under_way[action.id] = action
            if at_s is None:
                self.said_s.pop(action.id, None)
            else:
                self.said_s[action.id] = at_s

    def _take_command(self, command: CommandRecord, offset: int, at_s: float | None) -> None:
        if command.kind in ("stop", "resume"):
            if offset >= self._stops.get(command.job, (0, None))[0]:
                who = command.by or "somebody without a name"
                self._stops[command.job] = (offset, who if command.kind == "stop" else None)
        elif command.kind == "silence":
            self.silences.apply(command, offset)
        elif command.kind in ("latch", "reset"):
            self.latches.apply(command, offset, at_s)
        elif command.node is not None:
            self.nodes.take_command(command, at_s)
            self.node_words.apply(command, offset, command.at_s if at_s is None else at_s)
        elif command.action is not None and command.kind == "approve":
            self.approved[command.action] = Approval(command.by, command.plan_digest)
        elif command.action is not None and command.kind == "deny":
            self.denied[command.action] = command.by

    def stopped_by(self, job: str) -> str | None:
        """Who has stopped all acting on `job`; None if nobody has, or it was resumed."""
        here, everywhere = (self._stops.get(name, (0, None))[1] for name in (job, EVERY_JOB))
        return everywhere if here is None else here

    def of_cause(self, cause: str) -> list[ActionRecord]:
        """Actions about an incident or a person's word, oldest first."""
        return [self.actions[name] for name in self._of_cause.get(cause, ())]

    def accused_in(self, incident: str) -> str | None:
        """The node of the first suspect of `incident` that has one."""
        case = self.cases.get(incident)
        return None if case is None else next((s.node for s in case.incident.suspects if s.node is not None), None)

    def accused(self, job: str) -> Iterator[tuple[IncidentState, str]]:
        """Cases of `job` that want an action and the node that each accuses, but for those called healthy since."""
        for name, case in self.cases.items():
            node = self.accused_in(name) if case.wants_action and case.incident.job == job else None
            if node is not None and self.nodes.cleared(node, case.first_said_s) is None:
                yield case, node

    def of_job(self, job: str) -> Iterable[ActionRecord]:
        """Actions of `job`."""
        return [self.actions[name] for name in self._of_job.get(job, ())]

    def beside(self, job: str) -> list[ActionRecord]:
        """Actions of `job`, and those of other jobs that took nodes out: all that brakes look at."""
        return [self.actions[name] for name in {**self._of_job.get(job, {}), **self._out}]

    def forget(self, before_s: float) -> None:
        """Let go of incidents closed and last heard of before `before_s`, with their actions, and of other actions."""
        self.silences.forget(before_s)
        self.nodes.forget(before_s)
        self.adoptions.forget({action.job for action in self.under_way.values()})
        past = {
            name for name, case in self.cases.items() if not case.wants_action and case.incident.updated_at_s < before_s
        }
        for name in past | (self._of_cause.keys() - self.cases.keys()):
            if any(self.actions[action].at_s >= before_s for action in self._of_cause.get(name, ())):
                continue  # brakes count what was done since
            self.cases.pop(name, None)
            for action in self._of_cause.pop(name, ()):
                of_job = self._of_job[self.actions[action].job]
                of_job.pop(action, None)
                if not of_job:
                    del self._of_job[self.actions[action].job]
                self._out.pop(action, None)
                del self.actions[action]
                self.said_s.pop(action, None)
                self.under_way.pop(action, None)
                self.approved.pop(action, None)
                self.denied.pop(action, None)


def _follows(record: ActionRecord, known: ActionRecord) -> bool:
    """Whether `record` is as far as `known` or further; what is only spoken of may be proposed and held by turns.

    Of two engines one may have given up what the other one saw done.
    """
    ahead = _PROGRESS[record.outcome] - _PROGRESS[known.outcome]
    return ahead > 0 or (ahead == 0 and record.at_s >= known.at_s)


def with_outcome(action: ActionRecord, outcome: Outcome, now_s: float, why: str | None = None) -> ActionRecord:
    """`action` as it is now that `outcome` came about at `now_s`."""
    ended = outcome in ("done", "failed", "skipped")
    return msgspec.structs.replace(
        action, outcome=outcome, why=why or action.why, finished_at_s=now_s if ended else None
    )
