"""How words to the engine are made; the command line and the API speak alike."""

from __future__ import annotations

import hashlib
import uuid
from typing import Final, Literal

import msgspec

from trainwarden.records import ActionRecord, CommandRecord, IncidentKind

EVERY_JOB: Final = "*"  # a word for this job name is meant for all
NodeWord = Literal["cordon", "uncordon"]
LONGEST_SILENCE_S: Final = 30 * 86_400.0  # one that nobody remembers hides the next fault


def on_action(word: Literal["approve", "deny"], action: ActionRecord, by: str, at_s: float) -> CommandRecord:
    """A word on `action` with the plan that it has. The id follows from what is said: said twice, it is one word.

    Examples
    --------
    >>> action = ActionRecord(id="a", incident="i", job="j", kind="ignore", outcome="proposed", at_s=1.0, why="w")
    >>> on_action("deny", action, "ann", 2.0).id == on_action("deny", action, "bob", 3.0).id
    True
    """
    said = hashlib.sha256(msgspec.json.encode((word, action.id, action.plan_digest))).hexdigest()
    return CommandRecord(
        id=f"command/{said[:12]}",
        job=action.job,
        at_s=at_s,
        kind=word,
        by=by,
        action=action.id,
        plan_digest=action.plan_digest,
    )


def on_job(word: Literal["stop", "resume", "reset"], job: str | None, by: str, at_s: float) -> CommandRecord:
    """A stop or its end, or the reset of a latch, for `job` or for all."""
    return CommandRecord(id=_new_id(), job=job or EVERY_JOB, at_s=at_s, kind=word, by=by)


def latch(action: ActionRecord, job: str, why: str, at_s: float) -> CommandRecord:
    """The engine's word that no more nodes of `job`, or of all, are taken out; `action` would have been too many."""
    return CommandRecord(
        id=f"command/latch/{action.id}", job=job, at_s=at_s, kind="latch", by="engine", action=action.id, why=why
    )


def silence(
    by: str,
    at_s: float,
    until_s: float,
    *,
    job: str | None = None,
    incident_kind: IncidentKind | None = None,
    node: str | None = None,
) -> CommandRecord:
    """Until `until_s` nothing is done about such incidents and nobody is told of them; one in the past ends another."""
    return CommandRecord(
        id=_new_id(),
        job=job or EVERY_JOB,
        at_s=at_s,
        kind="silence",
        by=by,
        until_s=until_s,
        incident_kind=incident_kind,
        node=node,
    )


def set_healthy(node: str, why: str, by: str, at_s: float) -> CommandRecord:
    """A person's word that `node` is well: what was said against it before counts no more."""
    return CommandRecord(id=_new_id(), job=EVERY_JOB, at_s=at_s, kind="set_healthy", by=by, node=node, why=why)


def on_node(word: NodeWord, node: str, job: str, by: str, *, at_s: float, why: str = "") -> CommandRecord:
    """That whoever started `job` is to take `node` out of use, or to put it back."""
    return CommandRecord(id=_new_id(), job=job, at_s=at_s, kind=word, by=by, node=node, why=why)


def _new_id() -> str:
    return f"command/{uuid.uuid4().hex[:12]}"
