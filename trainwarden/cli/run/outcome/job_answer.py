"""What a watched run comes to: an incident, healthy with what was watched, or not judged with the reason."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from trainwarden import rundir
from trainwarden.cli.shared.answers import HEALTHY, INCIDENT, NOT_JUDGED, Answer, Blind
from trainwarden.cli.shared.follow import JobView, incident_words
from trainwarden.cli.shared.formatting import counted, how_ended
from trainwarden.records import EventRecord, IncidentKind, IncidentRecord, Suspect
from trainwarden.torchrun.files import last_words

ENDS_NO_JOB: Final[frozenset[IncidentKind]] = frozenset(
    {
        "pipeline", "data_quality", "host_contention", "slow_compute", "slow_link", "slow_job", "metric_anomaly",
        "congestion", "gpu_throttle", "log_storm",
    }
)  # fmt: skip
"""What explains no failed command: that it failed is an incident besides."""


class Watched(msgspec.Struct, frozen=True, kw_only=True):
    """What was looked at, and for how long."""

    ranks: int
    steps: int | None
    metrics: int
    output_bytes: int
    seconds: float
    detectors: tuple[str, ...]

    def __str__(self) -> str:
        parts = [] if self.steps is None else [f"{counted(self.steps, 'step')} of {counted(self.ranks, 'rank')}"]
        parts += [counted(self.metrics, "metric"), f"{self.output_bytes:,} bytes of output"]
        by = f" by {', '.join(self.detectors)}" if self.detectors else ""
        return f"{', '.join(parts)} watched for {self.seconds:.0f} s{by}"


def watched(view: JobView, run_dir: Path, started_at_s: float, *, followed: bool) -> Watched:
    """What the detectors of a run had to judge."""
    voted = {name for one in view.verdicts for name, vote in one.votes.items() if vote.opinion != "abstain"}
    return Watched(
        ranks=len(view.ranks()),
        steps=view.steps_done() if followed else None,
        metrics=len(view.metric_names),
        output_bytes=sum(_size(path) for path in (run_dir / rundir.LOGS).glob("*.log*")),
        seconds=round(max(0.0, time.time() - started_at_s), 1),
        detectors=tuple(sorted(voted)),
    )


def blindness(
    seen: Watched, lost: Iterable[Blind], *, bus: str, own_detector: bool, failed: bool, untrained: Iterable[str] = ()
) -> list[Blind]:
    """Why the run, or a part of it, was not judged; a command that `failed` was, as far as it has come.

    `untrained` are sentences about programs that have not trained.
    """
    found = list(lost)
    if failed:
        return found
    if not seen.detectors and not found and (seen.ranks or seen.steps is None or not own_detector):
        found.append(
            Blind("the command ended before the detector had judged anything", "let it run for some seconds longer")
            if own_detector
            else Blind(f"no detector has answered on {bus}", "start one: trainwarden detector --config FILE")
        )
    if seen.steps is not None and seen.steps == 0 and not found:
        remedy = "torch must train in the command's own Python, or the script marks its steps (docs/training_loops.md)"
        what = "; ".join(("no training step was seen, so neither speed nor hangs could be judged", *untrained))
        found.append(Blind(what, remedy))
    return found


def answer_of(incidents: Iterable[Mapping[str, Any]], blind: Iterable[Blind]) -> Answer:
    """The answer of one run.

    Examples
    --------
    >>> answer_of([], []), answer_of([], [Blind("the detector has ended", "")]), answer_of([{"kind": "hang"}], [])
    ('healthy', 'not judged', 'incident')
    """
    if any(True for _ in incidents):
        return INCIDENT
    return NOT_JUDGED if any(True for _ in blind) else HEALTHY


def said(result: Mapping[str, Any]) -> str:
    """The answer of one run in words."""
    blind = "; ".join(str(msgspec.convert(one, Blind)) for one in result["not_judged"])
    if result["answer"] == INCIDENT:
        kinds = ", ".join(sorted({one["kind"] for one in result["incidents"]}))
        lost = f"; NOT JUDGED in part: {blind}" if blind else ""
        return f"{counted(len(result['incidents']), 'incident')}: {kinds}{lost}"
    if result["answer"] == NOT_JUDGED:
        return f"NOT JUDGED: {blind}"
    return f"healthy, no incident: {msgspec.convert(result['watched'], Watched)}"


def last_word(records: Iterable[IncidentRecord]) -> list[str]:
    """The line of the gravest incident, the newest of those, with the command to type next; none without one."""
    ordered = sorted(records, key=lambda one: (one.severity, -one.opened_at_s))
    return [f"incident: {incident_words(one)}" for one in ordered[:1]]


def closed(record: IncidentRecord, now_s: float, why: str) -> IncidentRecord:
    """`record` at its end, with the reason."""
    return msgspec.structs.replace(
        record, state="closed", revision=record.revision + 1, updated_at_s=now_s, unresolved=False,
        closed_at_s=now_s if record.closed_at_s is None else record.closed_at_s,
        evidence={**record.evidence, "closed": why},
    )  # fmt: skip


def bare_incident(end: EventRecord) -> IncidentRecord:
    """All that is known of a failed command whose output cannot be read."""
    now_s, reason = time.time(), f"the command ended with exit code {end.fields.get('exit_code')}"
    return IncidentRecord(
        id=uuid.uuid5(uuid.NAMESPACE_OID, end.id).hex[:16], job=end.job, kind="crash", severity="sev2", state="opened",
        revision=1, opened_at_s=now_s, updated_at_s=now_s, onset_s=end.time_s, reason=reason,
        suspects=(Suspect(score=1.0, reason=reason, node=end.node),),
    )  # fmt: skip


def service_lost(name: str, code: int, log: Path, after_s: float) -> Blind:
    """Why nothing is judged once service `name` has ended, by the last line of its log if it ended by itself."""
    if code < 0:
        return Blind(f"the {name} {how_ended(code)} after {after_s:.0f} s", f"its log is {log}")
    said = last_words(log)
    missing = said.partition("No module named ")[2].strip("'\" ").partition(".")[0]
    remedy = f"install what is missing: pip install {missing}" if missing else f"its log is {log}"
    return Blind(f"the {name} {how_ended(code)} after {after_s:.0f} s" + (f" ({said})" if said else ""), remedy)


def service_unstarted(name: str, error: OSError) -> Blind:
    """Why nothing is judged where the process of service `name` could not be started.

    Examples
    --------
    >>> service_unstarted("agent", PermissionError(13, "Permission denied", "/root/venv/bin/python")).reason
    'the agent cannot be started: Permission denied: /root/venv/bin/python'
    """
    what = f"{error.strerror}: {error.filename}" if error.filename else str(error.strerror)
    return Blind(
        f"the {name} cannot be started: {what}", "let this user run that program, or free processes and memory"
    )


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
