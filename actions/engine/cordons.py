"""People's words on nodes carried out: a node taken out of use by whoever started the jobs, or put back.

A word is carried out by the engine that owns its place on the bus, once; the newest word on a node stands. No brake
but a stop holds it: budgets, windows and limits are for what engines decide. It is never carried out late: whoever
spoke has looked at a cluster that is another by then.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from trainwarden.actions.brakes.active_brake import ActiveBrake
from trainwarden.actions.brakes.history import STALE, begun, next_number
from trainwarden.actions.engine.action_executor import WITHDRAWN, ActionExecutor
from trainwarden.actions.engine.launcher_client import VERBS
from trainwarden.actions.nodes.commands import CORDONING
from trainwarden.actions.remedies.policy import Rules
from trainwarden.launching import MAX_SENTENCE_CHARS
from trainwarden.protocols import Message
from trainwarden.records import ActionKind, ActionRecord, CommandRecord

AT_ONCE: Final = 10  # words begun in one tick; each takes a launcher's time, and incidents wait for it
KINDS: Final[Mapping[str, ActionKind]] = {"cordon": "cordon_node", "uncordon": "uncordon_node"}


class _Word(msgspec.Struct, frozen=True):
    """What was said, and when that came to the bus."""

    command: CommandRecord
    said_s: float


class CordonExecutor:
    """The words on nodes that this engine has to carry out.

    Parameters
    ----------
    acting : Acting
        The way to the launcher, and what is known.
    job : str or None
        The only job that the launcher runs; None if it runs many.
    """

    def __init__(self, rules: Rules, acting: ActionExecutor, job: str | None) -> None:
        self._rules, self._acting, self._job = rules, acting, job
        self._words: dict[str, _Word] = {}

    def __contains__(self, cause: str) -> bool:
        return cause in self._words

    def apply(self, message: Message, since_s: float) -> None:
        """Apply what stands in a part of the bus that is this engine's own; of what is older nobody knows the end."""
        command = message.record
        if not isinstance(command, CommandRecord) or command.kind not in CORDONING or not command.node:
            return
        names = (command.id, command.job, command.node, command.by)
        if sum(map(len, names)) > MAX_SENTENCE_CHARS:
            return  # nobody's of ours; a record that no topic takes would break every round
        if self._job in (None, command.job) and message.time_s > since_s:
            self._words[command.id] = _Word(command, message.time_s)

    def forget(self) -> None:
        """Let go of all: other engines may own them by now."""
        self._words.clear()

    def advance(self, now_s: float) -> None:
        """Go on with every word that has no end yet, oldest first; begin a few."""
        left = AT_ONCE
        for word in list(self._words.values()):
            left -= self._advance(word, now_s, may_begin=left > 0)

    def _advance(self, word: _Word, now_s: float, *, may_begin: bool) -> bool:
        """One step; whether it was begun just now."""
        command = word.command
        if unfinished := self._acting.unfinished(command.id):
            for action in unfinished:
                self._continue(action, word, now_s)
            return False
        before = self._acting.memory.of_cause(command.id)
        last = before[-1] if before else None
        if last is not None and _over(last):
            del self._words[command.id]
        elif may_begin and (last is None or last.outcome != "started"):
            return self._begin(self._action(word, next_number(filter(begun, before)), now_s), word, now_s)
        return False

    def _begin(self, action: ActionRecord, word: _Word, now_s: float) -> bool:
        if (why_not := self._why_not(word, now_s) or self._cannot(action, now_s)) is not None:
            self._acting.skip(action, now_s, why_not)
        elif self._acting.calls.capabilities(now_s) is None or self._other_under_way(action, now_s):
            pass
        elif (started := self._acting.start(action, now_s)) is not None:
            self._continue(started, word, now_s)
            return True
        return False

    def _continue(self, action: ActionRecord, word: _Word, now_s: float) -> None:
        self._acting.go_on(action, now_s, lambda: self._foreign(action, word) or self._why_not(word, now_s))

    def _foreign(self, action: ActionRecord, word: _Word) -> str | None:
        """Why `action`, found on the bus as begun, is not what `word` asks for; None if it is."""
        said = word.command
        asked = KINDS[said.kind], said.job, [said.node]
        return (
            None
            if (action.kind, action.job, action.plan.get("nodes")) == asked
            else f"{said.id} asks for no such thing"
        )

    def _why_not(self, word: _Word, now_s: float) -> str | ActiveBrake | None:
        """Why it should not be done, or not now, whatever the launcher can."""
        memory, command = self._acting.memory, word.command
        if (later := memory.node_words.later(command)) is not None:
            return f"{later.by or 'somebody'} has said {later.kind} of {command.node} since"
        late_s = self._rules.config.stale_s
        if now_s - word.said_s > late_s:
            return f"it was said more than {late_s:.0f} s ago and could not be begun until now: say it again"
        if self._rules.mode_of(KINDS[command.kind]) == "observe":
            return "the engine was told to observe only"
        if (stopped_by := memory.stopped_by(command.job)) is not None:
            return ActiveBrake("stop", f"all acting was stopped by {stopped_by}; it may go ahead once a person resumes")
        return None

    def _cannot(self, action: ActionRecord, now_s: float) -> str | ActiveBrake | None:
        """The launcher's own words if it cannot do it, or cannot be asked for too long."""
        calls = self._acting.calls
        if calls.state(action.job, now_s) is None:
            away_s, why = calls.away(action.job, now_s)
            told = calls.unknown(action.job) or away_s >= self._rules.config.launcher_deadline_s
            return ActiveBrake("launcher", why) if told else None
        able = calls.capabilities(now_s)
        return None if able is None else able.refusal(VERBS[action.kind])

    def _other_under_way(self, action: ActionRecord, now_s: float) -> bool:
        """Whether the node is being taken out or put back by another word; one after the other."""
        return any(
            other.command is not None
            and other.plan.get("nodes") == action.plan["nodes"]
            and (other.id in self._acting.mine or self._acting.under_way.may_last(other, now_s))
            for other in self._acting.memory.under_way.values()
        )

    def _action(self, word: _Word, attempt: int, now_s: float) -> ActionRecord:
        command = word.command
        return ActionRecord(
            id=f"{command.id}/{command.kind}/{attempt}",
            command=command.id,
            job=command.job,
            kind=KINDS[command.kind],
            outcome="proposed",
            at_s=now_s,
            why=command.why[:MAX_SENTENCE_CHARS] or f"{command.by or 'somebody without a name'} has said so",
            plan={"nodes": [command.node]},
            by=command.by or "somebody without a name",
        )


def _over(action: ActionRecord) -> bool:
    """Whether nothing more will come of it.

    What is held goes ahead later; what a stop withdrew, or the launcher refused as stale, is begun anew.
    """
    if action.outcome == "skipped":
        return not action.plan.get("held")
    anew = STALE in action.plan or WITHDRAWN in action.plan
    return action.outcome == "done" or (action.outcome == "failed" and not anew)
