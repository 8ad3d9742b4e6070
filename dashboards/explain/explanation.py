"""An incident explained, from its record, its actions, the verdict that opened it and the runbook of its kind."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec

from trainwarden.dashboards.explain.next_steps import next_steps
from trainwarden.dashboards.explain.sentences import line, moment, place
from trainwarden.records import ActionRecord, IncidentKind, IncidentRecord, Suspect, VerdictRecord, Vote, basis_said

NEAR_S: Final = 60.0  # a verdict further than this from the opening was about something else
PRINTED: Final = 2  # last lines of a failed process
RUNBOOKS: Final = Path(__file__).with_name("runbooks")  # a link to docs/runbooks, whose pages a wheel carries
MOST: Final = 5  # suspects, metrics and the like


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one incident, in sentences.

    `where` is None where no single rank or node is suspected. `runbook` is the text of its kind's page, as Markdown: an
    installation has no documentation that a path could lead to.
    """

    incident: str
    what: str
    where: str | None
    evidence: tuple[str, ...]
    why_not_others: tuple[str, ...]
    next: tuple[str, ...]
    runbook: str


def explain(
    incident: IncidentRecord,
    actions: Sequence[ActionRecord] = (),
    verdict: VerdictRecord | None = None,
    *,
    here: str | None = None,
) -> Explanation:
    """`incident` in plain words.

    Parameters
    ----------
    actions : sequence of ActionRecord
        Those of the incident, as they last were.
    verdict : VerdictRecord or None
        The one that opened it (`opening`), with all its votes; None if it is no longer kept.
    here : str or None
        The node on which whoever asks will type what comes next.

    Examples
    --------
    >>> explain(IncidentRecord(id="i1", job="j", kind="hang", severity="sev2", state="opened", revision=0,
    ...     opened_at_s=0.0, updated_at_s=0.0, reason="rank 2 does not move")).what
    'hang (sev2) of job j since 1970-01-01 00:00:00 UTC: rank 2 does not move'
    """
    return Explanation(
        incident=incident.id,
        what=_what(incident),
        where=_where(incident.suspects),
        evidence=tuple(line(one) for one in _evidence(incident, actions, verdict)),
        why_not_others=tuple(line(one) for one in _why_not_others(incident, verdict)),
        next=next_steps(incident, actions, here),
        runbook=runbook(incident.kind),
    )


@cache
def runbook(kind: IncidentKind) -> str:
    """The runbook's text, Markdown.

    Examples
    --------
    >>> runbook("crash").splitlines()[0]
    '# crash'
    """
    return (RUNBOOKS / f"{kind}.md").read_text(encoding="utf-8").rstrip()


def opening(incident: IncidentRecord, verdicts: Iterable[VerdictRecord]) -> VerdictRecord | None:
    """Of `verdicts` the one that opened `incident`: of its job, anomalous, nearest to its opening."""
    near = [
        one
        for one in verdicts
        if one.job == incident.job and one.anomalous and abs(one.time_s - incident.opened_at_s) <= NEAR_S
    ]
    return min(near, key=lambda one: (one.kind != incident.kind, abs(one.time_s - incident.opened_at_s)), default=None)


def abstentions(verdict: VerdictRecord | None) -> Iterator[str]:
    """A sentence for each detector of `verdict` that could not judge, with its reason."""
    for name, vote in (verdict.votes if verdict is not None else {}).items():
        if vote.opinion == "abstain":
            yield line(f"{name} abstains: {vote.reason or 'it says no reason'}")


def _what(incident: IncidentRecord) -> str:
    span = f"since {moment(incident.opened_at_s)}"
    if incident.closed_at_s is not None:
        span = f"from {moment(incident.opened_at_s)} to {moment(incident.closed_at_s)}"
        if (why := incident.evidence.get("closed")) is not None:
            span += f" ({why})"
    return line(f"{incident.kind} ({incident.severity}) of job {incident.job} {span}: {incident.reason}")


def _where(suspects: Sequence[Suspect]) -> str | None:
    if not suspects or place(suspects[0]) == "":
        return None
    return line(place(suspects[0]))


def _evidence(
    incident: IncidentRecord, actions: Sequence[ActionRecord], verdict: VerdictRecord | None
) -> Iterator[str]:
    if incident.onset_step is not None:
        yield f"it began at step {incident.onset_step}"
    for suspect in incident.suspects[:MOST]:
        yield f"{place(suspect) or 'somebody'} (likely to {suspect.score:.0%}){_news(suspect.reason, incident)}"
    yield from _slowness(incident.evidence)
    yield from _transition(incident.evidence)
    output = incident.evidence.get("output")
    for text in output[-PRINTED:] if isinstance(output, list | tuple) else ():
        yield f"it printed: {text}"
    voted = verdict.votes if verdict is not None else {}
    for name, vote in voted.items():
        if vote.opinion == "anomalous":
            score = incident.votes.get(name, vote.score)  # as the incident says it elsewhere
            yield f"{name} finds it strange, {_scored(vote, score)}{_news(vote.reason, incident)}"
    for name, score in incident.votes.items():
        if name not in voted:
            yield f"{name} scored {score:.2f}"
    if incident.metrics:
        yield f"metrics most blamed: {', '.join(incident.metrics[:MOST])}"
    followed = incident.evidence.get("followed")
    for one in followed[:MOST] if isinstance(followed, list | tuple) else ():
        yield f"it was followed by {one}"
    if incident.told_late_s is not None:
        yield f"it was told {incident.told_late_s:.0f} s late: nobody was there in time"
    for action in actions[-MOST:]:
        yield f"action {action.kind} is {action.outcome}: {action.why}"


def _transition(evidence: dict[str, Any]) -> Iterator[str]:
    """How the other ranks went on without one that died."""
    survived, spent_s = evidence.get("survived"), evidence.get("transition_seconds")
    if evidence.get("renewed") and not survived:
        yield "the other ranks go on, and the launcher starts it again alone"
    for one in survived[-MOST:] if isinstance(survived, list | tuple) else ():
        yield f"the job went on: {one}"
    if isinstance(spent_s, dict) and spent_s:
        phases = ", ".join(f"{phase} {seconds:.3f} s" for phase, seconds in spent_s.items())
        yield f"transitions took {sum(spent_s.values()):.3f} s: {phases}"


def _slowness(evidence: dict[str, Any]) -> Iterator[str]:
    now_s, healthy_s = evidence.get("iteration_s"), evidence.get("healthy_iteration_s")
    if isinstance(now_s, float) and isinstance(healthy_s, float) and healthy_s > 0.0:
        yield f"iterations take {now_s:.3g} s, {healthy_s:.3g} s before ({now_s / healthy_s:.2f} times as long)"
    basis, accelerator = evidence.get("basis"), evidence.get("accelerator", "")
    if isinstance(basis, str) and isinstance(accelerator, str):
        yield f"times of steps are {basis_said(basis, accelerator)}"
    ranks, compute_s = evidence.get("ranks"), evidence.get("compute_s")
    if not isinstance(ranks, list) or not isinstance(compute_s, list) or not 0 < len(ranks) == len(compute_s):
        return
    if all(isinstance(value, float) for value in compute_s):
        slowest = max(range(len(ranks)), key=lambda place: compute_s[place])
        others = sorted(value for place, value in enumerate(compute_s) if place != slowest)
        longest = f"rank {ranks[slowest]} computes longest, {compute_s[slowest]:.3g} s"
        if others:
            whose = "the other rank" if len(others) == 1 else "the middle one of the others"
            yield f"{longest}; {whose} {others[len(others) // 2]:.3g} s"


def _why_not_others(incident: IncidentRecord, verdict: VerdictRecord | None) -> Iterator[str]:
    if not incident.suspects:
        yield "nobody stands out: the ranks that were compared are alike, or no detector could compare them"
    for suspect in incident.suspects[1:MOST]:
        alike = suspect.score >= incident.suspects[0].score  # as the two ends of a link are
        likely = "as likely" if alike else f"less likely ({suspect.score:.0%})"
        yield f"{place(suspect) or 'another'} is {likely}: {suspect.reason}"
    if verdict is None:
        yield "how the other detectors voted is no longer kept"
        return
    for name, vote in verdict.votes.items():
        if vote.opinion == "normal":
            score = incident.votes.get(name, vote.score)
            yield f"{name} finds nothing strange, {_scored(vote, score)}" + (f": {vote.reason}" if vote.reason else "")
    yield from abstentions(verdict)


def _news(reason: str, incident: IncidentRecord) -> str:
    """`reason` where it says more than the incident's own."""
    return f": {reason}" if reason and reason != incident.reason else ""


def _scored(vote: Vote, score: float | None = None) -> str:
    said = "; its models are provisional, so it weighs less" if vote.provisional else ""
    return f"{vote.score if score is None else score:.2f} where {vote.threshold:.2f} is the limit{said}"
